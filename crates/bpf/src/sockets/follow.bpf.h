/* SPDX-License-Identifier: (LGPL-2.1 OR BSD-2-Clause) */
/*
 * Following a pointer in an object that is opened with reduced type information, which counts types in its own way:
 * bpf_rdonly_cast() takes the kernel's own numbers, so user space looks them up and writes them down here before the program
 * is loaded. They are read-only then, which is constant enough for the verifier.
 *
 * Each use is a load more than a number in the instruction. The walk, which reads most sockets, does without.
 */
#ifndef PARSHALL_SOCKETS_FOLLOW_H
#define PARSHALL_SOCKETS_FOLLOW_H

#include <linux/types.h>
#include "followed.h"
#include <bpf/bpf_helpers.h>

/* What is read through it gives zero where the memory is gone, instead of a fault. Linux 6.2. */
extern void *bpf_rdonly_cast(const void *pointer, __u32 btf_id) __ksym __weak;

const volatile __u32 followed_ids[FOLLOWED_TYPES] = {};

#define SOCKET_FOLLOW(type, pointer) ((struct type *)bpf_rdonly_cast((const void *)(pointer), followed_ids[FOLLOWED_##type]))

#endif

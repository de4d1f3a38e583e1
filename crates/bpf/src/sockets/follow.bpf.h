/* SPDX-License-Identifier: (LGPL-2.1 OR BSD-2-Clause) */
/*
 * SOCKET_FOLLOW for an object that is opened with reduced BTF. In reduced BTF the types have other ids, but bpf_rdonly_cast()
 * takes the ids of the kernel's BTF. So user space looks up these ids and stores them in `followed_ids` before it loads the
 * object. They are read-only data, which the verifier treats as constants.
 *
 * Each use costs one more load than a constant in the instruction. walk.bpf.c reads most sockets and uses the full BTF instead.
 */
#ifndef PARSHALL_SOCKETS_FOLLOW_H
#define PARSHALL_SOCKETS_FOLLOW_H

#include <linux/types.h>
#include "followed.h"
#include <bpf/bpf_helpers.h>

/* A load through the result returns zero if the memory is not mapped any more. Since Linux 6.2. */
extern void *bpf_rdonly_cast(const void *pointer, __u32 btf_id) __ksym __weak;

const volatile __u32 followed_ids[FOLLOWED_TYPES] = {};

#define SOCKET_FOLLOW(type, pointer) ((struct type *)bpf_rdonly_cast((const void *)(pointer), followed_ids[FOLLOWED_##type]))

#endif

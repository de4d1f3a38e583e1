/* SPDX-License-Identifier: (LGPL-2.1 OR BSD-2-Clause) */
/*
 * How the walk follows pointers and repeats a step, on Linux 6.2 and newer: a load through bpf_rdonly_cast() costs one
 * instruction, and bpf_loop() has no limit that the verifier must count. copy.bpf.h has the same names for older kernels.
 *
 * As in follow.bpf.h, the object is opened with reduced BTF and the kernel's ids of types are read-only data. The load that each cast
 * needs for its id is not seen in the time of a dump, and libbpf's search for each structure in the full BTF took 50 ms of a start.
 */
#ifndef PARSHALL_SOCKETS_CAST_H
#define PARSHALL_SOCKETS_CAST_H

#include "kernel.h"
#include "followed.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>

extern void *bpf_rdonly_cast(const void *pointer, __u32 btf_id) __ksym;

/* A structure, to be read by `->`. A load through the result returns zero if the memory is not mapped any more. */
#define SOCKET_FOLLOW(type, pointer) \
	((struct type *)bpf_rdonly_cast((const void *)(pointer), followed_ids[FOLLOWED_##type]))
/* A structure of which few fields are read, by SOCKET_READ. */
#define SOCKET_AT(type, pointer) SOCKET_FOLLOW(type, pointer)
#define SOCKET_READ(pointer, field) ((pointer)->field)
/* The socket whose identity was read last. */
#define SOCKET_FOR_IDENTITY(address) SOCKET_FOLLOW(sock_common, address)
#define SOCKET_OF_IDENTITY(address) SOCKET_FOLLOW(sock_common, address)

/* A pointer to the structure of the running thread. */
#define CURRENT_TASK() ((struct task_struct *)bpf_get_current_task_btf())

/* A step of a loop. It returns 1 to end the loop. */
#define STEP(name) static long name(u32 step, void *unused)
/* Repeats a step; LONG_LOOP for more than 8000 times. */
#define LOOP(most, step) bpf_loop(most, step, NULL, 0)
#define LONG_LOOP(most, step) bpf_loop(most, step, NULL, 0)
/* A function that has a loop over the blocks of a table. */
#define TABLE_LOOP __noinline

#endif

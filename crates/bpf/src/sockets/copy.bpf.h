/* SPDX-License-Identifier: (LGPL-2.1 OR BSD-2-Clause) */
/*
 * How the walk follows pointers and repeats a step on kernels before 6.2 (no bpf_rdonly_cast) and before 5.17 (no bpf_loop).
 * cast.bpf.h has the same names for newer kernels.
 *
 * A program cannot load through a number there; it can only copy memory by a call. A call costs as much as reading ten fields, so
 * a structure of which many fields are read is copied as a whole. A copy is overwritten by the next one of the same type. Between
 * the two readings of a socket's identity, the copy of the first one stays.
 *
 * Loops have bounds that the verifier counts. Their steps are global functions, which it checks once and not in each iteration.
 * At most 8 functions can be active, so loops over blocks are part of their callers.
 */
#ifndef PARSHALL_SOCKETS_COPY_H
#define PARSHALL_SOCKETS_COPY_H

#include "kernel.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>

#define SOCKET_COPIES

/* The verifier refuses the program if a kernel's structure is larger. */
#define COPY(name, type, bytes)                                                                                        \
	u64 name##_copy[(bytes) / sizeof(u64)] = {};                                                                   \
	static __always_inline struct type *name(u64 address)                                                          \
	{                                                                                                              \
		bpf_probe_read_kernel(name##_copy, bpf_core_type_size(struct type), (const void *)address);            \
		return (struct type *)name##_copy;                                                                     \
	}

COPY(copy_sock_common, sock_common, 512)
COPY(beside_sock_common, sock_common, 512)
COPY(copy_sock, sock, 2048)
COPY(copy_tcp_sock, tcp_sock, 4096)
COPY(copy_udp_sock, udp_sock, 4096)
COPY(copy_unix_sock, unix_sock, 4096)
COPY(copy_mptcp_sock, mptcp_sock, 8192)
COPY(copy_mptcp_subflow_context, mptcp_subflow_context, 1024)
COPY(copy_inet_timewait_sock, inet_timewait_sock, 1024)
COPY(copy_inet_request_sock, inet_request_sock, 1024)

#define SOCKET_FOLLOW(type, pointer) copy_##type((u64)(pointer))
#define SOCKET_FOR_IDENTITY(address) beside_sock_common(address)
#define SOCKET_OF_IDENTITY(address) ((const struct sock_common *)beside_sock_common_copy)
#define SOCKET_AT(type, pointer) ((const struct type *)(pointer))
#define SOCKET_READ(pointer, field)                                                     \
	({                                                                              \
		typeof(((void)0, (pointer)->field)) value_ = 0;                                  \
                                                                                        \
		bpf_core_read((void *)&value_, sizeof(value_), &(pointer)->field);      \
		value_;                                                                 \
	})

/* The namespace of the socket before; cleared by each run. */
struct {
	u64 address;
	u64 ops;
	u64 hashinfo;
	u32 inum;
	u32 reserved;
} known_net = {};

#define CURRENT_TASK() ((struct task_struct *)bpf_get_current_task())

#define TURNS 1024
#define STEP(name)                                      \
	__noinline int name(void);                      \
	__noinline int name##_turns(void)               \
	{                                               \
		u32 i;                                  \
                                                        \
		for (i = 0; i < TURNS; i++)             \
			if (name())                     \
				return 1;               \
		return 0;                               \
	}                                               \
	__noinline int name(void)
#define LOOP(most, step)                                \
	{                                               \
		u32 turn_;                              \
                                                        \
		for (turn_ = 0; turn_ < (most); turn_++) \
			if (step())                     \
				break;                  \
	}
#define LONG_LOOP(most, step) LOOP(((most) + TURNS - 1) / TURNS, step##_turns)
#define TABLE_LOOP static __always_inline

#endif

/* SPDX-License-Identifier: (LGPL-2.1 OR BSD-2-Clause) */
/*
 * How a program that begins with trusted pointers follows others: by bpf_rdonly_cast() if the kernel has it (Linux 6.2), else by
 * copies. The verifier removes the branches of the other kind.
 *
 * The object is opened with reduced BTF. There the types have other ids, but bpf_rdonly_cast() takes the ids of the kernel's BTF.
 * So user space looks up these ids and stores them in `followed_ids` before it loads the object. They are read-only data, which
 * the verifier treats as constants.
 */
#ifndef PARSHALL_SOCKETS_FOLLOW_H
#define PARSHALL_SOCKETS_FOLLOW_H

#include "kernel.h"
#include "followed.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>

/* A load through the result returns zero if the memory is not mapped any more. Since Linux 6.2. */
extern void *bpf_rdonly_cast(const void *pointer, __u32 btf_id) __ksym __weak;

#define SOCKET_CASTS bpf_ksym_exists(bpf_rdonly_cast)
#define SOCKET_CAST(type, pointer) ((struct type *)bpf_rdonly_cast((const void *)(pointer), followed_ids[FOLLOWED_##type]))

/* A structure of which few fields are read, by SOCKET_READ. */
#define SOCKET_AT(type, pointer) (SOCKET_CASTS ? SOCKET_CAST(type, pointer) : (struct type *)(pointer))
#define SOCKET_READ(pointer, field)                                                             \
	({                                                                                      \
		typeof(((void)0, (pointer)->field)) value_ = 0;                                          \
                                                                                                \
		if (SOCKET_CASTS)                                                               \
			value_ = (pointer)->field;                                              \
		else                                                                            \
			bpf_core_read((void *)&value_, sizeof(value_), &(pointer)->field);      \
		value_;                                                                         \
	})

#endif

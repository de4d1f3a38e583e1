/* SPDX-License-Identifier: (LGPL-2.1 OR BSD-2-Clause) */
/* Maps, global variables and helpers that both BPF objects include. The classic object is loaded without BTF, so no CO-RE
 * relocation may be used here. */
#ifndef PARSHALL_SHARED_H
#define PARSHALL_SHARED_H

#include "counters.h"
#include "diagnose/records.h"
#include <bpf/bpf_helpers.h>

/*
 * CALL_FD: the first argument is a file descriptor. CALL_BYTES: a positive result is a number of bytes. The second argument of calls
 * that receive and send is the buffer (CALL_BUFFER), a list of buffers (CALL_VECTOR), or a message with such a list (both).
 */
enum call_flag {
	CALL_FD = 1, CALL_BYTES = 2, CALL_RECEIVES = 4, CALL_SENDS = 8, CALL_ACCEPTS = 16, CALL_SPLICES = 32, CALL_BUFFER = 64,
	CALL_VECTOR = 128
};

/* Which sockets of a process belong to the subject: all, or only those with one of the subject's ports; none once it has ended. */
enum tgid_scope { SCOPE_ENDED, SCOPE_ALL, SCOPE_PORT };

/* Set before load: call_flag bits by system call number. */
const volatile u8 call_flags[512] = {};

/* Set by user space at the beginning and end of a slice. Probes of single events do nothing while `active` is 0. */
u32 active = 0;
u32 slice_gen = 0;
u64 slice_begin = 0;
u64 cut_at = 0;

/*
 * The time of an event of the slice. A program that began within the slice can end after it, by as long as a hypervisor took its
 * CPU away. The time that it accounts for ends with the slice, as all other times do.
 */
static __always_inline u64 slice_now(void)
{
	u64 now = bpf_ktime_get_ns(), cut = cut_at;

	return cut && now > cut ? cut : now;
}

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, CNT_N);
	__type(key, u32);
	__type(value, u64);
} counters SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__type(key, u32);
	__type(value, u8);
} tgids SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 8 * 1024 * 1024);
} ring SEC(".maps");

/* Set before load: whether the child processes of the subject's processes belong to the subject. */
const volatile u8 follow_children = 1;

/*
 * A function that verifiers before 5.12 take as one of its own: when it returns they forget what differed between its paths, and so follow
 * one path from there.
 */
#ifdef OLDER
#define MERGED static __noinline
/* Has them forget which number it is, of those that fit into a byte. */
#define FORGET(number) ({ volatile u8 __number = (number); __number; })
#else
#define MERGED static __always_inline
#define FORGET(number) (number)
#endif

static __always_inline void count(u32 which)
{
	u64 *v = bpf_map_lookup_elem(&counters, &which);

	if (v)
		(*v)++;
}

/*
 * Forgets a process that has ended. The kernel gives up a deletion when another CPU holds the lock for long, as one does that the
 * hypervisor has taken away. What is left then is no part of the subject, and user space deletes it.
 */
static __always_inline void forget_process(u32 tgid)
{
	u8 *scope = bpf_map_lookup_elem(&tgids, &tgid);

	if (scope)
		*scope = SCOPE_ENDED;
	bpf_map_delete_elem(&tgids, &tgid);
}

/* A bit in the values of `tgids`: the process, or its parent, was added because the subject may wait for it. */
#define FOLLOWED 0x80

static __always_inline u8 subject_scope(u32 tgid)
{
	u8 *scope = bpf_map_lookup_elem(&tgids, &tgid);

	return scope ? *scope & ~FOLLOWED : 0;
}

static __always_inline bool is_followed(u32 tgid)
{
	u8 *scope = bpf_map_lookup_elem(&tgids, &tgid);

	return scope && (*scope & FOLLOWED);
}

/* Reserves a record, or counts it as lost. User space polls the ring buffer, so SUBMIT wakes no reader. */
#define RESERVE(type) ({								\
	struct type *__r = bpf_ringbuf_reserve(&ring, sizeof(struct type), 0);		\
	if (!__r)									\
		count(CNT_LOST);							\
	__r;										\
})
#define SUBMIT(rec) bpf_ringbuf_submit(rec, BPF_RB_NO_WAKEUP)

#endif

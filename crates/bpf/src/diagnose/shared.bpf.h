/* SPDX-License-Identifier: (LGPL-2.1 OR BSD-2-Clause) */
/* Maps, switches and small helpers of both objects. Needs nothing of the kernel's types: no CO-RE relocation may come here. */
#ifndef PARSHALL_SHARED_H
#define PARSHALL_SHARED_H

#include "diagnose/records.h"
#include <bpf/bpf_helpers.h>

/* Set before load. */
/* Bit 0: the first argument is a descriptor; 1: a positive result is a number of bytes; 2: receives; 3: sends; 4: accepts. */
const volatile u8 call_flags[512] = {};

enum call_flag { CALL_FD = 1, CALL_BYTES = 2, CALL_RECEIVES = 4, CALL_SENDS = 8, CALL_ACCEPTS = 16 };

/* Set by user space around slices. Per-event probes do nothing while `active` is 0. */
u32 active = 0;
u32 slice_gen = 0;
u64 slice_begin = 0;
u64 cut_at = 0;

enum counter {
	CNT_EVENTS, CNT_LOST, CNT_UNTRACKED, CNT_RETRANS, CNT_RST_OUT, CNT_RST_IN, CNT_OPENED, CNT_CLOSED, CNT_DELACK,
	CNT_UNTRACKED_FLOWS, CNT_UNTRACKED_CELLS,
	CNT_N
};

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

/* Children that a process of the subject makes belong to it too. */
const volatile u8 follow_children = 1;

static __always_inline void count(u32 which)
{
	u64 *v = bpf_map_lookup_elem(&counters, &which);

	if (v)
		(*v)++;
}

/* Of a value of `tgids`: the process was added because the subject may wait for it, or is a child of one that was. */
#define FOLLOWED 0x80

static __always_inline u8 subject_scope(u32 tgid)
{
	u8 *scope = bpf_map_lookup_elem(&tgids, &tgid);

	return scope ? *scope & ~FOLLOWED : 0;
}

/* Reserves a record, or counts the loss. Readers poll, so no record wakes anyone. */
#define RESERVE(type) ({								\
	struct type *__r = bpf_ringbuf_reserve(&ring, sizeof(struct type), 0);		\
	if (!__r)									\
		count(CNT_LOST);							\
	__r;										\
})
#define SUBMIT(rec) bpf_ringbuf_submit(rec, BPF_RB_NO_WAKEUP)

#endif

/* SPDX-License-Identifier: (LGPL-2.1 OR BSD-2-Clause) */
/*
 * The ledger of a thread. Both objects use this for the events of the subject's threads. It uses no kernel structures, because
 * the classic object is loaded without BTF.
 */
#ifndef PARSHALL_ACCOUNT_H
#define PARSHALL_ACCOUNT_H

#include "diagnose/shared.bpf.h"

/* Cells are inserted while the run queue is locked: before Linux 6.1 an allocation could wake kswapd there, which needs that lock. So
 * they are preallocated. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16384);
	__type(key, struct off_key);
	__type(value, struct off_value);
} off_cells SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16384);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct sys_key);
	__type(value, struct sys_value);
} sys_cells SEC(".maps");

static __always_inline void thread_enter_slice(struct thread *t)
{
	if (t->gen == slice_gen)
		return;
	t->gen = slice_gen;
	t->since = slice_begin;
	t->state = TS_UNKNOWN;
	t->wake = 0;
	t->sys_t0 = 0;
	t->want_ustack = 0;
}

MERGED void add_off(struct thread *t, u8 why, s32 nr, u8 fd, u64 ns)
{
	struct off_key key = { .tid = t->tid, .nr = nr, .fd = fd, .why = why };
	struct off_value first = { .ns = ns, .count = 1 }, *v;

	v = bpf_map_lookup_elem(&off_cells, &key);
	if (v) {
		v->ns += ns;
		v->count++;
	} else if (bpf_map_update_elem(&off_cells, &key, &first, BPF_NOEXIST)) {
		count(CNT_UNTRACKED_CELLS);
	}
}

static __always_inline void add_on(struct thread *t, u64 ns)
{
	t->on_ns += ns;
}

static __always_inline u32 log2_us(u64 ns)
{
	u64 us = ns / 1000;
	u32 bucket = 0;

#pragma unroll
	for (int i = 0; i < 19; i++) {
		if (us) {
			us >>= 1;
			bucket++;
		}
	}
	return bucket;
}

MERGED void add_runq(struct thread *t, u64 ns)
{
	u32 bucket = log2_us(ns);

	t->runq_ns += ns;
	t->runq_count++;
	if (bucket < 20)
		t->runq_log2[bucket]++;
}

static __always_inline u32 frames(long bytes)
{
	return bytes > 0 ? (u32)bytes / 8 : 0;
}

static __always_inline u64 on_cpu_so_far(struct thread *t, u64 now)
{
	return t->on_ns + (t->state == TS_ON && now > t->since ? now - t->since : 0);
}

/* Fills the record of a stall, except for the thread's stack. */
static __always_inline void fill_stall(struct thread_stall_rec *r, struct thread *t, u8 why, s32 nr, u8 fd, u64 begin, u64 ns)
{
	r->head.kind = REC_THREAD_STALL;
	r->head.tid = t->tid;
	r->head.at = begin + ns;
	r->begin = begin;
	r->ns = ns;
	r->tgid = t->tgid;
	r->seq = ++t->seq;
	r->nr = nr;
	r->fd = fd;
	r->why = why;
	r->n_wstack = 0;
	r->waker_tid = 0;
	r->waker_irq = 0;
	r->waker_tgid = t->waker_tgid;
	r->n_kstack = 0;
	r->followed = is_followed(t->tgid);
	__builtin_memset(r->waker_comm, 0, sizeof(r->waker_comm));
	if (why == OFF_BLOCKED && t->n_wstack) {
		r->waker_tid = t->waker_tid;
		r->waker_tgid = t->waker_tgid;
		r->waker_irq = t->waker_irq;
		__builtin_memcpy(r->waker_comm, t->waker_comm, sizeof(r->waker_comm));
		__builtin_memcpy(r->wstack, t->wstack, sizeof(r->wstack));
		r->n_wstack = t->n_wstack;
	}
}

/* Stores the waker and its stack. Called only for a sleep that is long enough to be a stall. */
static __always_inline void note_waker(void *ctx, struct thread *t, u32 tid, u32 tgid)
{
	t->waker_tid = tid;
	t->waker_tgid = tgid;
	t->waker_irq = tid == 0;
	t->n_wstack = frames(bpf_get_stack(ctx, t->wstack, sizeof(t->wstack), 0));
	if (!t->n_wstack)
		t->n_wstack = 1; /* not 0: the waker is known, even without its stack */
}

/* Reports the user stack of a stall, with `sp` as its stack pointer. The thread is the current task, which has run again. Returns the
 * number of frames. */
static __always_inline u32 emit_user_stack(void *ctx, struct thread *t, u64 sp)
{
	struct user_stack_rec *r = RESERVE(user_stack_rec);
	u32 n;

	t->want_ustack = 0;
	if (!r)
		return USTACK_MAX;
	r->head.kind = REC_USER_STACK;
	r->head.tid = t->tid;
	r->head.at = 0;
	r->tgid = t->tgid;
	r->seq = t->seq;
	r->sp = sp;
	n = frames(bpf_get_stack(ctx, r->ustack, sizeof(r->ustack), BPF_F_USER_STACK));
	r->n_ustack = n;
	SUBMIT(r);
	return n;
}

/* Copies the ledger to `d`. The caller sets the other fields of `d`. */
static __always_inline void fill_account(struct thread *t, struct thread_dump *d)
{
	d->on_ns = t->on_ns;
	d->runq_ns = t->runq_ns;
	d->copy_pairs = t->copy_pairs;
	d->copy_bytes = t->copy_bytes;
	d->copy_recvs = t->copy_recvs;
	d->copy_mode_count = t->copy_mode_count;
	d->copy_left_over = t->copy_left_over;
	d->tid = t->tid;
	d->tgid = t->tgid;
	d->runq_count = t->runq_count;
	d->copy_mode = t->copy_mode;
	__builtin_memcpy(d->runq_log2, t->runq_log2, sizeof(d->runq_log2));
}

/* Counts a system call that has returned, with its result and its time on and off the CPU. */
static __always_inline void add_call(struct thread *t, long ret, u64 now)
{
	struct sys_value zero = {}, *v;
	struct sys_key key = {};
	u64 on;

	if (!t->sys_t0)
		return;
	on = on_cpu_so_far(t, now) - t->sys_on0;
	key.tid = t->tid;
	key.nr = t->sys_nr;
	key.fd = t->sys_fd;
	v = bpf_map_lookup_elem(&sys_cells, &key);
	if (!v) {
		bpf_map_update_elem(&sys_cells, &key, &zero, BPF_NOEXIST);
		v = bpf_map_lookup_elem(&sys_cells, &key);
	}
	if (v) {
		v->count++;
		if (ret == -11)
			v->eagain++;
		else if (ret < 0 && ret >= -4095)
			v->errors++;
		else if (ret > 0 && key.nr >= 0 && key.nr < 512 && (call_flags[key.nr & 511] & CALL_BYTES))
			v->bytes += ret;
		v->on_ns += on;
		v->off_ns += now - t->sys_t0 > on ? now - t->sys_t0 - on : 0;
	}
	t->sys_t0 = 0;
}

/* Detects a thread that copies data from one socket to another, and finds the most frequent size of its receives. */
static __always_inline void add_copy_received(struct thread *t, u64 socket, u32 len, bool left_over)
{
	t->copy_recvs++;
	if (left_over)
		t->copy_left_over++;
	/* Boyer-Moore majority vote: `copy_mode` is the candidate. copy_mode_count counts the receives of the candidate's size. */
	if (!t->copy_votes) {
		t->copy_mode = len;
		t->copy_votes = 1;
		t->copy_mode_count++;
	} else if (t->copy_mode == len) {
		t->copy_votes++;
		t->copy_mode_count++;
	} else {
		t->copy_votes--;
	}
	t->last_recv_sk = socket;
	t->last_recv_len = len;
}

static __always_inline void add_copy_sent(struct thread *t, u64 socket, u32 len)
{
	if (!t->last_recv_sk)
		return;
	if (t->last_recv_sk != socket && t->last_recv_len == len) {
		t->copy_pairs++;
		t->copy_bytes += len;
	}
	t->last_recv_sk = 0;
}

#endif

/* SPDX-License-Identifier: (LGPL-2.1 OR BSD-2-Clause) */
/* Fills a sample of the current thread, except for its system call, which the two objects find in different ways. */
#ifndef PARSHALL_TAKE_H
#define PARSHALL_TAKE_H

#include "diagnose/thread/account.bpf.h"

static __always_inline void take_sample(void *ctx, struct sample_rec *r, u64 id, u64 at)
{
	long n;

	r->head.kind = REC_SAMPLE;
	r->head.tid = (u32)id;
	r->head.at = at;
	r->tgid = id >> 32;
	/* A sample taken in user mode has no kernel stack. */
	n = bpf_get_stack(ctx, r->kstack, sizeof(r->kstack), 0);
	r->n_kstack = frames(n);
	r->user = n <= 0;
	r->n_ustack = frames(bpf_get_stack(ctx, r->ustack, sizeof(r->ustack), BPF_F_USER_STACK));
}

#endif

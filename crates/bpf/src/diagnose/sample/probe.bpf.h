/* SPDX-License-Identifier: (LGPL-2.1 OR BSD-2-Clause) */
/* Samples the subject's threads with a perf software clock: kernel stack, user stack and system call. */
#include "diagnose/sample/take.bpf.h"

SEC("perf_event")
int on_sample(void *ctx)
{
	u64 id = bpf_get_current_pid_tgid(), at = bpf_ktime_get_ns();
	struct sample_rec *r;

	if (!subject_scope(id >> 32))
		return 0;
	/* Before the sample, so that user space has it when the sample comes. */
	emit_interpreted(id, 0, at);
	r = RESERVE(sample_rec);
	if (!r)
		return 0;
	take_sample(ctx, r, id, at);
	r->nr = r->user ? -1 : task_syscall(current_task());
	SUBMIT(r);
	return 0;
}

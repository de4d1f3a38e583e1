/* SPDX-License-Identifier: (LGPL-2.1 OR BSD-2-Clause) */
/* CPU samples by the software clock: what the subject's threads run, with kernel and user stack. */

SEC("perf_event")
int on_sample(void *ctx)
{
	u64 id = bpf_get_current_pid_tgid();
	struct sample_rec *r;
	long n;

	if (!subject_scope(id >> 32))
		return 0;
	r = RESERVE(sample_rec);
	if (!r)
		return 0;
	r->head.kind = REC_SAMPLE;
	r->head.tid = (u32)id;
	r->head.at = bpf_ktime_get_ns();
	r->tgid = id >> 32;
	/* A sample taken in user mode has no kernel stack. */
	n = bpf_get_stack(ctx, r->kstack, sizeof(r->kstack), 0);
	r->n_kstack = frames(n);
	r->user = n <= 0;
	r->nr = r->user ? -1 : task_syscall(bpf_get_current_task_btf());
	r->n_ustack = frames(bpf_get_stack(ctx, r->ustack, sizeof(r->ustack), BPF_F_USER_STACK));
	SUBMIT(r);
	return 0;
}

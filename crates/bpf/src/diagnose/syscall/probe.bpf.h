/* SPDX-License-Identifier: (LGPL-2.1 OR BSD-2-Clause) */
/* Counts the system calls of each thread by number and kind of file descriptor, with their time on and off the CPU. */

/* The current thread, if it belongs to the subject. If it had no event in this slice, it has run since the slice began. */
static __always_inline struct thread *running_thread(void)
{
	struct thread *t = thread_of(bpf_get_current_task_btf());

	if (!t)
		return 0;
	thread_enter_slice(t);
	if (t->state == TS_UNKNOWN)
		t->state = TS_ON;
	return t;
}

SEC("tp_btf/sys_enter")
int BPF_PROG(on_sys_enter, struct pt_regs *regs, long id)
{
	struct descriptor fd;
	struct thread *t;
	u64 now;

	if (!active)
		return 0;
	t = running_thread();
	if (!t)
		return 0;
	count(CNT_EVENTS);
	now = bpf_ktime_get_ns();
	t->sys_nr = id;
	t->sys_t0 = now;
	t->sys_on0 = on_cpu_so_far(t, now);
	/* The kind is read on entry, because at the exit the descriptor may be closed or refer to another file. */
	task_descriptor(bpf_get_current_task_btf(), id, false, &fd);
	t->sys_fd = fd.kind;
	if (fd.kind == FD_TCP && call_is(id, CALL_SPLICES))
		splice_seen = 1;
	return 0;
}

SEC("tp_btf/sys_exit")
int BPF_PROG(on_sys_exit, struct pt_regs *regs, long ret)
{
	struct thread *t;

	if (!active)
		return 0;
	t = running_thread();
	if (!t)
		return 0;
	/* The user stack of a stall can only be read when the thread is the current task. */
	if (t->want_ustack)
		emit_user_stack(ctx, t);
	add_call(t, ret, bpf_ktime_get_ns());
	if (ret >= 0 && call_is(syscall_nr(regs), CALL_ACCEPTS))
		emit_accept(ret);
	return 0;
}

/* SPDX-License-Identifier: (LGPL-2.1 OR BSD-2-Clause) */
/* Counts the system calls of each thread by number and kind of file descriptor, with their time on and off the CPU. */

/* The current thread, if it belongs to the subject. If it had no event in this slice, it has run since the slice began. */
static __always_inline struct thread *running_thread(void)
{
	struct thread *t = thread_of(current_task());

	if (!t)
		return 0;
	thread_enter_slice(t);
	if (t->state == TS_UNKNOWN)
		t->state = TS_ON;
	return t;
}

/* With this many frames or more, the program keeps frame pointers. */
#define FRAMES_WHOLE 4
/* The most copies of the stack's memory, for each thread. */
#define MEMORY_COPIES_MAX 8

static __always_inline u64 user_sp(struct pt_regs *regs)
{
	return regs->sp;
}

/* Copies the top of the user stack, from which user space finds the callers by the program's call frame information. */
static __always_inline void emit_user_memory(struct pt_regs *regs, struct thread *t)
{
	struct user_memory_rec *r;
	u64 sp = user_sp(regs);
	u32 n = 0;

	/* The same stack pointer is most often the same sleep again. */
	if (t->memory_sp == sp || t->memory_copies >= MEMORY_COPIES_MAX)
		return;
	r = RESERVE(user_memory_rec);
	if (!r)
		return;
	t->memory_sp = sp;
	t->memory_copies++;
	r->head.kind = REC_USER_MEMORY;
	r->head.tid = t->tid;
	r->head.at = 0;
	r->tgid = t->tgid;
	r->seq = t->seq;
#if defined(__TARGET_ARCH_x86)
	r->ip = regs->ip;
	r->fp = regs->bp;
	r->lr = 0;
#else
	r->ip = regs->pc;
	r->fp = regs->regs[29];
	r->lr = regs->regs[30];
#endif
	r->sp = sp;
	r->pad = 0;
#pragma unroll
	for (int i = 0; i < MEMORY_BLOCKS; i++) {
		if (bpf_probe_read_user(r->memory + i * MEMORY_BLOCK, MEMORY_BLOCK, (void *)(sp + i * MEMORY_BLOCK)))
			break;
		n += MEMORY_BLOCK;
	}
	r->n_memory = n;
	SUBMIT(r);
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
	now = slice_now();
	t->sys_nr = id;
	t->sys_t0 = now;
	t->sys_on0 = on_cpu_so_far(t, now);
	/* The kind is read on entry, because at the exit the descriptor may be closed or refer to another file. */
	call_descriptor(current_task(), regs, id, false, &fd);
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
	if (t->want_ustack) {
		if (emit_user_stack(ctx, t, user_sp(regs)) < FRAMES_WHOLE)
			emit_user_memory(regs, t);
		emit_interpreted(bpf_get_current_pid_tgid(), t->seq, 0);
	}
	add_call(t, ret, slice_now());
	if (ret >= 0 && call_is(syscall_nr(regs), CALL_ACCEPTS))
		emit_accept(ret);
	return 0;
}

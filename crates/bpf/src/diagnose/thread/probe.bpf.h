/* SPDX-License-Identifier: (LGPL-2.1 OR BSD-2-Clause) */
/*
 * Divides the time of a thread by state: on a CPU, blocked, waiting for a CPU, throttled. Every context switch ends an interval.
 * The system call and the file descriptor of a blocked interval are read from the thread's saved registers when it runs again.
 */

static __always_inline struct thread *track_thread(struct task_struct *task)
{
	struct thread *t = new_thread(task);

	if (!t) {
		count(CNT_UNTRACKED);
		return 0;
	}
	/* The state of a new thread is known from now on, also if no slice is on. */
	if (!t->tid) {
		t->gen = slice_gen;
		t->since = bpf_ktime_get_ns();
		t->state = task->on_cpu ? TS_ON : task_state(task) ? TS_BLOCKED : TS_RUNNABLE;
	}
	t->tid = task->pid;
	t->tgid = task->tgid;
	return t;
}

static __always_inline void emit_off(struct task_struct *task, struct thread *t, u8 why, s32 nr, u8 fd, u64 begin, u64 ns)
{
	struct thread_stall_rec *r = RESERVE(thread_stall_rec);

	if (!r)
		return;
	fill_stall(r, t, why, nr, fd, begin, ns);
	r->n_kstack = frames(bpf_get_task_stack(task, r->kstack, sizeof(r->kstack), 0));
	SUBMIT(r);
	if (why == OFF_BLOCKED)
		t->want_ustack = 1;
}

/*
 * Reports an interval off the CPU whose last part is a wait for a CPU: the thread's group was out of quota for the first `throttled` ns of
 * this.
 */
static __always_inline void emit_divided(struct thread *t, struct off_cpu_time *o, u64 throttled)
{
	u64 since = t->since, now = o->end;
	struct descriptor none;

	if (o->wake > since) {
		o->end = o->wake;
		emit_off_cpu(t, o);
		t->since = o->wake;
	}
	no_descriptor(&none);
	o->fd = &none;
	o->woken = false;
	o->why = WHY_THROTTLED;
	o->end = o->wake = t->since + throttled;
	emit_off_cpu(t, o);
	if (o->end < now) {
		t->since = o->wake;
		o->why = WHY_PREEMPTED;
		o->end = now;
		emit_off_cpu(t, o);
	}
	t->since = since;
}

/*
 * Ends an interval off the CPU at `now` and divides it into a blocked and a runnable part. `prev_tid` is the thread that ran on
 * the CPU before. `cut`: the slice ends while the thread is still off the CPU.
 */
static __always_inline void end_off(struct task_struct *task, struct thread *t, u64 now, u32 prev_tid, bool cut)
{
	s32 nr = task_syscall(task);
	u8 state = t->state;
	u64 woken = t->wake > t->since ? t->wake : 0, blocked, waited, throttled;
	struct descriptor fd;
	struct off_cpu_time o = { .fd = &fd, .end = now, .nr = nr, .prev_tid = prev_tid, .woken = woken != 0 };

	if ((s64)(now - t->since) <= 0)
		return;
	no_descriptor(&fd);
	/* The thread left the CPU before the slice. If it runs again without a wake-up within the slice, it was not asleep. */
	if (state == TS_UNKNOWN)
		state = woken || (cut && nr >= 0) ? TS_BLOCKED : TS_RUNNABLE;
	if (state == TS_THROTTLED) {
		o.why = WHY_THROTTLED;
		o.wake = now;
		emit_off_cpu(t, &o);
		blocked = now - t->since;
		note_running(task, now);
		add_off(t, OFF_THROTTLED, nr, FD_NONE, blocked);
		if (blocked >= STALL_MIN_NS)
			emit_off(task, t, OFF_THROTTLED, nr, FD_NONE, t->since, blocked);
		return;
	}
	if (state == TS_BLOCKED)
		task_descriptor(task, nr, true, &fd);
	blocked = state == TS_RUNNABLE ? 0 : (woken ? woken : now) - t->since;
	waited = now - t->since - blocked;
	o.wake = t->since + blocked;
	o.why = state == TS_RUNNABLE ? WHY_PREEMPTED : woken ? t->why : cut ? sleep_reason(task) : WHY_SLEPT;
	if (blocked) {
		add_off(t, OFF_BLOCKED, nr, fd.kind, blocked);
		if (blocked >= STALL_MIN_NS)
			emit_off(task, t, OFF_BLOCKED, nr, fd.kind, t->since, blocked);
	}
	throttled = waited ? throttled_ns(task, o.wake, now) : 0;
	if (!throttled) {
		emit_off_cpu(t, &o);
	} else {
		emit_divided(t, &o, throttled);
		add_off(t, OFF_THROTTLED, nr, FD_NONE, throttled);
		if (throttled >= STALL_MIN_NS)
			emit_off(task, t, OFF_THROTTLED, nr, FD_NONE, now - waited, throttled);
		waited -= throttled;
	}
	if (waited) {
		add_off(t, OFF_RUNNABLE, nr, FD_NONE, waited);
		add_runq(t, waited);
		if (waited >= STALL_MIN_NS)
			emit_off(task, t, OFF_RUNNABLE, nr, FD_NONE, now - waited, waited);
	}
}

SEC("tp_btf/sched_switch")
int BPF_PROG(on_switch, bool preempt, struct task_struct *prev, struct task_struct *next)
{
	struct thread *t;
	bool throttled;
	u64 now;

	if (!active)
		return 0;
	now = slice_now();
	t = thread_of(prev);
	if (t) {
		count(CNT_EVENTS);
		thread_enter_slice(t);
		if (now > t->since)
			add_on(t, now - t->since);
		t->since = now;
		t->n_wstack = 0;
		t->wake = 0;
		throttled = is_throttled(prev);
		if (throttled)
			note_stopped(prev, now);
		if (!preempt && task_state(prev))
			t->state = TS_BLOCKED;
		else
			t->state = throttled ? TS_THROTTLED : TS_RUNNABLE;
	}
	t = thread_of(next);
	if (t) {
		count(CNT_EVENTS);
		thread_enter_slice(t);
		end_off(next, t, now, prev->pid, false);
		t->since = now;
		t->state = TS_ON;
	}
	return 0;
}

SEC("tp_btf/sched_waking")
int BPF_PROG(on_waking, struct task_struct *task)
{
	struct thread *t;
	struct task_struct *waker;
	u64 now;

	if (!active)
		return 0;
	t = thread_of(task);
	if (!t)
		return 0;
	count(CNT_EVENTS);
	thread_enter_slice(t);
	if (t->state == TS_ON || t->state == TS_RUNNABLE || t->wake > t->since)
		return 0;
	now = slice_now();
	t->wake = now;
	t->n_wstack = 0;
	waker = current_task();
	t->why = sleep_reason(task);
	t->waker_context = waker_context(waker);
	t->waker_tid = READ(waker, pid);
	if (now - t->since < STALL_MIN_NS)
		return 0;
	bpf_get_current_comm(t->waker_comm, sizeof(t->waker_comm));
	note_waker(ctx, t, t->waker_tid, READ(waker, tgid));
	return 0;
}

static __always_inline void copy_received(struct sock *sk, u32 len, bool left_over)
{
	struct thread *t = thread_of(current_task());

	if (t)
		add_copy_received(t, (u64)sk, len, left_over);
}

static __always_inline void copy_sent(struct sock *sk, u32 len)
{
	struct thread *t = thread_of(current_task());

	if (t)
		add_copy_sent(t, (u64)sk, len);
}

static __always_inline void fill_thread_dump(struct task_struct *task, struct thread *t, struct thread_dump *d, u64 now)
{
	d->at = now;
	d->cpu_ns = task->se.sum_exec_runtime;
	d->utime = task->utime;
	d->stime = task->stime;
	d->nvcsw = task->nvcsw;
	d->nivcsw = task->nivcsw;
	d->start_time = task->start_time;
	fill_account(t, d);
	__builtin_memcpy(d->comm, task->comm, sizeof(d->comm));
	d->followed = is_followed(t->tgid);
	d->port_only = subject_scope(t->tgid) == SCOPE_PORT;
}

/* Ends the interval that is open when a slice ends. A thread without an event in the slice was in one state all the time. */
static __always_inline void cut_thread(struct task_struct *task, struct thread *t, u64 at)
{
	thread_enter_slice(t);
	if (at <= t->since)
		return;
	if (t->state == TS_UNKNOWN && !t->wake)
		t->state = task->on_cpu ? TS_ON : task_state(task) ? TS_BLOCKED : TS_RUNNABLE;
	if (t->state == TS_ON)
		add_on(t, at - t->since);
	else
		end_off(task, t, at, 0, true);
	t->since = at;
}

/* Empties the ledger for the next window. */
static __always_inline void renew_thread(struct thread *t)
{
	t->on_ns = t->runq_ns = 0;
	t->runq_count = 0;
	__builtin_memset(t->runq_log2, 0, sizeof(t->runq_log2));
	t->last_recv_sk = t->copy_pairs = t->copy_bytes = t->copy_recvs = t->copy_mode_count = t->copy_left_over = 0;
	t->last_recv_len = t->copy_mode = t->copy_votes = 0;
	t->want_ustack = 0;
	/* User space keeps what it has unwound for one window. */
	t->memory_sp = 0;
	t->memory_copies = 0;
}

/* Begins to track new threads of the subject, and writes the ledgers of all. If `cut_at` is set, it first ends their open
 * intervals at that time. */
SEC("iter/task")
int dump_threads(struct bpf_iter__task *ctx)
{
	struct task_struct *task = ctx->task;
	struct thread_dump d = {};
	struct thread *t;

	if (!task || (task->flags & PF_KTHREAD) || !subject_scope(task->tgid))
		return 0;
	t = track_thread(task);
	if (!t)
		return 0;
	if (cut_at)
		cut_thread(task, t, cut_at);
	fill_thread_dump(task, t, &d, bpf_ktime_get_ns());
	bpf_seq_write(ctx->meta->seq, &d, sizeof(d));
	if (renew)
		renew_thread(t);
	return 0;
}

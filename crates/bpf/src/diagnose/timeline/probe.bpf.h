/* SPDX-License-Identifier: (LGPL-2.1 OR BSD-2-Clause) */
/*
 * Reports single events, from which user space computes the critical path of requests: each interval of a thread off the CPU,
 * and each call that sent or received data on a socket or accepted a connection. These are the most frequent records, so they
 * are small.
 */

/*
 * Set before load from the kernel's BTF: the offset of a CPU's preempt count (or of the structure that has it) from the CPU's run
 * queue. A ksym would be simpler, but it needs CONFIG_KALLSYMS_ALL. On arm64 the count is in the task, and this is 0.
 */
const volatile s64 preempt_count_from_rq = 0;

/* Returns false if the preempt count cannot be read on this kernel. */
static __always_inline bool read_preempt_count(struct task_struct *current_task, u32 *value)
{
#if defined(__TARGET_ARCH_x86)
	u64 at;

	if (!preempt_count_from_rq || !bpf_core_field_exists(current_task->se.cfs_rq))
		return false;
	at = (u64)BPF_CORE_READ(current_task, se.cfs_rq, rq) + preempt_count_from_rq;
	if (bpf_core_type_exists(struct pcpu_hot))
		at += bpf_core_field_offset(struct pcpu_hot, preempt_count);
	return !bpf_probe_read_kernel(value, sizeof(*value), (void *)at);
#else
	*value = READ(current_task, thread_info.preempt.count);
	return true;
#endif
}

/*
 * The context of a wake-up by the current task. In an interrupt, the current task is not the waker. With softirqs disabled it
 * delivers a packet, such as what a VPN in user space writes to its TUN device.
 */
static __always_inline u8 waker_context(struct task_struct *waker)
{
	u32 value;

	if (read_preempt_count(waker, &value)) {
		if (value & HARDIRQ_OR_NMI)
			return WAKER_HARDIRQ;
		if (value & SOFTIRQ_OR_DISABLED)
			return WAKER_SOFTIRQ;
		if (READ(waker, pid))
			return READ(waker, flags) & PF_KTHREAD ? WAKER_KERNEL_THREAD : WAKER_THREAD;
	}
	return READ(waker, pid) ? WAKER_UNKNOWN : WAKER_SOFTIRQ;
}

/* The reason of a sleep, for a task that is still asleep. */
static __always_inline u8 sleep_reason(struct task_struct *task)
{
	u32 state = task_state(task);

	if (state & (TASK_STOPPED_BIT | TASK_TRACED_BIT | TASK_FROZEN_BIT))
		return WHY_STOPPED;
	/* A task frozen by cgroup v2 sleeps in TASK_INTERRUPTIBLE. */
	if (bpf_core_field_exists(task->frozen) && BPF_CORE_READ_BITFIELD(task, frozen))
		return WHY_STOPPED;
	if (!(state & TASK_UNINTERRUPTIBLE))
		return WHY_SLEPT;
	return BPF_CORE_READ_BITFIELD(task, in_iowait) ? WHY_SLEPT_FOR_IO : WHY_SLEPT_UNINTERRUPTIBLY;
}

/* An interval off the CPU, as end_off() passes it on. */
struct off_cpu_time {
	struct descriptor *fd;
	u64 wake;
	u64 end;
	s32 nr;
	u32 prev_tid;
	u8 why;
	bool woken;
};

MERGED void emit_off_cpu(struct thread *t, struct off_cpu_time *o)
{
	struct off_cpu_rec *r = RESERVE(off_cpu_rec);

	if (!r)
		return;
	r->head.kind = REC_OFF_CPU;
	r->head.tid = t->tid;
	r->head.at = o->end;
	r->begin = t->since;
	r->wake = o->wake;
	r->target = o->fd->target;
	r->nr = o->nr;
	r->fd_number = o->fd->number;
	r->tgid = t->tgid;
	r->waker_tid = o->woken ? t->waker_tid : 0;
	r->prev_tid = o->prev_tid;
	r->fd = o->fd->kind;
	r->why = o->why;
	r->waker_context = o->woken ? t->waker_context : WAKER_UNKNOWN;
	r->pad = 0;
	SUBMIT(r);
}

static __always_inline void fill_call(struct call_rec *r, u32 kind, u64 cookie, u64 id, u32 op, u64 since, u64 at, u32 bytes,
				       struct frame *frame)
{
	r->head.kind = kind;
	r->head.tid = (u32)id;
	r->head.at = at;
	r->cookie = cookie;
	r->since = since;
	r->tgid = id >> 32;
	r->bytes = bytes;
	r->op = op;
	r->protocol = frame->protocol;
	r->type = frame->type;
	r->flags = frame->flags;
	r->length = frame->length;
	r->stream = frame->stream;
	r->second = frame->second;
}

/* `id` is the result of bpf_get_current_pid_tgid(). */
static __always_inline void emit_call(u64 cookie, u64 id, u32 op, u64 since, u64 at, u32 bytes, struct frame *frame)
{
	struct call_rec *r = RESERVE(call_rec);

	if (!r)
		return;
	fill_call(r, REC_CALL, cookie, id, op, since, at, bytes, frame);
	SUBMIT(r);
}

/*
 * Reports an accept() that returned the descriptor `fd`. The time of the handshake is in the socket storage of the connection.
 * It cannot be read here, because that needs a pointer that the verifier trusts. User space finds it by the cookie.
 */
static __always_inline void emit_accept(u32 fd)
{
	struct file *file = task_file(current_task(), fd);
	struct frame none = {};
	struct sock *sk;

	if (!file)
		return;
	sk = file_sock(file);
	if (sock_kind(sk) != FD_TCP)
		return;
	emit_call(id_of_socket(sk), bpf_get_current_pid_tgid(), OP_ACCEPT, 0,
		  bpf_ktime_get_ns(), 0, &none);
}

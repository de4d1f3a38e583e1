// SPDX-License-Identifier: (LGPL-2.1 OR BSD-2-Clause)
/*
 * The object for kernels without BTF. It uses only classic tracepoints and reads only their records, not kernel structures. So
 * it has no CO-RE relocation, no ksym, no storage map and no iterator.
 *
 * The layout of a record is not an ABI: real-time kernels have a longer common header, and tracepoints gain and lose fields.
 * User space reads the layout from tracefs and sets the offsets as read-only data.
 */
#include "diagnose/thread/account.bpf.h"
#include "diagnose/sample/take.bpf.h"

/* A thread, and what the btf object reads from kernel structures instead. */
struct classic_thread {
	struct thread t;
	u64 born;
	u32 call_gen;     /* the last slice in which it entered or left a system call */
	u32 n_kstack;
	u32 deep;         /* its last sleep was a stall, so the stack of the next sleep is taken */
	u32 call_fd;
	u32 new_kind;     /* the kind of the descriptor that the current call will return */
	u32 pad;
	u64 kstack[KSTACK_MAX];
};

/* The system call of a thread when the slice began, which user space reads from /proc/TID/syscall. */
struct seed {
	u32 gen;
	s32 nr;
	u8 fd;
	u8 blocked;
	u8 pad[2];
};

struct fd_key {
	u32 tgid;
	u32 fd;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__type(key, u32);
	__type(value, struct classic_thread);
} threads SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__type(key, u32);
	__type(value, struct seed);
} seeds SEC(".maps");

/* The kinds of file descriptors. User space sets them from /proc/PID/fd; accept(), socket() and close() update them. Those of processes
 * that have ended are left, and give way. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 16384);
	__type(key, struct fd_key);
	__type(value, u8);
} kinds SEC(".maps");

/* The ports of the subject's flows: local << 16 | remote. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16384);
	__type(key, u32);
	__type(value, u8);
} ports SEC(".maps");

/* The entry of a new thread, which is too large for the stack. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct classic_thread);
} blank SEC(".maps");

/* Set before load: offsets of fields. The defaults are those of Linux 6.18. */
const volatile u32 off_prev_pid = 24;
const volatile u32 off_prev_state = 32;
const volatile u32 off_next_pid = 56;
const volatile u32 off_waking_pid = 24;
const volatile u32 off_enter_id = 8;
const volatile u32 off_enter_args = 16;
const volatile u32 off_exit_ret = 16;
const volatile u32 off_new_pid = 8;
const volatile u32 off_new_flags = 32;
const volatile u32 off_retrans_sport = 28;
const volatile u32 off_retrans_dport = 30;
const volatile u32 off_rst_in_sport = 16;
const volatile u32 off_rst_in_dport = 18;
const volatile u32 off_rst_out_sport = 34;
const volatile u32 off_rst_out_dport = 62;
/* Since 6.11 the ports of tcp_send_reset are in socket addresses, in network byte order. */
const volatile u32 rst_out_swapped = 1;

const volatile s32 nr_close = -2;
const volatile s32 nr_accept = -2;
const volatile s32 nr_accept4 = -2;
const volatile s32 nr_socket = -2;

/*
 * The verifier accepts a load from the context only at a constant offset. So a field at its usual offset is loaded directly, and
 * one at another offset is read by a helper. The offset is read-only data, so the verifier removes the unused branch.
 */
#define FIELD(ctx, type, offset, usual) ({						\
	type __v = 0;									\
	if ((offset) == (usual))							\
		__v = *(volatile type *)((char *)(ctx) + (usual));			\
	else										\
		bpf_probe_read_kernel(&__v, sizeof(__v), (char *)(ctx) + (offset));	\
	__v;										\
})

#define CLONE_THREAD 0x00010000
/* TASK_REPORT | TASK_REPORT_IDLE (include/linux/sched.h). A higher bit only says "preempted". */
#define SLEEP_STATES 0xff

static __always_inline struct classic_thread *thread_of(u32 tid)
{
	return tid ? bpf_map_lookup_elem(&threads, &tid) : 0;
}

static __always_inline u8 kind_of(u32 tgid, u32 fd)
{
	struct fd_key key = { .tgid = tgid, .fd = fd };
	u8 *kind = bpf_map_lookup_elem(&kinds, &key);

	return kind ? *kind : FD_NONE;
}

/* The system call that a thread is in. If it was entered before the slice, it is known from the scan by user space. */
static __always_inline s32 call_of(struct classic_thread *c, u8 *fd, bool *blocked)
{
	struct seed *seed;
	u32 tid = c->t.tid;

	*fd = FD_NONE;
	*blocked = false;
	if (c->call_gen == slice_gen) {
		if (!c->t.sys_t0)
			return -1;
		*fd = c->t.sys_fd;
		return c->t.sys_nr;
	}
	seed = bpf_map_lookup_elem(&seeds, &tid);
	if (!seed || seed->gen != slice_gen)
		return -1;
	*fd = seed->fd;
	*blocked = seed->blocked;
	return seed->nr;
}

/*
 * A stack can only be taken of the current task, so it is taken when the thread leaves the CPU. At every switch that would cost
 * more than everything else together, so it is done only for a thread whose last sleep was a stall. A thread that stalls
 * repeatedly has stacks from its second stall on. The user stack is taken when the system call returns.
 */
static __always_inline void emit_off(struct classic_thread *c, u8 why, s32 nr, u8 fd, u64 begin, u64 ns)
{
	struct thread_stall_rec *r = RESERVE(thread_stall_rec);

	if (!r)
		return;
	fill_stall(r, &c->t, why, nr, fd, begin, ns);
	if (why == OFF_BLOCKED) {
		if (c->n_kstack) {
			__builtin_memcpy(r->kstack, c->kstack, sizeof(r->kstack));
			r->n_kstack = c->n_kstack;
		}
		c->t.want_ustack = nr >= 0;
	}
	SUBMIT(r);
}

/* Ends an interval off the CPU and divides it into a blocked and a runnable part. Throttled time counts as runnable here. */
static __always_inline void end_off(struct classic_thread *c, u64 now)
{
	struct thread *t = &c->t;
	u64 woken = t->wake > t->since ? t->wake : 0, blocked, waited;
	bool seen_blocked;
	u8 fd, state = t->state;
	s32 nr = call_of(c, &fd, &seen_blocked);

	if ((s64)(now - t->since) <= 0)
		return;
	if (state == TS_UNKNOWN)
		state = woken || seen_blocked ? TS_BLOCKED : TS_RUNNABLE;
	blocked = state == TS_RUNNABLE ? 0 : (woken ? woken : now) - t->since;
	waited = now - t->since - blocked;
	if (blocked) {
		add_off(t, OFF_BLOCKED, nr, fd, blocked);
		if (blocked >= STALL_MIN_NS)
			emit_off(c, OFF_BLOCKED, nr, fd, t->since, blocked);
		c->deep = blocked >= STALL_MIN_NS;
	}
	if (waited) {
		add_off(t, OFF_RUNNABLE, nr, FD_NONE, waited);
		add_runq(t, waited);
		if (waited >= STALL_MIN_NS)
			emit_off(c, OFF_RUNNABLE, nr, FD_NONE, now - waited, waited);
	}
}

static __always_inline void leave_cpu(void *ctx, struct classic_thread *c, u64 state, u64 now)
{
	struct thread *t = &c->t;

	count(CNT_EVENTS);
	thread_enter_slice(t);
	/* The kernel does not run a program while another one runs on the same CPU, so a switch may have been missed. */
	if (t->state == TS_BLOCKED || t->state == TS_RUNNABLE)
		end_off(c, now);
	else if (now > t->since)
		add_on(t, now - t->since);
	t->since = now;
	t->n_wstack = 0;
	t->wake = 0;
	t->state = state & SLEEP_STATES ? TS_BLOCKED : TS_RUNNABLE;
	c->n_kstack = 0;
	if (t->state == TS_BLOCKED && c->deep)
		c->n_kstack = frames(bpf_get_stack(ctx, c->kstack, sizeof(c->kstack), 0));
}

SEC("tp/sched/sched_switch")
int on_switch(void *ctx)
{
	struct classic_thread *c;
	u64 now;

	if (!active)
		return 0;
	c = thread_of(FIELD(ctx, u32, off_prev_pid, 24));
	now = slice_now();
	if (c)
		leave_cpu(ctx, c, FIELD(ctx, u64, off_prev_state, 32), now);
	c = thread_of(FIELD(ctx, u32, off_next_pid, 56));
	if (c) {
		count(CNT_EVENTS);
		thread_enter_slice(&c->t);
		if (c->t.state == TS_ON)
			add_on(&c->t, now - c->t.since);
		else
			end_off(c, now);
		c->t.since = now;
		c->t.state = TS_ON;
	}
	return 0;
}

SEC("tp/sched/sched_waking")
int on_waking(void *ctx)
{
	struct classic_thread *c;
	struct thread *t;
	u64 now, id;

	if (!active)
		return 0;
	c = thread_of(FIELD(ctx, u32, off_waking_pid, 24));
	if (!c)
		return 0;
	t = &c->t;
	count(CNT_EVENTS);
	thread_enter_slice(t);
	if (t->state == TS_ON || t->state == TS_RUNNABLE || t->wake > t->since)
		return 0;
	now = slice_now();
	t->wake = now;
	t->n_wstack = 0;
	if (now - t->since < STALL_MIN_NS)
		return 0;
	id = bpf_get_current_pid_tgid();
	bpf_get_current_comm(t->waker_comm, sizeof(t->waker_comm));
	note_waker(ctx, t, (u32)id, id >> 32);
	return 0;
}

/* The current thread, if it belongs to the subject. If it had no event in this slice, it has run since the slice began. */
static __always_inline struct classic_thread *running_thread(void)
{
	struct classic_thread *c = thread_of((u32)bpf_get_current_pid_tgid());

	if (!c)
		return 0;
	thread_enter_slice(&c->t);
	if (c->t.state == TS_UNKNOWN)
		c->t.state = TS_ON;
	return c;
}

/* The kind of descriptor that socket(domain, type) returns. */
static __always_inline u8 made_kind(u64 domain, u64 type)
{
	if (domain == AF_UNIX)
		return FD_UNIX;
	if (domain != AF_INET && domain != AF_INET6)
		return FD_SOCKET;
	return (type & 0xf) == 1 ? FD_TCP : (type & 0xf) == 2 ? FD_UDP : FD_SOCKET;
}

SEC("tp/raw_syscalls/sys_enter")
int on_sys_enter(void *ctx)
{
	struct classic_thread *c;
	struct thread *t;
	u64 now, first;
	s32 nr;

	if (!active)
		return 0;
	c = running_thread();
	if (!c)
		return 0;
	t = &c->t;
	count(CNT_EVENTS);
	nr = FIELD(ctx, u64, off_enter_id, 8);
	first = FIELD(ctx, u64, off_enter_args, 16);
	now = slice_now();
	c->call_gen = slice_gen;
	c->new_kind = FD_NONE;
	t->sys_nr = nr;
	t->sys_t0 = now;
	t->sys_on0 = on_cpu_so_far(t, now);
	t->sys_fd = FD_NONE;
	if (nr >= 0 && nr < 512 && (call_flags[nr & 511] & CALL_FD)) {
		c->call_fd = first;
		t->sys_fd = kind_of(t->tgid, first);
	}
	if (nr == nr_close) {
		struct fd_key key = { .tgid = t->tgid, .fd = first };

		bpf_map_delete_elem(&kinds, &key);
	} else if (nr == nr_accept || nr == nr_accept4) {
		c->new_kind = t->sys_fd;
	} else if (nr == nr_socket) {
		c->new_kind = made_kind(first, FIELD(ctx, u64, off_enter_args + 8, 24));
	}
	return 0;
}

SEC("tp/raw_syscalls/sys_exit")
int on_sys_exit(void *ctx)
{
	struct classic_thread *c;
	struct thread *t;
	s64 ret;
	u8 flags;

	if (!active)
		return 0;
	c = running_thread();
	if (!c)
		return 0;
	t = &c->t;
	c->call_gen = slice_gen;
	/* The user stack of a stall can only be read when the thread is the current task. */
	if (t->want_ustack)
		emit_user_stack(ctx, t, 0);
	if (!t->sys_t0)
		return 0;
	ret = FIELD(ctx, s64, off_exit_ret, 16);
	if (ret >= 0 && c->new_kind) {
		struct fd_key key = { .tgid = t->tgid, .fd = ret };
		u8 kind = c->new_kind;

		bpf_map_update_elem(&kinds, &key, &kind, BPF_ANY);
	}
	if (ret > 0 && t->sys_fd == FD_TCP) {
		flags = call_flags[t->sys_nr & 511];
		if (flags & CALL_RECEIVES)
			add_copy_received(t, c->call_fd + 1ULL, ret, false);
		else if (flags & CALL_SENDS)
			add_copy_sent(t, c->call_fd + 1ULL, ret);
	}
	add_call(t, ret, slice_now());
	return 0;
}

/* task_newtask is used instead of sched_process_fork because it has the clone flags, which distinguish threads from processes. */
SEC("tp/task/task_newtask")
int on_new_task(void *ctx)
{
	u32 tgid = bpf_get_current_pid_tgid() >> 32, tid, zero = 0;
	struct classic_thread *c;
	u8 scope = subject_scope(tgid);

	if (!scope)
		return 0;
	tid = FIELD(ctx, u32, off_new_pid, 8);
	if (!(FIELD(ctx, u64, off_new_flags, 32) & CLONE_THREAD)) {
		if (!follow_children)
			return 0;
		tgid = tid;
		bpf_map_update_elem(&tgids, &tgid, &scope, BPF_ANY);
	}
	c = bpf_map_lookup_elem(&blank, &zero);
	if (!c)
		return 0;
	c->born = bpf_ktime_get_ns();
	c->call_gen = slice_gen;
	c->t.gen = slice_gen;
	c->t.since = c->born;
	c->t.state = TS_RUNNABLE;
	c->t.tid = tid;
	c->t.tgid = tgid;
	if (bpf_map_update_elem(&threads, &tid, c, BPF_ANY))
		count(CNT_UNTRACKED);
	return 0;
}

SEC("tp/sched/sched_process_exit")
int on_exit(void *ctx)
{
	u32 tid = (u32)bpf_get_current_pid_tgid();
	struct classic_thread *c = thread_of(tid);
	struct thread_end_rec *r;
	u64 now;

	if (!c)
		return 0;
	now = bpf_ktime_get_ns();
	if (active) {
		thread_enter_slice(&c->t);
		if (now > c->t.since)
			add_on(&c->t, now - c->t.since);
	}
	r = RESERVE(thread_end_rec);
	if (r) {
		__builtin_memset(r, 0, sizeof(*r));
		r->head.kind = REC_THREAD_END;
		r->head.tid = tid;
		r->head.at = now;
		r->dump.at = now;
		r->dump.start_time = c->born;
		fill_account(&c->t, &r->dump);
		bpf_get_current_comm(r->dump.comm, sizeof(r->dump.comm));
		SUBMIT(r);
	}
	bpf_map_delete_elem(&threads, &tid);
	/* A service with a process for each connection would fill the table. Few processes go on without their first thread; of those,
	 * later children are not seen. */
	forget_process(tid);
	return 0;
}

static __always_inline void count_ours(u32 which, u16 sport, u16 dport)
{
	u32 key = (u32)sport << 16 | dport;

	if (bpf_map_lookup_elem(&ports, &key))
		count(which);
}

SEC("tp/tcp/tcp_retransmit_skb")
int on_retransmit(void *ctx)
{
	count_ours(CNT_RETRANS, FIELD(ctx, u16, off_retrans_sport, 28), FIELD(ctx, u16, off_retrans_dport, 30));
	return 0;
}

SEC("tp/tcp/tcp_send_reset")
int on_reset_sent(void *ctx)
{
	u16 sport = FIELD(ctx, u16, off_rst_out_sport, 34), dport = FIELD(ctx, u16, off_rst_out_dport, 62);

	if (rst_out_swapped) {
		sport = __builtin_bswap16(sport);
		dport = __builtin_bswap16(dport);
	}
	count_ours(CNT_RST_OUT, sport, dport);
	return 0;
}

SEC("tp/tcp/tcp_receive_reset")
int on_reset_received(void *ctx)
{
	count_ours(CNT_RST_IN, FIELD(ctx, u16, off_rst_in_sport, 16), FIELD(ctx, u16, off_rst_in_dport, 18));
	return 0;
}

SEC("perf_event")
int on_sample(void *ctx)
{
	u64 id = bpf_get_current_pid_tgid();
	struct classic_thread *c;
	struct sample_rec *r;

	if (!subject_scope(id >> 32))
		return 0;
	r = RESERVE(sample_rec);
	if (!r)
		return 0;
	take_sample(ctx, r, id, bpf_ktime_get_ns());
	c = thread_of((u32)id);
	/* The system call is known only during a slice. */
	r->nr = !r->user && active && c && c->call_gen == slice_gen && c->t.sys_t0 ? c->t.sys_nr : -1;
	SUBMIT(r);
	return 0;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/* SPDX-License-Identifier: (LGPL-2.1 OR BSD-2-Clause) */
/* What each thread asks of the kernel: calls by number and kind of descriptor, with their time on and off the CPU. */

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16384);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct sys_key);
	__type(value, struct sys_value);
} sys_cells SEC(".maps");

static __always_inline u64 on_cpu_so_far(struct thread *t, u64 now)
{
	return t->on_ns + (t->state == TS_ON && now > t->since ? now - t->since : 0);
}

/* A running thread without an event in this slice has been on its CPU since the slice began. */
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
	/* The kind of descriptor is taken on entry: close() and a reused number would spoil it on exit. */
	t->sys_fd = task_fd_kind(bpf_get_current_task_btf(), id);
	return 0;
}

static __always_inline void emit_user_stack(void *ctx, struct thread *t)
{
	struct user_stack_rec *r = RESERVE(user_stack_rec);

	t->want_ustack = 0;
	if (!r)
		return;
	r->head.kind = REC_USER_STACK;
	r->head.tid = t->tid;
	r->head.at = 0;
	r->tgid = t->tgid;
	r->seq = t->seq;
	r->n_ustack = frames(bpf_get_stack(ctx, r->ustack, sizeof(r->ustack), BPF_F_USER_STACK));
	SUBMIT(r);
}

SEC("tp_btf/sys_exit")
int BPF_PROG(on_sys_exit, struct pt_regs *regs, long ret)
{
	struct sys_value zero = {}, *v;
	struct sys_key key = {};
	struct thread *t;
	u64 now, on;

	if (!active)
		return 0;
	t = running_thread();
	if (!t)
		return 0;
	/* The user stack of a long sleep: only here is the sleeper the current task. */
	if (t->want_ustack)
		emit_user_stack(ctx, t);
	if (!t->sys_t0)
		return 0;
	now = bpf_ktime_get_ns();
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
		else if (ret > 0 && key.nr >= 0 && key.nr < 512 && (call_flags[key.nr & 511] & 2))
			v->bytes += ret;
		v->on_ns += on;
		v->off_ns += now - t->sys_t0 > on ? now - t->sys_t0 - on : 0;
	}
	t->sys_t0 = 0;
	return 0;
}

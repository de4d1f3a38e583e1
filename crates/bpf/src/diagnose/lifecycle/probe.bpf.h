/* SPDX-License-Identifier: (LGPL-2.1 OR BSD-2-Clause) */
/* The begin and end of the subject's sockets, threads and processes. These events are rare, so the programs are always
 * attached. */

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct flow_dump);
} dump_scratch SEC(".maps");

static __always_inline void fill_key(struct sock *sk, struct flow *st, struct flow_key *k)
{
	__builtin_memset(k, 0, sizeof(*k));
	k->family = READ(sk, __sk_common.skc_family);
	k->sport = READ(sk, __sk_common.skc_num);
	k->dport = bpf_ntohs(READ(sk, __sk_common.skc_dport));
	k->state = READ(sk, __sk_common.skc_state);
	k->passive = st->passive;
	k->netns = BPF_CORE_READ(sk, __sk_common.skc_net.net, ns.inum);
	fill_addresses(sk, k->saddr, k->daddr);
}

/* As tcp_get_info_chrono_stats() (net/ipv4/tcp.c), in jiffies. */
static __always_inline void fill_chrono(struct tcp_sock *tp, struct snapshot *s)
{
	u32 stat[3] = { READ(tp, chrono_stat[0]), READ(tp, chrono_stat[1]), READ(tp, chrono_stat[2]) };
	u8 type = READ_BITS(tp, chrono_type);

	if (type >= 1 && type <= 3) {
		u32 run = (u32)bpf_jiffies64() - READ(tp, chrono_start);

		if (type == 1)
			stat[0] += run;
		else if (type == 2)
			stat[1] += run;
		else
			stat[2] += run;
	}
	s->busy_j = stat[0] + stat[1] + stat[2];
	s->rwnd_j = stat[1];
	s->sndbuf_j = stat[2];
}

static __always_inline void fill_snapshot(struct sock *sk, struct tcp_sock *tp, struct snapshot *s, u64 now)
{
	struct fields f;

	__builtin_memset(s, 0, sizeof(*s));
	load_fields(sk, tp, &f);
	s->at = now;
	s->bytes_acked = READ(tp, bytes_acked);
	s->bytes_received = READ(tp, bytes_received);
	s->segs_out = READ(tp, segs_out);
	s->segs_in = READ(tp, segs_in);
	s->data_segs_out = READ(tp, data_segs_out);
	s->total_retrans = READ(tp, total_retrans);
	if (bpf_core_field_exists(tp->total_rto))
		s->total_rto = READ(tp, total_rto);
	fill_chrono(tp, s);
	s->srtt_us = READ(tp, srtt_us) >> 3;
	s->min_rtt_us = READ(tp, rtt_min.s[0].v);
	s->rto_j = READ(tp, inet_conn.icsk_rto);
	s->cwnd = f.cwnd;
	s->ssthresh = READ(tp, snd_ssthresh);
	s->mss = f.mss;
	s->snd_wnd = f.snd_wnd;
	s->rcv_wnd = READ(tp, rcv_wnd);
	s->packets_out = f.packets_out;
	s->unsent = f.unsent;
	s->unread = f.unread;
	s->sndbuf = READ(sk, sk_sndbuf);
	s->rcvbuf = READ(sk, sk_rcvbuf);
	s->state = f.state;
	s->ca_state = f.ca_state;
	s->nonagle = f.nonagle;
	s->userlocks = READ_BITS(sk, sk_userlocks);
	s->app_limited = READ_BITS(tp, rate_app_limited);
}

/* Ends the open run at the end of a slice or of a socket. */
static __always_inline void cut_flow(struct sock *sk, struct tcp_sock *tp, struct flow *st, u8 release, u64 at)
{
	struct fields f;
	bool unseen;

	flow_enter_slice(st);
	load_fields(sk, tp, &f);
	/*
	 * No call was seen yet: the kernel knows when data was last sent and received, in jiffies. A request and its reply within one
	 * are a client that pauses.
	 */
	unseen = !st->last_op;
	if (unseen)
		st->last_op = (s32)(READ(tp, lsndtime) - READ(tp, inet_conn.icsk_ack.lrcvtime)) > 0 ? 2 : 1;
	flow_event(st, &f, release, at);
	if (unseen)
		st->last_op = 0;
	close_run(st);
	st->run_state = RUN_NONE;
	st->run_begin = st->last;
}

/* Empties the ledger for the next window. The connection stays known, with the process and thread that used it last. */
static __always_inline void renew_flow(struct flow *st)
{
	st->last_op = st->sends_in_row = 0;
	st->last_send = 0;
	bpf_probe_read_kernel(&st->calls, sizeof(*st) - __builtin_offsetof(struct flow, calls), (void *)&no_flow.calls);
}

/* Writes the ledger of a socket, which is ended before if a slice has ended. */
static __always_inline int dump_flow(struct bpf_iter_meta *meta, struct sock *sk)
{
	struct flow_dump *d;
	struct tcp_sock *tp;
	struct flow *st;
	u32 zero = 0;
	u8 state;

	st = stored_flow(sk);
	tp = as_tcp(sk);
	d = bpf_map_lookup_elem(&dump_scratch, &zero);
	if (!st || !tp || !d || st->sk != (u64)sk)
		return 0;
	state = READ(sk, __sk_common.skc_state);
	if (state == LISTEN || state == CLOSE)
		return 0;
	if (cut_at)
		cut_flow(sk, tp, st, RL_CUT, cut_at);
	fill_key(sk, st, &d->key);
	fill_snapshot(sk, tp, &d->snap, bpf_ktime_get_ns());
	bpf_probe_read_kernel(&d->flow, sizeof(d->flow), st);
	bpf_seq_write(meta->seq, d, sizeof(*d));
	if (renew)
		renew_flow(st);
	return 0;
}

#ifndef OLDER
SEC("iter/bpf_sk_storage_map")
int dump_flows(struct bpf_iter__bpf_sk_storage_map *ctx)
{
	struct sock *sk = ctx->sk;

	return sk && ctx->value ? dump_flow(ctx->meta, sk) : 0;
}
#else
SEC("iter/bpf_map_elem")
int dump_flows(struct bpf_iter__bpf_map_elem *ctx)
{
	u64 *key = ctx->key;

	return key ? dump_flow(ctx->meta, (struct sock *)*key) : 0;
}
#endif

/* Whether the connection sent or received data lately. */
static __always_inline bool carried_data(struct sock *sk)
{
	u32 now = (u32)bpf_jiffies64();
	struct tcp_sock *tp = as_tcp(sk);

	/* The SYN is acknowledged as one byte. */
	if (!tp || (!BPF_CORE_READ(tp, bytes_received) && BPF_CORE_READ(tp, bytes_acked) <= 1))
		return false;
	return now - BPF_CORE_READ(tp, lsndtime) < recent_jiffies ||
	       now - BPF_CORE_READ(tp, inet_conn.icsk_ack.lrcvtime) < recent_jiffies;
}

/* The socket behind a descriptor that the iterator found; 0 if it is none. */
static __always_inline struct sock *socket_of(struct file *file)
{
#ifdef OLDER
	return fd_kinds[(file_mode(file) >> 12) & 15] == FD_SOCKET ? file_sock(file) : 0;
#else
	struct socket *socket = (struct socket *)bpf_sock_from_file(file);

	return socket ? socket->sk : 0;
#endif
}

/*
 * As dump_flows, for kernels that refuse iterators over the elements of maps: looks for the tracked sockets among the descriptors of all
 * processes. One that several of them have open is written as often, the first time with its ledger.
 */
SEC("iter/task_file")
int dump_open_flows(struct bpf_iter__task_file *ctx)
{
	struct file *file = ctx->file;
	struct sock *sk;

	if (!ctx->task || !file)
		return 0;
	sk = socket_of(file);
	return sk && READ(sk, sk_protocol) == IPPROTO_TCP ? dump_flow(ctx->meta, sk) : 0;
}

/* Begins to track the open sockets of the subject's processes, and reports which process has which socket open. */
SEC("iter/task_file")
int dump_owners(struct bpf_iter__task_file *ctx)
{
	struct task_struct *task = ctx->task;
	struct file *file = ctx->file;
	struct owner_rec o = {};
	struct flow *st;
	struct sock *sk;
	u8 scope;

	if (!task || !file || task->pid != task->tgid)
		return 0;
	scope = subject_scope(task->tgid);
	if (!scope)
		return 0;
	sk = socket_of(file);
	if (sk && is_udp(sk) && (scope == SCOPE_ALL || port_matches(sk)))
		track_udp(sk);
	if (!sk || READ(sk, sk_protocol) != IPPROTO_TCP)
		return 0;
	if (READ(sk, __sk_common.skc_family) != AF_INET && READ(sk, __sk_common.skc_family) != AF_INET6)
		return 0;
	if (scope == SCOPE_PORT && !port_matches(sk))
		return 0;
	st = stored_flow(sk);
	/* Beyond `eager_flows`, a connection is tracked at its first send or receive. So many idle connections cost nothing. */
	if (!st && n_flows >= eager_flows && READ(sk, __sk_common.skc_state) != LISTEN && !carried_data(sk))
		return 0;
	st = track(sk, false);
	if (!st)
		return 0;
	if (!st->tgid)
		st->tgid = task->tgid;
	o.cookie = st->cookie;
	o.tgid = task->tgid;
	o.fd = ctx->fd;
	bpf_seq_write(ctx->meta->seq, &o, sizeof(o));
	return 0;
}

static __always_inline void fill_end(struct sock *sk, struct tcp_sock *tp, struct flow *st, struct record_head *head, u32 kind,
				     struct flow_key *key, struct snapshot *snap, u64 now)
{
	head->kind = kind;
	head->tid = 0;
	head->at = now;
	fill_key(sk, st, key);
	fill_snapshot(sk, tp, snap, now);
	/* The tracepoint fires before the state is stored, and after inet_put_port() has cleared skc_num. */
	key->state = snap->state = CLOSE;
	key->sport = bpf_ntohs(BPF_CORE_READ((struct inet_sock *)sk, inet_sport));
}

static __always_inline void emit_end(struct sock *sk, struct tcp_sock *tp, struct flow *st, u64 now)
{
	struct flow_end_rec *r = RESERVE(flow_end_rec);

	if (!r)
		return;
	fill_end(sk, tp, st, &r->head, REC_FLOW_END, &r->dump.key, &r->dump.snap, now);
	bpf_probe_read_kernel(&r->dump.flow, sizeof(r->dump.flow), st);
	SUBMIT(r);
}

/* Copies a cell if it has time. Returns false if there is no room. */
ONCE int copy_cell(struct flow *st, struct short_flow_end_rec *r, u32 cell)
{
	u32 n;

	if (!st || !r || cell >= FS_N * RL_N)
		return true;
	if (!st->count[cell])
		return true;
	n = r->n_cells;
	if (n >= SHORT_CELLS)
		return false;
	r->cells[n].ns = st->ns[cell];
	r->cells[n].count = st->count[cell];
	r->cells[n].cell = cell;
	r->n_cells = n + 1;
	return true;
}

/* Copies the cells of a flow state. The verifier checks each of these functions once, and not for each cell. */
ONCE int copy_cells(struct flow *st, struct short_flow_end_rec *r, u32 state)
{
	int room = true;

	for (u32 release = 0; release < RL_N; release++)
		room &= copy_cell(st, r, state * RL_N + release);
	return room;
}

/* Returns false for a socket whose ledger has more cells than the short record. */
static __always_inline bool emit_short_end(struct sock *sk, struct tcp_sock *tp, struct flow *st, u64 now)
{
	struct short_flow_end_rec *r;
	int room = true;

#ifdef OLDER
	/* Each of the 150 cells would be verified by itself. */
	return false;
#endif
	r = RESERVE(short_flow_end_rec);
	if (!r)
		return true;
	r->n_cells = 0;
	r->pad = 0;
	for (u32 state = 0; state < FS_N; state++)
		room &= copy_cells(st, r, state);
	if (!room) {
		bpf_ringbuf_discard(r, BPF_RB_NO_WAKEUP);
		return false;
	}
	fill_end(sk, tp, st, &r->head, REC_SHORT_FLOW_END, &r->key, &r->snap, now);
	bpf_probe_read_kernel(r->flow, sizeof(r->flow), st);
	SUBMIT(r);
	return true;
}

/* Whether the socket was accepted at a port of `mptcp_ports`. */
static __always_inline bool accepted_at_port(struct sock *sk)
{
	u64 key;

	if (!has_mptcp_ports)
		return false;
	key = port_number(sk);
	return bpf_map_lookup_elem(&mptcp_ports, &key);
}

/*
 * What is left to send when a process closes its connection. The kernel calls tcp_probe for established ones only, so nothing is seen of
 * it, but retransmissions, until all of it has been acknowledged: the state stays as it was. A local queue or the pacing held it back
 * when the connection was closed, and may not have for long: the event that ends such a state is RL_CLOSE.
 */
static __always_inline void send_rest(struct sock *sk, struct tcp_sock *tp, struct flow *st, bool begins)
{
	u8 local = st->closed_in == FS_QDISC || st->closed_in == FS_PACED;
	struct fields f;

	load_fields(sk, tp, &f);
	if (active) {
		flow_enter_slice(st);
		if (begins || st->closed_in)
			flow_event(st, &f, begins || local ? RL_CLOSE : RL_RX_ACK, slice_now());
	}
	st->closed_in = begins ? state_of_rest(&f, st->last_op) : 0;
}

/* The process has closed the connection, and what it sent has not all been acknowledged. */
static __always_inline bool has_rest(int state)
{
	return state == FIN_WAIT1 || state == LAST_ACK || state == CLOSING;
}

SEC("tp_btf/inet_sock_set_state")
int BPF_PROG(on_state, struct sock *sk, int oldstate, int newstate)
{
	struct tcp_sock *tp;
	struct flow *st;
	u64 now;

	if (sk->sk_protocol != IPPROTO_TCP)
		return 0;
	/* A listener must be tracked before the first socket is cloned from it. */
	if (newstate == SYN_SENT || newstate == LISTEN) {
		st = flow_of_call(sk, bpf_get_current_pid_tgid() >> 32);
		if (st && newstate == SYN_SENT) {
			st->tgid = bpf_get_current_pid_tgid() >> 32;
			st->opener = 1;
			count_of(sk, st, NET_OPENED);
		} else if (st) {
			st->listener_followed = is_followed(bpf_get_current_pid_tgid() >> 32);
		}
		return 0;
	}
	st = flow_of(sk);
	if (!st && oldstate == SYN_RECV && newstate == ESTABLISHED && accepted_at_port(sk))
		st = track(sk, true);
	if (!st)
		return 0;
	if (oldstate == SYN_RECV && newstate == ESTABLISHED) {
		count_of(sk, st, NET_OPENED);
		count_accepted(sk, st);
	}
	tp = as_tcp(sk);
	if (tp && has_rest(newstate) != has_rest(oldstate))
		send_rest(sk, tp, st, has_rest(newstate));
	if (newstate != CLOSE || oldstate == LISTEN)
		return 0;
	if (n_flows)
		__sync_fetch_and_add(&n_flows, -1);
	if (!tp)
		return 0;
	count_of(sk, st, NET_CLOSED);
	now = bpf_ktime_get_ns();
	if (active)
		cut_flow(sk, tp, st, RL_CLOSE, slice_now());
	if (!between_windows && !emit_short_end(sk, tp, st, now))
		emit_end(sk, tp, st, now);
	drop_flow(sk);
	return 0;
}

SEC("tp_btf/tcp_send_reset")
int BPF_PROG(on_reset_sent, struct sock *sk)
{
	struct flow *st = sk ? flow_of(sk) : 0;

	if (!st)
		return 0;
	count_of(sk, st, NET_RST_OUT);
	if (st->opener)
		count_of(sk, st, NET_RST_BY_OPENER);
	return 0;
}

SEC("tp_btf/tcp_receive_reset")
int BPF_PROG(on_reset_received, struct sock *sk)
{
	struct flow *st = flow_of(sk);

	if (!st)
		return 0;
	count_of(sk, st, NET_RST_IN);
	if (st->passive)
		count_of(sk, st, NET_RST_FROM_OPENER);
	return 0;
}

/* A new thread of the subject's processes belongs to the subject. A child process does if `follow_children` is set. */
SEC("tp_btf/task_newtask")
int BPF_PROG(on_new_task, struct task_struct *task)
{
	u32 parent = bpf_get_current_pid_tgid() >> 32, tgid = task->tgid;
	u8 *scope = bpf_map_lookup_elem(&tgids, &parent);
	struct thread *t;

	if (!scope || !*scope || (tgid != parent && !follow_children))
		return 0;
	if (tgid != parent && bpf_map_update_elem(&tgids, &tgid, scope, BPF_ANY))
		count(CNT_UNTRACKED);
	t = track_thread(task);
	if (t && active) {
		t->gen = slice_gen;
		t->since = bpf_ktime_get_ns();
		t->state = TS_RUNNABLE;
	}
	return 0;
}

SEC("tp_btf/sched_process_exit")
int BPF_PROG(on_exit, struct task_struct *task)
{
	struct thread *t = thread_of(task);
	struct thread_end_rec *r;
	u64 now;

	if (!t)
		return 0;
	if (between_windows) {
		drop_thread(task->pid);
		return 0;
	}
	now = bpf_ktime_get_ns();
	if (active) {
		thread_enter_slice(t);
		if (now > t->since)
			add_on(t, now - t->since);
		t->since = now;
	}
	r = RESERVE(thread_end_rec);
	if (!r)
		return 0;
	r->head.kind = REC_THREAD_END;
	r->head.tid = t->tid;
	r->head.at = now;
	fill_thread_dump(task, t, &r->dump, now);
	SUBMIT(r);
	drop_thread(task->pid);
	return 0;
}

/* A process is forgotten when it has been reaped: until then its sockets close, and a service with a process for each connection
 * would fill the table. Only a process has its first thread's number there. */
SEC("tp_btf/sched_process_free")
int BPF_PROG(on_free, struct task_struct *task)
{
	u32 tgid = task->pid;

	forget_process(tgid);
	drop_thread(tgid);
	return 0;
}

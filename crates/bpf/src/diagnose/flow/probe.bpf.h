/* SPDX-License-Identifier: (LGPL-2.1 OR BSD-2-Clause) */
/*
 * Divides the time of a flow by state. An interval is the time between two events on a socket. Its state is derived from the
 * socket's fields as they were before the event was processed. Consecutive intervals with the same state and without progress
 * form a run. A finished run is added to the cell of its state and of the event that ended it.
 *
 * tcp_sendmsg_locked fires before data is queued, and tcp_probe before a segment is processed, so they see the fields of the
 * past interval. sock_recv_length fires after data was copied to the application, so the copied bytes are added back. The same
 * is done for a segment that is processed between the copy and sock_recv_length.
 */

/* When the timers of a socket last fired with work pending, by the socket's address. */
struct timer_mark {
	u64 write_at;
	u64 delack_at;
	u8 write_state;
	u8 pad[7];
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 8192);
	__type(key, u64);
	__type(value, struct timer_mark);
} timer_marks SEC(".maps");

/* When the delayed-ACK timer of a socket on this host fired, by the addresses from its peer's point of view. */
struct end_key {
	u32 saddr;
	u32 daddr;
	u16 sport;
	u16 dport;
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 8192);
	__type(key, struct end_key);
	__type(value, u64);
} peer_delacks SEC(".maps");

/* Reduces an IPv6 address to 32 bits. A collision is harmless, because the time of the timer is also compared. An IPv4-mapped
 * address becomes its IPv4 address, because the peer of a dual-stack socket can be an IPv4 socket. */
static __always_inline u32 fold6(const struct in6_addr *a)
{
	u32 w[4];

	bpf_probe_read_kernel(w, sizeof(w), a);
	if (!w[0] && !w[1] && w[2] == bpf_htonl(0xffff))
		return w[3];
	return w[0] ^ w[1] ^ w[2] ^ w[3];
}

static __always_inline void end_key(struct sock *sk, struct end_key *k, bool as_peer)
{
	u16 num = BPF_CORE_READ(sk, __sk_common.skc_num), dport = bpf_ntohs(BPF_CORE_READ(sk, __sk_common.skc_dport));
	u32 s, d;

	if (BPF_CORE_READ(sk, __sk_common.skc_family) == AF_INET6) {
		s = fold6(__builtin_preserve_access_index(&sk->__sk_common.skc_v6_rcv_saddr));
		d = fold6(__builtin_preserve_access_index(&sk->__sk_common.skc_v6_daddr));
	} else {
		s = BPF_CORE_READ(sk, __sk_common.skc_rcv_saddr);
		d = BPF_CORE_READ(sk, __sk_common.skc_daddr);
	}
	k->saddr = as_peer ? d : s;
	k->daddr = as_peer ? s : d;
	k->sport = as_peer ? dport : num;
	k->dport = as_peer ? num : dport;
}

static __always_inline void emit_stall(struct flow *st, u64 ns)
{
	struct flow_stall_rec *r = RESERVE(flow_stall_rec);

	if (!r)
		return;
	r->head.kind = REC_FLOW_STALL;
	r->head.tid = st->last_release <= RL_APP_RECV ? st->tid : 0;
	r->head.at = st->last;
	r->cookie = st->cookie;
	r->begin = st->run_begin;
	r->ns = ns;
	r->unsent = st->run_unsent;
	r->packets_out = st->run_packets_out;
	r->unread = st->run_unread;
	r->snd_wnd = st->run_snd_wnd;
	r->cwnd = st->run_cwnd;
	r->state = st->run_state;
	r->release = st->last_release;
	SUBMIT(r);
}

static __always_inline void close_run(struct flow *st)
{
	u64 ns = st->last - st->run_begin;
	u32 cell = st->run_state * RL_N + st->last_release;

	if (st->run_state >= FS_N || st->last_release >= RL_N || cell >= FS_N * RL_N || (s64)ns <= 0)
		return;
	st->ns[cell] += ns;
	st->count[cell]++;
	if (ns >= STALL_MIN_NS)
		emit_stall(st, ns);
}

#define RUN_NONE 255

ONCE int step(struct flow *st, struct fields *f, int s, int release, u64 t)
{
	bool moved;

	if (!st || !f)
		return 0;
	moved = s == FS_RX_WAITING ? f->copied != st->run_copied :
		     s == FS_IDLE_RECV || s == FS_IDLE_SEND ? false : f->snd_una != st->run_una;

	/* A timer or a retransmission ends a run even if the state is the same before and after it. */
	if (s != st->run_state || moved || (st->last_release >= RL_RTO_TIMER && st->last_release <= RL_WRITE_TIMER)) {
		close_run(st);
		st->run_state = s;
		st->run_begin = st->last;
		st->run_una = f->snd_una;
		st->run_copied = f->copied;
	}
	st->run_unsent = f->unsent;
	st->run_packets_out = f->packets_out;
	st->run_unread = f->unread;
	st->run_snd_wnd = f->snd_wnd;
	st->run_cwnd = f->cwnd;
	st->last = t;
	st->last_release = release;
	return 0;
}

static __always_inline void flow_init(struct flow *st, struct sock *sk, u64 now, bool passive)
{
	/* The structure is too large for the compiler's memset(). */
	bpf_probe_read_kernel(st, sizeof(*st), (void *)&no_flow);
	st->sk = (u64)sk;
	st->begin = now;
	st->run_state = RUN_NONE;
	st->passive = passive;
	st->cookie = new_socket_id(sk);
}

static __always_inline void learn_timers(struct sock *sk)
{
	struct tcp_sock *tp;

	if (write_fn)
		return;
	tp = as_tcp(sk);
	if (!tp)
		return;
	delack_fn = (u64)READ(tp, inet_conn.icsk_delack_timer.function);
	if (bpf_core_field_exists(tp->inet_conn.icsk_retransmit_timer))
		write_fn = (u64)READ(tp, inet_conn.icsk_retransmit_timer.function);
	else
		write_fn = (u64)READ((struct sock___timer *)sk, tcp_retransmit_timer.function);
}

/* The number of a listener's port, as `mptcp_ports` has it. */
static __always_inline u64 port_number(struct sock *sk)
{
	return (u64)BPF_CORE_READ(sk, __sk_common.skc_net.net, ns.inum) << 16 | READ(sk, __sk_common.skc_num);
}

static __always_inline void track_port(struct sock *sk)
{
	u64 key = port_number(sk);
	u8 tracked = 1;

	if (bpf_map_update_elem(&mptcp_ports, &key, &tracked, BPF_ANY))
		count(CNT_UNTRACKED);
	has_mptcp_ports = 1;
}

/* Begins to track a socket. The limit does not apply to listeners, because accepted sockets inherit the listener's storage. */
static __always_inline struct flow *track(struct sock *sk, bool passive)
{
	struct flow *st;

	if (n_flows >= max_flows && READ(sk, __sk_common.skc_state) != LISTEN) {
		count(CNT_UNTRACKED_FLOWS);
		return 0;
	}
	st = new_flow(sk);
	if (!st) {
		count(CNT_UNTRACKED_FLOWS);
		return 0;
	}
	if (st->sk != (u64)sk) {
		__sync_fetch_and_add(&n_flows, 1);
		flow_init(st, sk, bpf_ktime_get_ns(), passive);
	}
	learn_timers(sk);
#ifdef OLDER
	if (READ(sk, __sk_common.skc_state) == LISTEN)
		track_port(sk);
#endif
	return st;
}

/* The flow of a socket, if it belongs to the subject. A socket that was cloned from a tracked listener has a copy of the
 * listener's storage, which is initialised here. */
static __always_inline struct flow *flow_of(struct sock *sk)
{
	struct flow *st = stored_flow(sk);
	u8 followed;

	if (st && st->sk != (u64)sk) {
		if (n_flows >= max_flows) {
			/* The value 1 marks the socket as counted. */
			if (st->sk != 1)
				count(CNT_UNTRACKED_FLOWS);
			st->sk = 1;
			return 0;
		}
		__sync_fetch_and_add(&n_flows, 1);
		followed = st->listener_followed;
		flow_init(st, sk, bpf_ktime_get_ns(), true);
		st->listener_followed = followed;
	}
	return st;
}

/* As flow_of(), for events in process context: begins to track a socket of the subject that is not tracked yet. */
static __always_inline struct flow *flow_of_call(struct sock *sk, u32 tgid)
{
	struct flow *st = flow_of(sk);
	u8 scope;

	if (st)
		return st;
	scope = subject_scope(tgid);
	if (scope != SCOPE_ALL && !(scope == SCOPE_PORT && port_matches(sk)))
		return 0;
	st = track(sk, false);
	if (st)
		st->late = READ(sk, __sk_common.skc_state) == ESTABLISHED || READ(sk, __sk_common.skc_state) == CLOSE_WAIT;
	return st;
}

static __always_inline void flow_enter_slice(struct flow *st)
{
	if (st->gen == slice_gen)
		return;
	st->gen = slice_gen;
	st->last = st->begin > slice_begin ? st->begin : slice_begin;
	st->run_begin = st->last;
	st->run_state = RUN_NONE;
	st->last_release = RL_CUT;
	st->in_send = 0;
	st->arrived = st->last_arrival = st->recv_since = st->send_begin = 0;
	st->has_head = st->unknown_calls = 0;
}

/* An application that has sent this often without a receive does not want what waits for it: it streams. */
#define SENDS_OF_STREAM 8

/*
 * Accounts for the time up to an event. A retransmission timer is not an event here; it only leaves a mark. So after a long
 * interval the mark is looked up, and a timer that fired within the interval ends the run at the time of the timer.
 *
 * An event of another CPU can be accounted for between the reading of `now` and this: a hypervisor took this CPU away meanwhile. A
 * ledger that went back to the time before would count the interval between them twice.
 */
ONCE int flow_event(struct flow *st, struct fields *f, int release, u64 now)
{
	struct timer_mark *m;
	u32 unread;
	u64 key;
	int s;

	if (!st || !f)
		return 0;
	key = st->sk;
	unread = f->unread;
	if (st->sends_in_row >= SENDS_OF_STREAM)
		f->unread = 0;
	/* Since the connection was closed nothing was seen of it, so its fields say little about the time until now. */
	s = FORGET(st->closed_in ? st->closed_in : classify(f, st->last_op));

	count(CNT_EVENTS);
	if (now < st->last)
		now = st->last;
	if (!st->closed_in && now - st->last >= STALL_MIN_NS && release != RL_RTO_TIMER && release != RL_RETRANSMIT) {
		m = bpf_map_lookup_elem(&timer_marks, &key);
		if (m && m->write_at > st->last && m->write_at < now)
			step(st, f, m->write_state, RL_WRITE_TIMER, m->write_at);
	}
	step(st, f, s, release, now);
	if (st->closed_in)
		st->closed_in = state_of_rest(f, st->last_op);
	f->unread = unread;
	st->copied = f->copied;
	st->copied_gen = slice_gen;
	return 0;
}

/*
 * A receive can open the window, and a peer on this host then sends at once. Its segment arrives while the receive still owns
 * the socket, and release_sock() processes it before the sock_recv_length event of that receive. In this case the interval ends
 * with the receive, and the copied data counts as unread before. If no one owns the socket, a receive that waits for more data
 * (MSG_WAITALL) copied the data earlier, and nothing is done here.
 */
MERGED void end_with_receive(struct sock *sk, struct flow *st, struct fields *f, u64 now)
{
	u32 took = f->copied - st->copied;

	if (st->copied_gen != slice_gen || (s32)took <= 0 || !sk->sk_lock.owned)
		return;
	f->copied -= took;
	f->unread += took;
	flow_event(st, f, RL_APP_RECV, now);
	f->copied += took;
	f->unread -= took;
}

/*
 * Notes the arrival of a segment with data. Data that a receive has copied and not reported yet (see above) arrived before it,
 * so the arrival of that data is saved in `recv_since`.
 */
MERGED void note_arrival(struct flow *st, struct fields *f, u64 now)
{
	if (st->copied_gen == slice_gen && (s32)(f->copied - st->copied) > 0 && !st->recv_since)
		st->recv_since = st->arrived;
	if (!f->unread)
		st->arrived = now;
	st->last_arrival = now;
}

/*
 * Returns when the first byte of the data of a receive arrived. For the data that stays unread only the arrival of the last
 * segment is known. That is exact if one segment is read in parts. If several segments were unread, it is too late, and the
 * wait appears too short.
 */
static __always_inline u64 take_arrived(struct flow *st, struct fields *f)
{
	u64 since = st->recv_since ? st->recv_since : st->arrived;

	st->recv_since = 0;
	st->arrived = f->unread ? st->last_arrival : 0;
	/* Not observed: the data arrived before the slice or with the handshake. */
	return since ? since : st->last;
}

/* The release for a segment that arrives. After a long wait it checks whether a delayed-ACK timer caused the segment: the peer's
 * timer sent the ACK, or our timer sent the ACK that the peer's data waited for. */
ONCE int rx_release(struct flow *st, int payload, u32 srtt_us, u64 now)
{
	u64 key, *at, within = 2000000ULL + (u64)srtt_us * 250; /* srtt_us is 8 x srtt: 2 ms + 2 srtt */
	struct end_key peer = {};
	struct timer_mark *m;

	if (!st)
		return RL_RX_ACK;
	key = st->sk;
	if (now - st->run_begin >= STALL_MIN_NS) {
		end_key((struct sock *)key, &peer, false);
		at = bpf_map_lookup_elem(&peer_delacks, &peer);
		if (at && *at > st->run_begin && now - *at < within)
			return payload ? RL_RX_DATA : RL_RX_ACK_DELAYED;
		if (payload) {
			m = bpf_map_lookup_elem(&timer_marks, &key);
			if (m && m->delack_at > st->run_begin && now - m->delack_at < within)
				return RL_RX_DATA_OWN_DELACK;
		}
	}
	return payload ? RL_RX_DATA : RL_RX_ACK;
}

SEC("tp_btf/tcp_probe")
int BPF_PROG(on_segment, struct sock *sk, struct sk_buff *skb)
{
	struct flow *st;
	struct tcp_sock *tp;
	struct fields f;
	u32 seq[2] = {};
	int release;
	u64 now;

	if (!active)
		return 0;
	st = flow_of(sk);
	if (!st)
		return 0;
	tp = as_tcp(sk);
	if (!tp)
		return 0;
	now = slice_now();
	flow_enter_slice(st);
	load_fields(sk, tp, &f);
	/* struct tcp_skb_cb begins with seq and end_seq. */
	bpf_probe_read_kernel(seq, sizeof(seq), __builtin_preserve_access_index(&skb->cb));
	if (seq[0] != seq[1])
		note_arrival(st, &f, now);
	end_with_receive(sk, st, &f, now);
	release = rx_release(st, seq[0] != seq[1], READ(tp, srtt_us), now);
	flow_event(st, &f, FORGET(release), now);
	return 0;
}

static __always_inline int send_begins(struct sock *sk)
{
	struct flow *st;
	struct tcp_sock *tp;
	struct fields f;
	u64 now;

	if (!active)
		return 0;
	st = flow_of_call(sk, bpf_get_current_pid_tgid() >> 32);
	if (!st)
		return 0;
	flow_enter_slice(st);
	if (st->in_send)
		return 0;
	tp = as_tcp(sk);
	if (!tp)
		return 0;
	now = slice_now();
	st->in_send = 1;
	st->send_begin = now;
	st->tid = (u32)bpf_get_current_pid_tgid();
	load_fields(sk, tp, &f);
	flow_event(st, &f, RL_APP_SEND, now);
	return 0;
}

SEC("tp_btf/tcp_sendmsg_locked")
int BPF_PROG(on_send_begin, struct sock *sk)
{
	return send_begins(sk);
}

/* Before 6.16. */
SEC("fentry/tcp_sendmsg_locked")
int BPF_PROG(on_sendmsg_locked, struct sock *sk)
{
	return send_begins(sk);
}

static __always_inline int send_ends(struct sock *sk, int ret)
{
	u64 id = bpf_get_current_pid_tgid(), now, since;
	struct calls *c;
	struct flow *st;
	struct tcp_sock *tp;
	struct frame frame = {};
	struct fields f;

	if (!active)
		return 0;
	if (READ(sk, sk_protocol) != IPPROTO_TCP) {
		if (ret > 0 && is_udp(sk))
			udp_call(sk, id, OP_SEND, ret);
		return 0;
	}
	st = flow_of_call(sk, id >> 32);
	if (!st)
		return 0;
	flow_enter_slice(st);
	st->in_send = 0;
	since = st->send_begin;
	st->send_begin = 0;
	c = &st->calls;
	if (ret <= 0) {
		if (ret == -11)
			c->eagain++;
		return 0;
	}
	tp = as_tcp(sk);
	if (!tp)
		return 0;
	load_fields(sk, tp, &f);
	now = slice_now();
	see_frame(st, OP_SEND, ret, &frame);
	emit_call(st->cookie, id, OP_SEND, since ? since : now, now, ret, &frame);
	flow_event(st, &f, RL_APP_SEND, now);
	st->tgid = id >> 32;
	st->tid = (u32)id;
	if (st->last_op == 2) {
		c->write_after_write++;
		c->pair_first = st->last_send;
		c->pair_second = ret;
	} else if (st->last_op == 1) {
		c->exchanges++;
	}
	st->last_op = 2;
	if (st->sends_in_row < 255)
		st->sends_in_row++;
	st->last_send = ret;
	if (!c->sends || ret < c->send_min)
		c->send_min = ret;
	if (ret > c->send_max)
		c->send_max = ret;
	c->sends++;
	c->send_bytes += ret;
	if (ret < f.mss)
		c->small_sends++;
	if (f.unsent && f.packets_out && !(f.nonagle & (NAGLE_OFF | NAGLE_CORK)))
		c->held_sends++;
	copy_sent(sk, ret);
	return 0;
}

SEC("tp_btf/sock_send_length")
int BPF_PROG(on_send_end, struct sock *sk, int ret)
{
	return send_ends(sk, ret);
}

/* Before 6.3, in place of sock_send_length. */
SEC("fexit/inet_sendmsg")
int BPF_PROG(on_inet_sendmsg, struct socket *socket, struct msghdr *msg, unsigned long size, int ret)
{
	return send_ends(socket->sk, ret);
}

SEC("fexit/inet6_sendmsg")
int BPF_PROG(on_inet6_sendmsg, struct socket *socket, struct msghdr *msg, unsigned long size, int ret)
{
	return send_ends(socket->sk, ret);
}

/* Until 6.4 sendfile() and splice() send in this way, and not by a message. */
SEC("fexit/inet_sendpage")
int BPF_PROG(on_inet_sendpage, struct socket *socket, void *page, int offset, unsigned long size, int flags, long ret)
{
	return send_ends(socket->sk, ret);
}

/* A call has taken `bytes` from the socket, of which `f` are the fields now and which began with `frame`. */
static __always_inline void received(struct flow *st, struct fields *f, u64 id, u32 bytes, struct frame *frame)
{
	u64 now = slice_now();

	if (f->unread)
		st->calls.recv_left_over++;
	emit_call(st->cookie, id, OP_RECEIVE, take_arrived(st, f), now, bytes, frame);
	f->copied -= bytes;
	f->unread += bytes;
	flow_event(st, f, RL_APP_RECV, now);
	st->copied += bytes;
	st->tgid = id >> 32;
	st->tid = (u32)id;
	st->last_op = 1;
	st->sends_in_row = 0;
	st->calls.recvs++;
	st->calls.recv_bytes += bytes;
}

static __always_inline int receive_ends(struct sock *sk, int ret, int flags)
{
	u64 id = bpf_get_current_pid_tgid();
	struct frame frame = {};
	struct flow *st;
	struct tcp_sock *tp;
	struct fields f;

	if (!active || (flags & (MSG_PEEK_FLAG | MSG_ERRQUEUE_FLAG)))
		return 0;
	if (READ(sk, sk_protocol) != IPPROTO_TCP) {
		if (ret > 0 && is_udp(sk))
			udp_call(sk, id, OP_RECEIVE, ret);
		return 0;
	}
	st = flow_of_call(sk, id >> 32);
	if (!st)
		return 0;
	flow_enter_slice(st);
	if (ret <= 0) {
		if (ret == -11)
			st->calls.eagain++;
		return 0;
	}
	tp = as_tcp(sk);
	if (!tp)
		return 0;
	load_fields(sk, tp, &f);
	copy_received(sk, ret, f.unread != 0);
	see_frame(st, OP_RECEIVE, ret, &frame);
	received(st, &f, id, ret, &frame);
	return 0;
}

SEC("tp_btf/sock_recv_length")
int BPF_PROG(on_recv, struct sock *sk, int ret, int flags)
{
	return receive_ends(sk, ret, flags);
}

/* Before 6.3, in place of sock_recv_length. */
SEC("fexit/inet_recvmsg")
int BPF_PROG(on_inet_recvmsg, struct socket *socket, struct msghdr *msg, unsigned long size, int flags, int ret)
{
	return receive_ends(socket->sk, ret, flags);
}

SEC("fexit/inet6_recvmsg")
int BPF_PROG(on_inet6_recvmsg, struct socket *socket, struct msghdr *msg, unsigned long size, int flags, int ret)
{
	return receive_ends(socket->sk, ret, flags);
}

/*
 * splice() from a socket takes data without a sock_recv_length event. Like any reader it then adjusts the receive buffer; the number
 * of bytes is that by which copied_seq has moved. The program is attached once a thread of the subject has called splice() on a TCP
 * socket (`splice_seen`).
 */
SEC("tp_btf/tcp_rcv_space_adjust")
int BPF_PROG(on_splice, struct sock *sk)
{
	u64 id = bpf_get_current_pid_tgid();
	/* Its bytes are in no buffer of the caller. */
	struct frame none = {};
	struct tcp_sock *tp;
	struct fields f;
	struct flow *st;
	u32 took;

	if (!active || !call_is(task_syscall(current_task()), CALL_SPLICES))
		return 0;
	st = flow_of_call(sk, id >> 32);
	if (!st)
		return 0;
	flow_enter_slice(st);
	tp = as_tcp(sk);
	if (!tp)
		return 0;
	load_fields(sk, tp, &f);
	took = f.copied - st->copied;
	if (st->copied_gen != slice_gen || (s32)took <= 0)
		return 0;
	received(st, &f, id, took, &none);
	return 0;
}

/* This event is rare, so the program is always attached. It closes an interval only within a slice. */
SEC("tp_btf/tcp_retransmit_skb")
int BPF_PROG(on_retransmit, struct sock *sk)
{
	struct flow *st = flow_of(sk);
	struct tcp_sock *tp;
	struct fields f;

	if (!st)
		return 0;
	count_of(sk, st, NET_RETRANS);
	if (!active)
		return 0;
	tp = as_tcp(sk);
	if (!tp)
		return 0;
	flow_enter_slice(st);
	load_fields(sk, tp, &f);
	flow_event(st, &f, f.ca_state == CA_LOSS || f.pending == PENDING_LOSS_PROBE ? RL_RTO_TIMER : RL_RETRANSMIT,
		   slice_now());
	return 0;
}

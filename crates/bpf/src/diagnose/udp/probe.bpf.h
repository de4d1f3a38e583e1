/* SPDX-License-Identifier: (LGPL-2.1 OR BSD-2-Clause) */
/*
 * Reports each datagram that the subject's UDP sockets receive, with the time of its arrival, and each one that they send. The
 * tracepoints have the socket and not the message, so the peer is known only for connected sockets. On an unconnected socket,
 * requests and replies are paired by their order.
 */

/* Set if the subject has UDP sockets. Only then user space attaches on_data_ready, which runs for every socket of the host. */
u32 udp_seen = 0;

static __always_inline bool is_udp(struct sock *sk)
{
	u16 family = READ(sk, __sk_common.skc_family);

	return READ(sk, sk_protocol) == IPPROTO_UDP && READ(sk, sk_type) == SOCK_DGRAM && (family == AF_INET || family == AF_INET6);
}

static __always_inline struct udp_socket *track_udp(struct sock *sk)
{
	struct udp_socket *u = new_udp(sk);

	if (!u) {
		count(CNT_UNTRACKED_FLOWS);
		return 0;
	}
	if (!u->cookie)
		u->cookie = new_socket_id(sk);
	udp_seen = 1;
	return u;
}

/* `arriving`: the number of queued datagrams that arrived within this slice. */
static __always_inline void udp_enter_slice(struct sock *sk, struct udp_socket *u, u32 arriving)
{
	u32 queued;

	if (u->gen == slice_gen)
		return;
	u->gen = slice_gen;
	u->arrivals = u->taken = 0;
	queued = READ(sk, sk_receive_queue.qlen) + BPF_CORE_READ((struct udp_sock *)sk, reader_queue.qlen);
	u->queued_before = queued > arriving ? queued - arriving : 0;
}

static __always_inline int data_ready(struct sock *sk)
{
	struct udp_socket *u;

	if (!active || sk->sk_protocol != IPPROTO_UDP)
		return 0;
	u = stored_udp(sk);
	if (!u)
		return 0;
	count(CNT_EVENTS);
	udp_enter_slice(sk, u, 1);
	u->arrived[u->arrivals++ % UDP_ARRIVALS] = slice_now();
	return 0;
}

SEC("tp_btf/sk_data_ready")
int BPF_PROG(on_data_ready, const struct sock *sk)
{
	return data_ready((struct sock *)sk);
}

/* Before 6.3. */
SEC("fentry/sock_def_readable")
int BPF_PROG(on_def_readable, struct sock *sk)
{
	return data_ready(sk);
}

/* The arrival time of the datagram that is received now. Datagrams are received in the order of their arrival. */
static __always_inline u64 take_arrival(struct udp_socket *u)
{
	if (u->queued_before) {
		u->queued_before--;
		return slice_begin;
	}
	if (u->arrivals == u->taken)
		return 0;
	if (u->arrivals - u->taken > UDP_ARRIVALS)
		u->taken = u->arrivals - UDP_ARRIVALS;
	return u->arrived[u->taken++ % UDP_ARRIVALS];
}

static __always_inline void udp_call(struct sock *sk, u64 id, u32 op, u32 bytes)
{
	u64 now = slice_now(), since = 0;
	struct udp_call_rec *r;
	struct udp_socket *u = stored_udp(sk);
	struct frame frame = {};
	u8 scope;

	if (!u) {
		scope = subject_scope(id >> 32);
		if (scope != SCOPE_ALL && !(scope == SCOPE_PORT && port_matches(sk)))
			return;
		u = track_udp(sk);
		if (!u)
			return;
		u->gen = slice_gen;
	}
	count(CNT_EVENTS);
	udp_enter_slice(sk, u, 0);
	if (op == OP_RECEIVE)
		since = take_arrival(u);
	see_datagram(op, bytes, &frame);
	r = RESERVE(udp_call_rec);
	if (!r)
		return;
	fill_call(&r->call, REC_UDP_CALL, u->cookie, id, op, since ? since : now, now, bytes, &frame);
	r->family = READ(sk, __sk_common.skc_family);
	r->sport = READ(sk, __sk_common.skc_num);
	r->dport = bpf_ntohs(READ(sk, __sk_common.skc_dport));
	r->bound = !!(READ_BITS(sk, sk_userlocks) & BINDPORT_LOCK);
	r->netns = BPF_CORE_READ(sk, __sk_common.skc_net.net, ns.inum);
	r->pad = 0;
	r->pad2 = 0;
	__builtin_memset(r->saddr, 0, sizeof(r->saddr) + sizeof(r->daddr));
	fill_addresses(sk, r->saddr, r->daddr);
	SUBMIT(r);
}

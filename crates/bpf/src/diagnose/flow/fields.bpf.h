/* SPDX-License-Identifier: (LGPL-2.1 OR BSD-2-Clause) */
/* The fields of a socket, and the state of its flow that follows from them. */

/* The socket fields from which the state is derived. */
struct fields {
	u32 write_seq, snd_nxt, snd_una, snd_wnd, mss, cwnd, packets_out, in_flight, rcv_nxt, copied, unread, unsent;
	u8 state, ca_state, nonagle, pending;
	u8 throttled, pacing, nospace;
};

static __always_inline void derive(struct fields *f, u8 shutdown)
{
	s32 unsent = f->write_seq - f->snd_nxt, unread = f->rcv_nxt - f->copied;

	/* A FIN takes one sequence number, which no receive consumes. */
	if (unread > 0 && (shutdown & RCV_SHUTDOWN))
		unread--;
	f->unsent = unsent > 0 ? unsent : 0;
	f->unread = unread > 0 ? unread : 0;
}

/* The timer that sends the next paced segment runs. */
static __always_inline bool is_pacing(struct tcp_sock *tp)
{
	struct hrtimer___queued *timer = (struct hrtimer___queued *)&tp->pacing_timer;

	return bpf_core_field_exists(tp->pacing_timer.state) ? tp->pacing_timer.state & 1 : timer->is_queued;
}

static __always_inline bool is_pacing_probed(struct tcp_sock *tp)
{
	struct hrtimer___queued *timer = (struct hrtimer___queued *)__builtin_preserve_access_index(&tp->pacing_timer);

	if (bpf_core_field_exists(tp->pacing_timer.state))
		return BPF_CORE_READ(tp, pacing_timer.state) & 1;
	return BPF_CORE_READ(timer, is_queued);
}

/* The fields, from a pointer that the verifier does not trust. */
static __always_inline void probe_fields(struct tcp_sock *tp, struct fields *f)
{
	struct sock *sk = (struct sock *)tp;
	struct socket *socket = BPF_CORE_READ(sk, sk_socket);

	f->write_seq = BPF_CORE_READ(tp, write_seq);
	f->snd_nxt = BPF_CORE_READ(tp, snd_nxt);
	f->snd_una = BPF_CORE_READ(tp, snd_una);
	f->snd_wnd = BPF_CORE_READ(tp, snd_wnd);
	f->mss = BPF_CORE_READ(tp, mss_cache);
	f->cwnd = BPF_CORE_READ(tp, snd_cwnd);
	f->packets_out = BPF_CORE_READ(tp, packets_out);
	f->in_flight = f->packets_out - BPF_CORE_READ(tp, sacked_out) - BPF_CORE_READ(tp, lost_out) +
		       BPF_CORE_READ(tp, retrans_out);
	f->rcv_nxt = BPF_CORE_READ(tp, rcv_nxt);
	f->copied = BPF_CORE_READ(tp, copied_seq);
	f->state = BPF_CORE_READ(sk, __sk_common.skc_state);
	f->ca_state = BPF_CORE_READ_BITFIELD_PROBED(&tp->inet_conn, icsk_ca_state);
	f->pending = BPF_CORE_READ(tp, inet_conn.icsk_pending);
	f->nonagle = BPF_CORE_READ_BITFIELD_PROBED(tp, nonagle);
	f->throttled = (BPF_CORE_READ(sk, sk_tsq_flags) >> TSQ_THROTTLED_BIT) & 1;
	f->pacing = is_pacing_probed(tp);
	f->nospace = socket ? (BPF_CORE_READ(socket, flags) >> NOSPACE_BIT) & 1 : 0;
	derive(f, BPF_CORE_READ(sk, sk_shutdown));
}

static __always_inline void load_fields(struct sock *sk, struct tcp_sock *tp, struct fields *f)
{
#ifdef OLDER
	probe_fields(tp, f);
#else
	/* Read by a helper, because a typed load of a pointer makes the verifier search the whole BTF on every path. */
	struct socket *socket = BPF_CORE_READ(sk, sk_socket);

	f->write_seq = tp->write_seq;
	f->snd_nxt = tp->snd_nxt;
	f->snd_una = tp->snd_una;
	f->snd_wnd = tp->snd_wnd;
	f->mss = tp->mss_cache;
	f->cwnd = tp->snd_cwnd;
	f->packets_out = tp->packets_out;
	f->in_flight = tp->packets_out - tp->sacked_out - tp->lost_out + tp->retrans_out;
	f->rcv_nxt = tp->rcv_nxt;
	f->copied = tp->copied_seq;
	f->state = sk->__sk_common.skc_state;
	f->ca_state = BPF_CORE_READ_BITFIELD(&tp->inet_conn, icsk_ca_state);
	f->pending = tp->inet_conn.icsk_pending;
	f->nonagle = BPF_CORE_READ_BITFIELD(tp, nonagle);
	f->throttled = (sk->sk_tsq_flags >> TSQ_THROTTLED_BIT) & 1;
	f->pacing = is_pacing(tp);
	f->nospace = socket ? (BPF_CORE_READ(socket, flags) >> NOSPACE_BIT) & 1 : 0;
	derive(f, sk->sk_shutdown);
#endif
}

/*
 * Derives the flow state from the fields. The order of the tests is that of tcp_write_xmit() (net/ipv4/tcp_output.c). This is a
 * global function, as others here, so that the verifier checks it once and not along every path of its callers.
 */
ONCE int classify(struct fields *f, int last_op)
{
	s32 room, need;

	if (!f)
		return FS_OTHER;
	room = f->snd_una + f->snd_wnd - f->snd_nxt;
	need = f->unsent < f->mss ? f->unsent : f->mss;
	if (f->state == SYN_SENT || f->state == SYN_RECV || f->state == LISTEN || f->state == CLOSE)
		return FS_OTHER;
	if (f->packets_out && f->ca_state == CA_LOSS)
		return FS_LOSS;
	if (f->packets_out && f->ca_state == CA_RECOVERY)
		return FS_RECOVERY;
	if (!f->unsent) {
		if (f->packets_out && f->nospace)
			return FS_SNDBUF;
		if (f->unread)
			return FS_RX_WAITING;
		if (f->packets_out)
			return FS_IN_FLIGHT;
		return last_op == 1 ? FS_IDLE_RECV : FS_IDLE_SEND;
	}
	if (f->in_flight >= f->cwnd && f->cwnd)
		return FS_CWND;
	if (room < need)
		return FS_PEER_WINDOW;
	/* A blocked writer would fill the partial segment, so neither Nagle nor the cork holds it back. */
	if (f->nospace && f->packets_out)
		return FS_SNDBUF;
	if (f->unsent < f->mss) {
		if (f->nonagle & NAGLE_CORK)
			return FS_CORKED;
		if (f->packets_out && !(f->nonagle & NAGLE_OFF))
			return FS_NAGLE;
	}
	if (f->throttled)
		return FS_QDISC;
	if (f->pacing)
		return FS_PACED;
	if (!f->packets_out && f->unsent < f->mss)
		return FS_CORKED;
	return FS_IN_FLIGHT;
}

/* The state in which a flow sends what is left when its process closes it. The FIN pushes what waited for more data. */
static __always_inline u8 state_of_rest(struct fields *f, int last_op)
{
	int s;

	if (f->write_seq == f->snd_una)
		return 0;
	s = classify(f, last_op);
	return s == FS_SNDBUF || s == FS_NAGLE || s == FS_CORKED ? FS_IN_FLIGHT : s;
}

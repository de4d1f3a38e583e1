/* SPDX-License-Identifier: (LGPL-2.1 OR BSD-2-Clause) */
/*
 * The timers of TCP sockets. The timer is a member of the socket, so the socket's address is computed from it. The verifier does
 * not trust that pointer, so the program stores a mark under the address, and the socket's next event reads the mark.
 */

/* The retransmission timer is in struct sock since 6.19, and in inet_connection_sock before. */
static __always_inline struct tcp_sock *timer_sock(struct timer_list *timer, bool delack)
{
	u64 offset;

	if (delack)
		offset = bpf_core_field_offset(struct inet_connection_sock, icsk_delack_timer);
	else if (bpf_core_field_exists(struct inet_connection_sock, icsk_retransmit_timer))
		offset = bpf_core_field_offset(struct inet_connection_sock, icsk_retransmit_timer);
	else
		offset = bpf_core_field_offset(struct sock___timer, tcp_retransmit_timer);
	return (struct tcp_sock *)((u64)timer - offset);
}

SEC("tp_btf/timer_expire_entry")
int BPF_PROG(on_timer, struct timer_list *timer)
{
	struct timer_mark fresh = {}, *m;
	struct end_key peer = {};
	struct tcp_sock *tp;
	struct fields f;
	u64 fn, now, key;

	if (!active)
		return 0;
	fn = (u64)timer->function;
	if (!fn || (fn != delack_fn && fn != write_fn))
		return 0;
	tp = timer_sock(timer, fn == delack_fn);
	key = (u64)tp;
	now = slice_now();
	/* TCP does not always stop a timer; it clears the pending flag instead. Without the flag the timer does nothing. */
	if (fn == delack_fn) {
		if (!(BPF_CORE_READ(tp, inet_conn.icsk_ack.pending) & ACK_TIMER))
			return 0;
		count(CNT_DELACK);
		end_key((struct sock *)tp, &peer, true);
		bpf_map_update_elem(&peer_delacks, &peer, &now, BPF_ANY);
	} else if (!BPF_CORE_READ(tp, inet_conn.icsk_pending)) {
		return 0;
	}
	m = bpf_map_lookup_elem(&timer_marks, &key);
	if (!m) {
		if (bpf_map_update_elem(&timer_marks, &key, &fresh, BPF_ANY))
			return 0;
		m = bpf_map_lookup_elem(&timer_marks, &key);
		if (!m)
			return 0;
	}
	if (fn == delack_fn) {
		m->delack_at = now;
	} else {
		probe_fields(tp, &f);
		m->write_state = classify(&f, 2);
		m->write_at = now;
	}
	return 0;
}

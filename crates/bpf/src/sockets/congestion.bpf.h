/* SPDX-License-Identifier: (LGPL-2.1 OR BSD-2-Clause) */
/* The state that congestion controls keep of a connection, as their get_info() reports it. Part of read.bpf.h. */
#ifndef PARSHALL_SOCKETS_CONGESTION_H
#define PARSHALL_SOCKETS_CONGESTION_H

/* bbr_get_info() */
static __always_inline void read_bbr(struct socket_record *r, const struct tcp_sock *tp)
{
	const struct bbr *ca = (const void *)tp->inet_conn.icsk_ca_priv;
	u64 bw;

	if (!bpf_core_type_exists(struct bbr))
		return;
	/* Segments per microsecond, shifted by 24. */
	bw = BPF_CORE_READ_BITFIELD(ca, lt_use_bw) ? ca->lt_bw : ca->bw.s[0].v;
	r->bbr_bw_bytes_per_s = bw * tp->mss_cache * 1000000 >> 24;
	r->bbr_min_rtt_us = unless(ca->min_rtt_us, NO_RTT);
	r->bbr_pacing_gain = BPF_CORE_READ_BITFIELD(ca, pacing_gain);
	r->bbr_cwnd_gain = BPF_CORE_READ_BITFIELD(ca, cwnd_gain);
}

/* dctcp_get_info() */
static __always_inline void read_dctcp(struct socket_record *r, const struct tcp_sock *tp)
{
	const struct dctcp *ca = (const void *)tp->inet_conn.icsk_ca_priv;

	if (!bpf_core_type_exists(struct dctcp))
		return;
	r->dctcp_enabled = 1;
	r->dctcp_ce_state = ca->ce_state;
	r->dctcp_alpha = ca->dctcp_alpha;
	r->dctcp_ab_ecn = tp->mss_cache * (tp->delivered_ce - ca->old_delivered_ce);
	r->dctcp_ab_tot = tp->mss_cache * (tp->delivered - ca->old_delivered);
}

/* tcp_vegas_get_info() */
static __always_inline void read_vegas(struct socket_record *r, const struct tcp_sock *tp)
{
	const struct vegas *ca = (const void *)tp->inet_conn.icsk_ca_priv;

	if (!bpf_core_type_exists(struct vegas))
		return;
	r->vegas_enabled = ca->doing_vegas_now;
	r->vegas_rttcnt = ca->cntRTT;
	r->vegas_rtt_us = unless(ca->baseRTT, NONE_YET);
	r->vegas_minrtt_us = unless(ca->minRTT, NONE_YET);
}

static __always_inline u32 control_of(u64 name)
{
	u64 bbr = 0, dctcp = 0, vegas = 0;

	__builtin_memcpy(&bbr, "bbr", 3);
	__builtin_memcpy(&dctcp, "dctcp", 5);
	__builtin_memcpy(&vegas, "vegas", 5);
	return name == bbr ? CONTROL_BBR : name == dctcp ? CONTROL_DCTCP : name == vegas ? CONTROL_VEGAS : CONTROL_OTHER;
}

static __always_inline void read_congestion(struct socket_record *r, const struct tcp_sock *tp,
					    struct socket_reader *reader)
{
	const struct tcp_congestion_ops *ops = tp->inet_conn.icsk_ca_ops;

	if (!ops)
		return;
	if (reader->control_ops != (u64)ops) {
		if (bpf_core_read(reader->control_name, sizeof(reader->control_name), &ops->name))
			return;
		reader->control_ops = (u64)ops;
		reader->control = control_of(reader->control_name[0]);
	}
	((u64 *)r->congestion)[0] = reader->control_name[0];
	((u64 *)r->congestion)[1] = reader->control_name[1];
	/* inet_diag calls the congestion control's get_info() only in the states before TIME_WAIT. */
	if (r->state >= TIME_WAIT)
		return;
	if (reader->control == CONTROL_BBR)
		read_bbr(r, tp);
	else if (reader->control == CONTROL_DCTCP)
		read_dctcp(r, tp);
	else if (reader->control == CONTROL_VEGAS)
		read_vegas(r, tp);
}

#endif

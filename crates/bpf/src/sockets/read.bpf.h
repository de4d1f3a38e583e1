/* SPDX-License-Identifier: (LGPL-2.1 OR BSD-2-Clause) */
/*
 * Fills struct socket_record from a socket. Only the selected groups of fields are read and written, so the caller clears the
 * record first. The values are those that inet_diag reports for the same socket (net/ipv4/inet_diag.c, tcp_get_info() of
 * net/ipv4/tcp.c, sk_get_meminfo() of net/core/sock.c), but the socket's lock is not taken here.
 *
 * A pointer argument is a trusted pointer of an iterator or tracepoint, or a result of SOCKET_FOLLOW. A pointer that is read
 * from such an object is followed as the includer's header says: cast.bpf.h, follow.bpf.h or copy.bpf.h. User space sets the
 * socket_tick_... constants before it loads the object.
 */
#ifndef PARSHALL_SOCKETS_READ_H
#define PARSHALL_SOCKETS_READ_H

#include "kernel.h"
#include "socket_record.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>

/* The kernel's CONFIG_HZ, and the length of a tick (0 if it is not a whole number). The verifier treats them as constants and
 * removes the branches that they decide. It does not fold divisions, so user space computes the lengths. */
const volatile u32 socket_tick_hz = 250;
const volatile u32 socket_tick_us = 4000;
const volatile u32 socket_tick_ms = 4;

enum control { CONTROL_OTHER, CONTROL_BBR, CONTROL_DCTCP, CONTROL_VEGAS };

/* The time of the run, and values cached between sockets. */
struct socket_reader {
	/* bpf_jiffies64() and CLOCK_MONOTONIC in milliseconds. */
	u64 jiffies;
	u64 now_ms;
	/* The congestion control of the previous socket, and its name. Nearly all sockets have the same. */
	u64 control_ops;
	u64 control_name[2];
	u32 control;
	u32 reserved;
};

static __always_inline void socket_reader_begin(struct socket_reader *reader)
{
	reader->jiffies = bpf_jiffies64();
	reader->now_ms = bpf_ktime_get_ns() / 1000000;
	reader->control_ops = 0;
	reader->reserved = 0;
}

/* jiffies_to_usecs() */
static __always_inline u32 ticks_us(u32 ticks)
{
	if (socket_tick_us)
		return ticks * socket_tick_us;
	return (u64)ticks * 1000000 / socket_tick_hz;
}

/* jiffies_to_msecs(), which rounds up */
static __always_inline u32 ticks_ms(u32 ticks)
{
	if (socket_tick_ms)
		return ticks * socket_tick_ms;
	return ((u64)ticks * 1000 + socket_tick_hz - 1) / socket_tick_hz;
}

/* jiffies_delta_to_msecs() of the time until `expires` */
static __always_inline u32 until_ms(unsigned long expires, u64 now)
{
	s64 left = (s64)(expires - now);

	return left > 0 ? ticks_ms(left) : 0;
}

/* Values by which the kernel says "not set": of rates, of round trip times, and of thresholds and Vegas. */
#define NO_RATE (~0ull)
#define NO_RTT (~0u)
#define NONE_YET 0x7fffffffu
/* The value, or 0 if it is `none`. It has no branch, because the verifier would check both outcomes. */
static __always_inline u64 unless(u64 value, u64 none)
{
	return value & -(((value ^ none) | -(value ^ none)) >> 63);
}

#define WANTED(group) (groups & SOCKET_GROUP_##group)

/* The inode of a network namespace. */
static __always_inline u32 socket_netns(u64 address)
{
	const struct net *net = SOCKET_AT(net, address);

#ifdef SOCKET_COPIES
	/* Nearly all sockets have the namespace of the one before. It cannot be freed while a run, an RCU read side, lasts. */
	if (address != known_net.address) {
		known_net.inum = SOCKET_READ(net, ns.inum);
		known_net.ops = (u64)SOCKET_READ(net, ns.ops);
		known_net.address = address;
		known_net.hashinfo = 0;
	}
	return known_net.inum;
#else
	return SOCKET_READ(net, ns.inum);
#endif
}

/* The fields of struct sock_common, which full sockets, TIME_WAIT sockets and connection requests share. */
static __always_inline void read_common(struct socket_record *r, const struct sock_common *c, u64 address)
{
	u16 family = c->skc_family;

	r->address = address;
	r->cookie = c->skc_cookie.counter;
	r->netns = socket_netns((u64)c->skc_net.net);
	r->interface = c->skc_bound_dev_if;
	r->local_port = c->skc_num;
	r->remote_port = __builtin_bswap16(c->skc_dport);
	r->family = family;
	if (family == AF_INET6 && bpf_core_field_exists(c->skc_v6_daddr)) {
		u32 *local = (u32 *)r->local_address, *remote = (u32 *)r->remote_address;

		local[0] = c->skc_v6_rcv_saddr.in6_u.u6_addr32[0];
		local[1] = c->skc_v6_rcv_saddr.in6_u.u6_addr32[1];
		local[2] = c->skc_v6_rcv_saddr.in6_u.u6_addr32[2];
		local[3] = c->skc_v6_rcv_saddr.in6_u.u6_addr32[3];
		remote[0] = c->skc_v6_daddr.in6_u.u6_addr32[0];
		remote[1] = c->skc_v6_daddr.in6_u.u6_addr32[1];
		remote[2] = c->skc_v6_daddr.in6_u.u6_addr32[2];
		remote[3] = c->skc_v6_daddr.in6_u.u6_addr32[3];
	} else {
		*(u32 *)r->local_address = c->skc_rcv_saddr;
		*(u32 *)r->remote_address = c->skc_daddr;
	}
}

/* The inode of the socket's file; 0 if it has none. */
static __always_inline u32 read_inode(const struct sock *sk)
{
	struct socket *socket;
	unsigned long inode = 0;

	if (bpf_core_field_exists(sk->sk_ino))
		return sk->sk_ino;
	socket = sk->sk_socket;
	if (socket)
		bpf_core_read(&inode, sizeof(inode), &((struct socket_alloc *)socket)->vfs_inode.i_ino);
	return inode;
}

/* The same of a socket of which nothing else is read. */
static __always_inline u32 inode_at(u64 address)
{
	const struct sock *sk = SOCKET_AT(sock, address);
	struct socket *socket;
	unsigned long inode = 0;

	if (bpf_core_field_exists(sk->sk_ino))
		return SOCKET_READ(sk, sk_ino);
	socket = SOCKET_READ(sk, sk_socket);
	if (socket)
		bpf_core_read(&inode, sizeof(inode), &((struct socket_alloc *)socket)->vfs_inode.i_ino);
	return inode;
}

/* `shared`: the socket may have separate drop counters for each NUMA node, as UDP sockets do. */
static __always_inline void read_memory(struct socket_record *r, const struct sock *sk, bool shared)
{
	r->rmem_alloc_bytes = sk->sk_backlog.rmem_alloc.counter;
	r->rcvbuf_bytes = sk->sk_rcvbuf;
	r->wmem_alloc_bytes = sk->sk_wmem_alloc.refs.counter - 1;
	r->sndbuf_bytes = sk->sk_sndbuf;
	r->fwd_alloc_bytes = sk->sk_forward_alloc;
	r->wmem_queued_bytes = sk->sk_wmem_queued;
	r->optmem_bytes = sk->sk_omem_alloc.counter;
	r->backlog_bytes = sk->sk_backlog.len;
	if (shared && bpf_core_field_exists(sk->sk_drop_counters) && sk->sk_drop_counters) {
		const struct numa_drop_counters *drops = SOCKET_AT(numa_drop_counters, sk->sk_drop_counters);

		r->drops = SOCKET_READ(drops, drops0.counter) + SOCKET_READ(drops, drops1.counter);
	} else {
		r->drops = sk->sk_drops.counter;
	}
}

static __always_inline u64 cgroup_id_of(const struct sock *sk)
{
	const struct sock_cgroup_data___shared *shared = (const void *)&sk->sk_cgrp_data;
	const struct kernfs_node *node;
	const struct cgroup *group;
	u64 at = 0;

	if (bpf_core_field_exists(sk->sk_cgrp_data.cgroup))
		at = (u64)sk->sk_cgrp_data.cgroup;
	else if (bpf_core_field_exists(shared->val))
		at = shared->val & CGROUP_FLAGS ? 0 : shared->val;
	else
		return 0;
	/* As sock_cgroup_ptr(): a socket without a group of its own is in the root. */
	if (!at)
		return CGROUP_ROOT_ID;
	group = SOCKET_AT(cgroup, at);
	node = SOCKET_AT(kernfs_node, SOCKET_READ(group, kn));
	return SOCKET_READ(node, id);
}

static __always_inline void read_cgroup(struct socket_record *r, const struct sock *sk)
{
	r->cgroup_id = cgroup_id_of(sk);
}

/* Fields that every full socket has, also one of the UNIX family. */
static __always_inline void read_owner(struct socket_record *r, const struct sock *sk)
{
	const struct sock_cgroup_data___shared *shared = (const void *)&sk->sk_cgrp_data;
	u32 class_id = 0;

	r->uid = sk->sk_uid.val;
	r->mark = sk->sk_mark;
	r->priority = sk->sk_priority;
	if (bpf_core_field_exists(shared->val))
		class_id = shared->val & 1 ? shared->val >> 32 : 0;
	else if (bpf_core_field_exists(sk->sk_cgrp_data.classid))
		class_id = sk->sk_cgrp_data.classid;
	/* As inet_diag does: classful qdiscs take the priority for a class. */
	r->class_id = class_id ?: r->priority;
	r->shutdown = sk->sk_shutdown;
	r->reuse = BPF_CORE_READ_BITFIELD(sk, __sk_common.skc_reuse) |
		   BPF_CORE_READ_BITFIELD(sk, __sk_common.skc_reuseport) << 1;
}

static __always_inline void read_attributes(struct socket_record *r, const struct inet_sock *inet)
{
	const struct sock *sk = &inet->sk;

	read_owner(r, sk);
	r->tos = inet->tos;
	if (r->family == AF_INET6) {
		if (bpf_core_field_exists(inet->pinet6) && inet->pinet6) {
			const struct ipv6_pinfo *v6 = SOCKET_AT(ipv6_pinfo, inet->pinet6);

			r->tclass = SOCKET_READ(v6, tclass);
		}
		if (sk->__sk_common.skc_state == LISTEN || sk->__sk_common.skc_state == CLOSE)
			r->ipv6_only = BPF_CORE_READ_BITFIELD(sk, __sk_common.skc_ipv6only);
	}
}

#define FLAG_AT(name, place) ((u32)(flags >> FLAGS_##name & 1) << (place))
#define BIT_AT(field, place) ((u32)BPF_CORE_READ_BITFIELD(bits, field) << (place))

/* struct inet_diag_sockopt */
static __always_inline u16 read_sock_flags(const struct inet_sock *inet)
{
	const struct inet_sock___bits *bits = (const void *)inet;
	unsigned long flags;

	if (bpf_core_field_exists(inet->inet_flags)) {
		flags = inet->inet_flags;
		return FLAG_AT(RECVERR, 0) | FLAG_AT(IS_ICSK, 1) | FLAG_AT(FREEBIND, 2) | FLAG_AT(HDRINCL, 3) |
		       FLAG_AT(MC_LOOP, 4) | FLAG_AT(TRANSPARENT, 5) | FLAG_AT(MC_ALL, 6) | FLAG_AT(NODEFRAG, 7) |
		       FLAG_AT(BIND_ADDRESS_NO_PORT, 8) | FLAG_AT(RECVERR_RFC4884, 9) | FLAG_AT(DEFER_CONNECT, 10);
	}
	if (!bpf_core_field_exists(bits->recverr) || !bpf_core_field_exists(bits->defer_connect))
		return 0;
	return BIT_AT(recverr, 0) | BIT_AT(is_icsk, 1) | BIT_AT(freebind, 2) | BIT_AT(hdrincl, 3) | BIT_AT(mc_loop, 4) |
	       BIT_AT(transparent, 5) | BIT_AT(mc_all, 6) | BIT_AT(nodefrag, 7) | BIT_AT(bind_address_no_port, 8) |
	       BIT_AT(recverr_rfc4884, 9) | BIT_AT(defer_connect, 10);
}

/* The expiry of the retransmission timer in jiffies. The field has moved twice between releases. */
static __always_inline unsigned long read_expires(const struct sock *base)
{
	const struct inet_connection_sock *icsk = (const void *)base;
	const struct sock___timer *sk = (const void *)base;

	if (bpf_core_field_exists(icsk->icsk_timeout))
		return icsk->icsk_timeout;
	if (bpf_core_field_exists(icsk->icsk_retransmit_timer))
		return icsk->icsk_retransmit_timer.expires;
	if (bpf_core_field_exists(sk->tcp_retransmit_timer))
		return sk->tcp_retransmit_timer.expires;
	return 0;
}

static __always_inline void read_timer(struct socket_record *r, const struct sock *sk,
				       const struct inet_connection_sock *icsk, const struct socket_reader *reader)
{
	u8 pending = icsk->icsk_pending;

	if (r->state != LISTEN) {
		r->retransmits = icsk->icsk_retransmits;
		r->probes = icsk->icsk_probes_out;
		r->backoff = icsk->icsk_backoff;
	}
	if (pending == PENDING_RETRANS || pending == PENDING_REO_TIMEOUT || pending == PENDING_LOSS_PROBE) {
		r->timer = 1;
		r->timer_ms = until_ms(read_expires(sk), reader->jiffies);
	} else if (pending == PENDING_PROBE0) {
		r->timer = 4;
		r->timer_ms = until_ms(read_expires(sk), reader->jiffies);
	} else if (bpf_core_field_exists(icsk->icsk_keepalive_timer)) {
		if (icsk->icsk_keepalive_timer.entry.pprev) {
			r->timer = 2;
			r->timer_ms = until_ms(icsk->icsk_keepalive_timer.expires, reader->jiffies);
		}
	} else if (sk->sk_timer.entry.pprev) {
		r->timer = 2;
		r->timer_ms = until_ms(sk->sk_timer.expires, reader->jiffies);
	}
}

/* The sequence numbers up to which data is acknowledged and received, and the byte counters that belong to them. */
struct progress {
	u32 snd_una;
	u32 rcv_nxt;
	u64 acked;
	u64 received;
};

/* Reads a sequence number and its byte counter. Their difference is constant (the initial sequence number). The kernel updates
 * both under the socket's lock, which is not held here. If the difference has changed between two reads, both are read again. */
#ifdef SOCKET_COPIES
/* The kernel writes the number last. So if it is still the one of the copy, the copy's counter belongs to it. */
#define READ_CONSISTENT(number, number_field, count, count_field)               \
	({                                                                      \
		const struct tcp_sock *now = SOCKET_AT(tcp_sock, address);      \
                                                                                \
		count = tp->count_field;                                        \
		number = SOCKET_READ(now, number_field);                        \
		if (number != tp->number_field) {                               \
			count = SOCKET_READ(now, count_field);                  \
			number = SOCKET_READ(now, number_field);                \
		}                                                               \
	})
#else
#define READ_CONSISTENT(number, number_field, count, count_field)                                          \
	({                                                                                                \
		u32 first = *(const volatile u32 *)&tp->number_field - (u32)*(const volatile u64 *)&tp->count_field; \
                                                                                                          \
		number = *(const volatile u32 *)&tp->number_field;                                        \
		count = *(const volatile u64 *)&tp->count_field;                                          \
		if (number - (u32)count != first) {                                                       \
			number = *(const volatile u32 *)&tp->number_field;                                \
			count = *(const volatile u64 *)&tp->count_field;                                  \
		}                                                                                         \
	})
#endif

/* `address`: of the socket that `tp` points to or is a copy of. */
static __always_inline struct progress read_progress(const struct tcp_sock *tp, u64 address)
{
	struct progress p;

	READ_CONSISTENT(p.snd_una, snd_una, p.acked, bytes_acked);
	READ_CONSISTENT(p.rcv_nxt, rcv_nxt, p.received, bytes_received);
	return p;
}

static __always_inline void read_queues(struct socket_record *r, const struct sock *sk, const struct tcp_sock *tp,
					const struct progress *progress)
{
	u32 write_seq;
	s32 unread, unsent;

	if (r->state == LISTEN) {
		r->accept_queue = sk->sk_ack_backlog;
		r->accept_limit = sk->sk_max_ack_backlog;
		return;
	}
	unread = progress->rcv_nxt - tp->copied_seq;
	write_seq = tp->write_seq;
	unsent = write_seq - tp->snd_nxt;
	r->rqueue_bytes = unread > 0 ? unread : 0;
	r->wqueue_bytes = write_seq - progress->snd_una;
	r->notsent_bytes = unsent > 0 ? unsent : 0;
}

static __always_inline void read_rtt(struct socket_record *r, const struct tcp_sock *tp)
{
	const struct inet_connection_sock *icsk = &tp->inet_conn;
	u32 ato = BPF_CORE_READ_BITFIELD(icsk, icsk_ack.ato), limit;

	if (bpf_core_field_exists(icsk->icsk_delack_max)) {
		/* tcp_delack_max(), except that an RTO minimum locked by the route is ignored. */
		limit = icsk->icsk_delack_max;
		if (bpf_core_field_exists(icsk->icsk_rto_min)) {
			u32 minimum = icsk->icsk_rto_min;

			minimum = (minimum > 2 ? minimum : 2) - 1;
			limit = limit < minimum ? limit : minimum;
		}
		ato = ato < limit ? ato : limit;
	}
	r->rto_us = ticks_us(icsk->icsk_rto);
	r->ato_us = ticks_us(ato);
	r->rtt_us = tp->srtt_us >> 3;
	r->rttvar_us = tp->mdev_us >> 2;
	r->min_rtt_us = unless(tp->rtt_min.s[0].v, NO_RTT);
	r->rcv_rtt_us = tp->rcv_rtt_est.rtt_us >> 3;
}

static __always_inline void read_cwnd(struct socket_record *r, const struct tcp_sock *tp)
{
	const struct inet_connection_sock *icsk = &tp->inet_conn;

	/* A listener's values are the defaults of the connections that it accepts. */
	if (r->state == LISTEN)
		return;
	r->snd_cwnd = tp->snd_cwnd;
	r->ca_state = BPF_CORE_READ_BITFIELD(icsk, icsk_ca_state);
	r->snd_mss = tp->mss_cache;
	r->rcv_mss = icsk->icsk_ack.rcv_mss;
	r->advmss = tp->advmss;
	r->pmtu = icsk->icsk_pmtu_cookie;
	r->snd_ssthresh = unless(tp->snd_ssthresh, NONE_YET);
}

static __always_inline void read_loss(struct socket_record *r, const struct tcp_sock *tp,
				      const struct socket_reader *reader)
{
	u32 stamp;

	if (r->state == LISTEN)
		return;
	r->reordering = tp->reordering;
	r->unacked = tp->packets_out;
	r->sacked = tp->sacked_out;
	r->lost = tp->lost_out;
	r->retrans = tp->retrans_out;
	r->total_retrans = tp->total_retrans;
	r->bytes_retrans = tp->bytes_retrans;
	r->dsack_dups = tp->dsack_dups;
	r->reord_seen = tp->reord_seen;
	if (bpf_core_field_exists(tp->rcv_ooopack))
		r->rcv_ooopack = tp->rcv_ooopack;
	r->rehash = tp->timeout_rehash;
	if (bpf_core_field_exists(tp->plb_rehash))
		r->rehash += tp->plb_rehash;
	if (bpf_core_field_exists(tp->total_rto)) {
		r->total_rto = tp->total_rto;
		r->total_rto_recoveries = tp->total_rto_recoveries;
		stamp = tp->rto_stamp;
		r->total_rto_time_ms = tp->total_rto_time + (stamp ? (u32)reader->now_ms - stamp : 0);
	}
}

static __always_inline void read_traffic(struct socket_record *r, const struct tcp_sock *tp, const struct progress *progress)
{
	r->bytes_sent = tp->bytes_sent;
	r->bytes_acked = progress->acked;
	r->bytes_received = progress->received;
	r->segs_out = tp->segs_out;
	r->segs_in = tp->segs_in;
	r->data_segs_out = tp->data_segs_out;
	r->data_segs_in = tp->data_segs_in;
	r->delivered = tp->delivered;
}

static __always_inline void read_times(struct socket_record *r, const struct tcp_sock *tp,
				       const struct socket_reader *reader)
{
	u32 now = reader->jiffies;

	r->last_data_sent_ms = ticks_ms(now - tp->lsndtime);
	r->last_data_recv_ms = ticks_ms(now - tp->inet_conn.icsk_ack.lrcvtime);
	r->last_ack_recv_ms = ticks_ms(now - tp->rcv_tstamp);
}

/* tcp_get_info_chrono_stats() */
static __always_inline void read_limits(struct socket_record *r, const struct tcp_sock *tp,
					const struct socket_reader *reader)
{
	u32 us = socket_tick_us ?: 1000000 / socket_tick_hz;
	u64 busy = tp->chrono_stat[0], rwnd = tp->chrono_stat[1], sndbuf = tp->chrono_stat[2];
	u32 since = (u32)reader->jiffies - tp->chrono_start;
	u32 running = BPF_CORE_READ_BITFIELD(tp, chrono_type);

	if (running == 1)
		busy += since;
	else if (running == 2)
		rwnd += since;
	else if (running == 3)
		sndbuf += since;
	r->busy_us = (busy + rwnd + sndbuf) * us;
	r->rwnd_limited_us = rwnd * us;
	r->sndbuf_limited_us = sndbuf * us;
}

static __always_inline void read_window(struct socket_record *r, const struct tcp_sock *tp)
{
	r->rcv_ssthresh = tp->rcv_ssthresh;
	r->rcv_space = tp->rcvq_space.space;
	r->snd_wnd = tp->snd_wnd;
	r->rcv_wnd = tp->rcv_wnd;
}

static __always_inline void read_rate(struct socket_record *r, const struct sock *sk, const struct tcp_sock *tp)
{
	u64 rate, interval;

	r->pacing_bytes_per_s = unless(sk->sk_pacing_rate, NO_RATE);
	r->max_pacing_bytes_per_s = unless(sk->sk_max_pacing_rate, NO_RATE);
	if (r->state == LISTEN)
		return;
	r->app_limited = BPF_CORE_READ_BITFIELD(tp, rate_app_limited);
	/* tcp_compute_delivery_rate() */
	rate = tp->rate_delivered;
	interval = tp->rate_interval_us;
	if (rate && interval)
		r->delivery_bytes_per_s = rate * tp->mss_cache * 1000000 / interval;
	else
		r->delivery_bytes_per_s = 0;
}

static __always_inline void read_ecn(struct socket_record *r, const struct tcp_sock *tp)
{
	r->delivered_ce = tp->delivered_ce;
	if (bpf_core_field_exists(tp->received_ce))
		r->received_ce = tp->received_ce;
	/* The index is the value of the ECN field minus one: ECT(1), ECT(0), CE. */
	if (bpf_core_field_exists(tp->delivered_ecn_bytes)) {
		r->delivered_e1_bytes = tp->delivered_ecn_bytes[0];
		r->delivered_e0_bytes = tp->delivered_ecn_bytes[1];
		r->delivered_ce_bytes = tp->delivered_ecn_bytes[2];
	}
	if (bpf_core_field_exists(tp->received_ecn_bytes)) {
		r->received_e1_bytes = tp->received_ecn_bytes[0];
		r->received_e0_bytes = tp->received_ecn_bytes[1];
		r->received_ce_bytes = tp->received_ecn_bytes[2];
	}
	if (bpf_core_field_exists(tp->accecn_fail_mode))
		r->accecn_fail_mode = BPF_CORE_READ_BITFIELD(tp, accecn_fail_mode);
	if (bpf_core_field_exists(tp->saw_accecn_opt))
		r->accecn_opt_seen = BPF_CORE_READ_BITFIELD(tp, saw_accecn_opt);
}

#include "sockets/congestion.bpf.h"

/* Extracts a bit field from `word`, the 16 bits that contain `known`. A field outside of them is read from memory. */
#define FIELD_BESIDE(word, s, known, field)                                                        \
	(__CORE_RELO(s, field, BYTE_OFFSET) == __CORE_RELO(s, known, BYTE_OFFSET) &&               \
			 __CORE_RELO(s, field, BYTE_SIZE) == 2 ?                                   \
		 (u64)(word) << __CORE_RELO(s, field, LSHIFT_U64) >> __CORE_RELO(s, field, RSHIFT_U64) : \
		 BPF_CORE_READ_BITFIELD(s, field))
#define RX_OPT(field) FIELD_BESIDE(word, tp, rx_opt.tstamp_ok, rx_opt.field)

static __always_inline u16 rx_opt_word(const struct tcp_sock *tp)
{
	return *(const u16 *)((const void *)tp + __CORE_RELO(tp, rx_opt.tstamp_ok, BYTE_OFFSET));
}

static __always_inline u8 read_tcp_options(const struct tcp_sock *tp, u16 word)
{
	u8 ecn = tp->ecn_flags, options = 0;

	options |= RX_OPT(tstamp_ok) ? 1 : 0;
	options |= RX_OPT(sack_ok) ? 2 : 0;
	options |= RX_OPT(wscale_ok) ? 4 : 0;
	options |= ecn & (ECN_RFC3168 | ECN_ACCECN) ? 8 : 0;
	options |= ecn & ECN_SEEN ? 16 : 0;
	options |= BPF_CORE_READ_BITFIELD(tp, syn_data_acked) ? 32 : 0;
	if (bpf_core_field_exists(tp->tcp_usec_ts))
		options |= BPF_CORE_READ_BITFIELD(tp, tcp_usec_ts) ? 64 : 0;
	if (bpf_core_field_exists(tp->syn_fastopen_child))
		options |= BPF_CORE_READ_BITFIELD(tp, syn_fastopen_child) ? 128 : 0;
	return options;
}

static __always_inline u8 read_ulp(const struct inet_connection_sock *icsk)
{
	const struct tcp_ulp_ops *ops = icsk->icsk_ulp_ops;
	u64 name = 0, tls = 0, mptcp = 0, smc = 0, esp = 0;

	if (!ops || bpf_core_read(&name, sizeof(name), &ops->name))
		return 0;
	__builtin_memcpy(&tls, "tls", 3);
	__builtin_memcpy(&mptcp, "mptcp", 5);
	__builtin_memcpy(&esp, "espintcp", 8);
	__builtin_memcpy(&smc, "smc", 3);
	return name == tls ? 1 : name == mptcp ? 2 : name == esp ? 3 : name == smc ? 4 : 255;
}

static __always_inline void read_options(struct socket_record *r, const struct inet_sock *inet, const struct tcp_sock *tp)
{
	u8 nagle = BPF_CORE_READ_BITFIELD(tp, nonagle);
	u16 word;

	r->sock_flags = read_sock_flags(inet);
	r->ulp = read_ulp(&tp->inet_conn);
	r->nodelay = (nagle & NAGLE_OFF ? 1 : 0) | (nagle & NAGLE_CORK ? 2 : 0);
	r->user_timeout_ms = tp->inet_conn.icsk_user_timeout;
	if (r->state == LISTEN)
		return;
	word = rx_opt_word(tp);
	r->tcp_options = read_tcp_options(tp, word);
	if (r->tcp_options & 4) {
		r->snd_wscale = RX_OPT(snd_wscale);
		r->rcv_wscale = RX_OPT(rcv_wscale);
	}
	r->fastopen_client_fail = BPF_CORE_READ_BITFIELD(tp, fastopen_client_fail);
}

/* The context of an MPTCP subflow, or 0 if the socket is not a subflow. */
static __always_inline u64 mptcp_context(const struct tcp_sock *tp)
{
	if (!bpf_core_field_exists(tp->is_mptcp) || !bpf_core_type_exists(struct mptcp_subflow_context) || !tp->is_mptcp)
		return 0;
	return (u64)tp->inet_conn.icsk_ulp_data;
}

/* The token of the MPTCP connection that the subflow belongs to. */
static __always_inline void read_subflow(struct socket_record *r, const struct tcp_sock *tp)
{
	struct mptcp_subflow_context *context = (void *)mptcp_context(tp);
	u32 token = 0;

	if (context && !bpf_core_read(&token, sizeof(token), &context->token))
		r->mptcp_token = token;
}

/* Call read_common() first. `state` was read once by the caller, because it can change at any time. */
static __always_inline void read_tcp_identity(struct socket_record *r, const struct sock *sk, u8 state)
{
	r->state = state;
	r->protocol = IPPROTO_TCP;
	r->sock_type = SOCK_STREAM;
	r->inode = read_inode(sk);
}

/* Reads a full TCP socket, in any state except TIME_WAIT and NEW_SYN_RECV. Call read_common() first. */
static __always_inline void read_tcp(struct socket_record *r, const struct tcp_sock *tp, u8 state, u32 groups,
				     struct socket_reader *reader)
{
	const struct inet_sock *inet = &tp->inet_conn.icsk_inet;
	const struct sock *sk = &inet->sk;
	bool listens = state == LISTEN;
	struct progress progress = {};

	read_tcp_identity(r, sk, state);
	if (!listens) {
		progress = read_progress(tp, r->address);
		r->birth_sent = progress.snd_una - (u32)progress.acked;
		r->birth_received = progress.rcv_nxt - (u32)progress.received;
	}
	if (WANTED(MEMORY))
		read_memory(r, sk, false);
	if (WANTED(ATTRIBUTES))
		read_attributes(r, inet);
	if (WANTED(CGROUP))
		read_cgroup(r, sk);
	if (WANTED(TIMER))
		read_timer(r, sk, &tp->inet_conn, reader);
	if (WANTED(CONGESTION))
		read_congestion(r, tp, reader);
	if (WANTED(RATE))
		read_rate(r, sk, tp);
	if (WANTED(CWND))
		read_cwnd(r, tp);
	if (WANTED(QUEUES))
		read_queues(r, sk, tp, &progress);
	if (WANTED(OPTIONS))
		read_options(r, inet, tp);
	if (WANTED(LOSS))
		read_loss(r, tp, reader);
	if (WANTED(MPTCP))
		read_subflow(r, tp);
	if (listens)
		return;
	if (WANTED(RTT))
		read_rtt(r, tp);
	if (WANTED(TRAFFIC))
		read_traffic(r, tp, &progress);
	if (WANTED(TIMES))
		read_times(r, tp, reader);
	if (WANTED(LIMITS))
		read_limits(r, tp, reader);
	if (WANTED(WINDOW))
		read_window(r, tp);
	if (WANTED(ECN))
		read_ecn(r, tp);
}

/* Reads an inet_timewait_sock, also one of an orphaned FIN_WAIT2 socket: the state is its substate, as inet_diag reports it.
 * Call read_common() first. */
static __always_inline void read_time_wait(struct socket_record *r, const struct inet_timewait_sock *tw, u32 groups,
					   const struct socket_reader *reader)
{
	r->state = tw->tw_substate;
	r->protocol = IPPROTO_TCP;
	r->sock_type = SOCK_STREAM;
	if (WANTED(TIMER)) {
		r->timer = 3;
		r->timer_ms = until_ms(tw->tw_timer.expires, reader->jiffies);
	}
	if (WANTED(ATTRIBUTES) && bpf_core_field_exists(tw->tw_mark))
		r->mark = tw->tw_mark;
}

/* Reads a connection request (NEW_SYN_RECV). Call read_common() first. */
static __always_inline void read_request(struct socket_record *r, const struct inet_request_sock *request, u32 groups,
					 const struct socket_reader *reader)
{
	r->state = NEW_SYN_RECV;
	r->protocol = IPPROTO_TCP;
	r->sock_type = SOCK_STREAM;
	if (WANTED(TIMER)) {
		r->timer = 1;
		r->timer_ms = until_ms(request->req.rsk_timer.expires, reader->jiffies);
	}
	if (WANTED(ATTRIBUTES))
		r->mark = request->ir_mark;
}

/* Call read_common() first. */
static __always_inline void read_udp(struct socket_record *r, const struct udp_sock *udp, u32 groups)
{
	const struct sock *sk = &udp->inet.sk;

	r->state = sk->__sk_common.skc_state;
	r->protocol = sk->sk_protocol;
	r->sock_type = sk->sk_type;
	r->inode = read_inode(sk);
	if (WANTED(QUEUES)) {
		r->rqueue_bytes = sk->sk_backlog.rmem_alloc.counter;
		if (bpf_core_field_exists(udp->forward_deficit))
			r->rqueue_bytes -= udp->forward_deficit;
		r->wqueue_bytes = sk->sk_wmem_alloc.refs.counter - 1;
	}
	if (WANTED(MEMORY))
		read_memory(r, sk, true);
	if (WANTED(ATTRIBUTES))
		read_attributes(r, &udp->inet);
	if (WANTED(CGROUP))
		read_cgroup(r, sk);
	if (WANTED(OPTIONS))
		r->sock_flags = read_sock_flags(&udp->inet);
}

/* Reads an MPTCP connection. Call read_common() with the connection's own sock_common first. */
static __always_inline void read_mptcp(struct socket_record *r, const struct mptcp_sock *msk, u8 state, u32 groups)
{
	const struct sock *sk = &msk->sk.icsk_inet.sk;
	const struct mptcp_pm_data___subflows *older = (const void *)&msk->pm;
	const struct sock *first = SOCKET_AT(sock, msk->first);
	u8 first_state = msk->first ? SOCKET_READ(first, __sk_common.skc_state) : 0;

	r->state = state;
	r->protocol = IPPROTO_MPTCP;
	r->sock_type = SOCK_STREAM;
	r->inode = read_inode(sk);
	if (WANTED(QUEUES) && state == LISTEN && msk->first) {
		r->accept_queue = SOCKET_READ(first, sk_ack_backlog);
		r->accept_limit = SOCKET_READ(first, sk_max_ack_backlog);
	} else if (WANTED(QUEUES) && state != LISTEN) {
		r->rqueue_bytes = sk->sk_backlog.rmem_alloc.counter;
		r->wqueue_bytes = sk->sk_wmem_alloc.refs.counter - 1;
	}
	if (WANTED(MEMORY))
		read_memory(r, sk, false);
	if (WANTED(ATTRIBUTES))
		read_attributes(r, &msk->sk.icsk_inet);
	if (WANTED(CGROUP))
		read_cgroup(r, sk);
	if (WANTED(OPTIONS))
		r->sock_flags = read_sock_flags(&msk->sk.icsk_inet);
	if (!WANTED(MPTCP))
		return;
	r->mptcp_token = msk->token;
	/* Bit 0: MPTCP_FALLBACK_DONE of net/mptcp/protocol.h. Bit 1: the peer's key was received. */
	r->mptcp_flags = (msk->flags >> 2 & 1) | (msk->can_ack ? 2 : 0);
	r->mptcp_retransmits = msk->sk.icsk_retransmits;
	/* Since 6.5. */
	if (bpf_core_field_exists(msk->bytes_sent)) {
		r->mptcp_bytes_sent = msk->bytes_sent;
		r->mptcp_bytes_received = msk->bytes_received;
		r->mptcp_bytes_retrans = msk->bytes_retrans;
		r->mptcp_bytes_acked = msk->bytes_acked;
	}
	if (bpf_core_field_exists(msk->pm.extra_subflows))
		r->mptcp_subflows = msk->pm.extra_subflows;
	else if (bpf_core_field_exists(older->subflows))
		r->mptcp_subflows = older->subflows;
	r->mptcp_subflows_total = r->mptcp_subflows + (first_state == ESTABLISHED || first_state == SYN_SENT ||
						       first_state == SYN_RECV || first_state == LISTEN);
}

#endif

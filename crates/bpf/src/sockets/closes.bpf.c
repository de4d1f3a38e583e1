// SPDX-License-Identifier: (LGPL-2.1 OR BSD-2-Clause)
/*
 * Reports every TCP socket that closes, with its final counters.
 *
 * Every socket changes its state to CLOSE at its end: after the last ACK, a reset, a timeout, a failed connect(), the close of a
 * listener, and on the transition to TIME_WAIT, for which the kernel creates an inet_timewait_sock and closes the socket. So a
 * socket that is reported here in FIN_WAIT2 or CLOSING may continue in TIME_WAIT, without counters. A connection request that
 * never became a socket (NEW_SYN_RECV) has no counters and is not reported. A socket that connects again after its end is
 * reported for each connection. The socket is locked during the call, so the counters are consistent.
 */
#include "sockets/follow.bpf.h"
#include "sockets/read.bpf.h"
#include <bpf/bpf_tracing.h>

#define LIST 64

#ifndef BPF_RB_NO_WAKEUP
#define BPF_RB_NO_WAKEUP 1
#define BPF_RB_FORCE_WAKEUP 2
#define BPF_RB_AVAIL_DATA 0
#endif

/* Set before load: the reader is woken when this many bytes wait. */
const volatile u64 wake_bytes = 1 << 20;

/* Set by user space: SOCKET_GROUP_... bits, a bit for each state before CLOSE, and two lists. An empty list means all. */
u32 wanted_groups;
u32 wanted_states;
u32 n_namespaces;
u32 n_ports;
u32 namespaces[LIST];
/* The port, with 0x10000 for the local end and 0x20000 for the remote end. */
u32 ports[LIST];

/* Each closed socket is counted in one of these. */
u64 reported;
u64 filtered;
u64 lost;

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4 << 20);
} ring SEC(".maps");

static __always_inline bool namespace_wanted(u32 inum)
{
	u32 i;

	if (!n_namespaces)
		return true;
	for (i = 0; i < LIST && i < n_namespaces; i++)
		if (namespaces[i] == inum)
			return true;
	return false;
}

static __always_inline bool port_wanted(u16 local, u16 remote)
{
	u32 i;

	if (!n_ports)
		return true;
	for (i = 0; i < LIST && i < n_ports; i++) {
		u32 port = ports[i];

		if ((port & 0x10000 && (u16)port == local) || (port & 0x20000 && (u16)port == remote))
			return true;
	}
	return false;
}

SEC("tp_btf/inet_sock_set_state")
int BPF_PROG(on_close, struct sock *sk, int oldstate, int newstate)
{
	struct sock_common *c = &sk->__sk_common;
	struct socket_reader reader;
	struct socket_record *r;
	struct tcp_sock *tp;
	u64 waiting, wake;
	u16 local;

	/* The kernel may set CLOSE again on a closed socket. */
	if (newstate != CLOSE || oldstate == CLOSE || sk->sk_protocol != IPPROTO_TCP)
		return 0;
	tp = bpf_skc_to_tcp_sock(sk);
	if (!tp)
		return 0;
	/* skc_num is 0 here, because the port was already released. */
	local = __builtin_bswap16(((struct inet_sock *)tp)->inet_sport);
	if (!(wanted_states >> (oldstate & 31) & 1) || !port_wanted(local, __builtin_bswap16(c->skc_dport)) ||
	    (n_namespaces && !namespace_wanted(c->skc_net.net->ns.inum))) {
		__sync_fetch_and_add(&filtered, 1);
		return 0;
	}
	r = bpf_ringbuf_reserve(&ring, sizeof(*r), 0);
	if (!r) {
		__sync_fetch_and_add(&lost, 1);
		return 0;
	}
	__builtin_memset(r, 0, sizeof(*r));
	socket_reader_begin(&reader);
	read_common(r, c, (u64)c);
	read_tcp(r, tp, oldstate, wanted_groups, &reader);
	r->local_port = local;
	r->record_flags = SOCKET_FLAG_CLOSED;
	__sync_fetch_and_add(&reported, 1);
	/* Once per crossing of the threshold: a reader that is awake needs no further wake-up. */
	waiting = bpf_ringbuf_query(&ring, BPF_RB_AVAIL_DATA);
	wake = waiting >= wake_bytes && waiting < wake_bytes + 2 * (sizeof(*r) + 8);
	bpf_ringbuf_submit(r, wake ? BPF_RB_FORCE_WAKEUP : BPF_RB_NO_WAKEUP);
	return 0;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";

// SPDX-License-Identifier: (LGPL-2.1 OR BSD-2-Clause)
/*
 * Redirects data that a TCP socket receives to another TCP socket, in the kernel.
 *
 * The key of a direction is the cookie of its source socket. The program runs for data that arrives at the sockets in `sources`.
 * `sinks` has no program, so a socket that is only in `sinks` receives as usual.
 *
 * The kernel treats redirected bytes as read, so the source's receive window stays open even if the sink is slow (measured:
 * 1 GiB was accepted for a sink whose peer did not read). So the program compares the bytes that it has redirected with those
 * that were written to the sink's send queue. If the difference is too large, it passes this and all later data to the source's
 * receive queue, for user space to copy. A direction never goes back to redirection, because redirected data would overtake the
 * data in that queue.
 *
 * A segment with only a FIN is dropped; TCP has processed the FIN by then. If it were queued, the queue would stop for ever
 * (sk_psock_backlog() of net/core/skmsg.c treats a send of zero bytes as EPIPE). The queue is shared: data that is passed to a
 * socket waits in it behind data that the other direction redirects to that socket.
 */
#include "kernel.h"
#include <bpf/bpf_helpers.h>

struct direction {
	u64 redirected;   /* bytes */
	u64 passed;       /* bytes passed to the source's receive queue */
	u32 passing;      /* not 0: redirection has stopped */
	u32 begun;        /* `first` is set */
	u32 first;        /* the sink's write_seq before the first redirected byte */
	u32 pad;
};

/* Set before load: the most bytes that may be redirected and not yet in the sink's send queue. */
const volatile u32 max_in_flight = 4 << 20;

struct {
	__uint(type, BPF_MAP_TYPE_SOCKHASH);
	__uint(max_entries, 65536);
	__type(key, u64);
	__type(value, u64);
} sources SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_SOCKHASH);
	__uint(max_entries, 65536);
	__type(key, u64);
	__type(value, u64);
} sinks SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 65536);
	__type(key, u64);
	__type(value, struct direction);
} directions SEC(".maps");

/* Whether at most `max_in_flight` bytes are between source and sink. No other run for the same source is concurrent. */
static __always_inline int keeps_up(struct direction *d, u64 cookie)
{
	struct bpf_sock *sk = bpf_map_lookup_elem(&sinks, &cookie);
	struct tcp_sock *tp;
	u32 written = 0;
	int known = 0;

	if (!sk)
		return 0;
	tp = (void *)bpf_skc_to_tcp_sock(sk);
	if (tp) {
		known = 1;
		written = tp->write_seq;
	}
	bpf_sk_release(sk);
	if (!known)
		return 0;
	if (!d->begun) {
		d->first = written;
		d->begun = 1;
	}
	return (u32)d->redirected - (written - d->first) <= max_in_flight;
}

SEC("sk_skb/stream_verdict")
int redirect(struct __sk_buff *skb)
{
	u64 cookie = bpf_get_socket_cookie(skb);
	struct direction *d = bpf_map_lookup_elem(&directions, &cookie);
	u32 len = skb->len;

	if (!len)
		return SK_DROP;
	if (!d)
		return SK_PASS;
	if (!d->passing && keeps_up(d, cookie) && bpf_sk_redirect_hash(skb, &sinks, &cookie, 0) == SK_PASS) {
		d->redirected += len;
		return SK_PASS;
	}
	d->passing = 1;
	d->passed += len;
	return SK_PASS;
}

char _license[] SEC("license") = "Dual BSD/GPL";

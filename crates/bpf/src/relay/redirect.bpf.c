// SPDX-License-Identifier: (LGPL-2.1 OR BSD-2-Clause)
/*
 * Redirects what a socket receives to another socket, in the kernel.
 *
 * A direction is named by the cookie of its source. `sources` runs the program on what its sockets receive; `sinks` has no
 * program, so a socket that is only written to is received from as ever.
 *
 * Redirected bytes count as read at once, so the source's window stays open however slow the sink is (measured: 1 GiB
 * taken for a sink that nobody read). So the program counts what it has redirected and compares it with what the sink
 * has taken; when too much is on its way it lets this and all that follows pass to the source's own receive queue, for
 * user space to copy. There is no way back: redirected bytes would overtake those that wait in the queue.
 *
 * A segment that only carries the end of data is dropped: the socket knows of the end by then. Queued, it would stop the
 * queue that it is in for good (skmsg.c, sk_psock_backlog: what moves no byte is a broken pipe), and that queue is
 * shared: what passes to a socket waits in it behind what the other direction redirects there.
 */
#include "kernel.h"
#include <bpf/bpf_helpers.h>

struct direction {
	u64 redirected;   /* bytes */
	u64 passed;       /* bytes */
	u32 passing;      /* redirects no more */
	u32 begun;        /* `first` is set */
	u32 first;        /* the sink's write_seq before the first redirected byte */
	u32 pad;
};

/* Set before load: bytes on their way. */
const volatile u32 most = 4 << 20;

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

/* Whether the sink keeps up. The kernel runs the program for one piece of a socket at a time. */
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
	return (u32)d->redirected - (written - d->first) <= most;
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

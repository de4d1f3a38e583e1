/* SPDX-License-Identifier: (LGPL-2.1 OR BSD-2-Clause) */
/* Counts what happens to connections, by the process that has them: those of processes that are only followed are none of the
 * subject's, and which these are is known in user space. */

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 8192);
	__type(key, struct net_key);
	__type(value, struct net_value);
} net_counts SEC(".maps");

static __always_inline void count_net(struct net_key *k, u32 which)
{
	static const struct net_value none = {};
	struct net_value *v = bpf_map_lookup_elem(&net_counts, k);

	if (!v) {
		/* Another CPU may be first. */
		bpf_map_update_elem(&net_counts, k, &none, BPF_NOEXIST);
		v = bpf_map_lookup_elem(&net_counts, k);
	}
	if (v && which < NET_N)
		__sync_fetch_and_add(&v->n[which], 1);
}

static __always_inline void port_key(struct sock *sk, struct flow *st, struct net_key *k)
{
	k->followed = st->listener_followed;
	k->netns = BPF_CORE_READ(sk, __sk_common.skc_net.net, ns.inum);
	/* Unlike skc_num, it is still there when the socket has closed. */
	k->port = bpf_ntohs(BPF_CORE_READ((struct inet_sock *)sk, inet_sport));
}

/* By the process that has the connection. Of one that nobody has read from yet, only the port is known. */
static __noinline void count_of(struct sock *sk, struct flow *st, u32 which)
{
	struct net_key k = {};

	k.tgid = st->tgid;
	if (k.tgid)
		k.followed = is_followed(k.tgid);
	else
		port_key(sk, st, &k);
	count_net(&k, which);
}

/* A connection was accepted, by whomever: by the port of its listener. */
static __always_inline void count_accepted(struct sock *sk, struct flow *st)
{
	struct net_key k = {};

	port_key(sk, st, &k);
	count_net(&k, NET_ACCEPTED);
}

/* SPDX-License-Identifier: (LGPL-2.1 OR BSD-2-Clause) */
/* Counts the segments that open connections and that a packet filter of this host drops (netfilter: nftables, iptables, a full table of
 * connections). TCP never sees them, so neither a socket nor a counter of TCP tells of them. Drops are rare, and all other reasons are
 * left at once. */

/* include/net/dropreason-core.h, since Linux 5.17: the number differs between kernels. */
enum skb_drop_reason { SKB_DROP_REASON_NETFILTER_DROP = 1 };

struct net_device {
	possible_net_t nd_net;
} __attribute__((preserve_access_index));

#define TCP_SYN 2
#define TCP_ACK 16

/* The port that a SYN is for, in host order; 0 for any other packet. */
static __noinline u16 syn_port(struct sk_buff *skb)
{
	u8 *network = BPF_CORE_READ(skb, head) + BPF_CORE_READ(skb, network_header);
	u8 ip[10], tcp[14];
	u32 length = 40, next;

	if (bpf_probe_read_kernel(ip, sizeof(ip), network))
		return 0;
	next = ip[6];
	if (ip[0] >> 4 == 4) {
		/* Only the first fragment has the header of TCP. */
		if ((ip[6] & 0x1f) | ip[7])
			return 0;
		length = (ip[0] & 15) * 4;
		next = ip[9];
	}
	if (next != IPPROTO_TCP || bpf_probe_read_kernel(tcp, sizeof(tcp), network + length))
		return 0;
	return (tcp[13] & (TCP_SYN | TCP_ACK)) == TCP_SYN ? (u16)(tcp[2] << 8 | tcp[3]) : 0;
}

SEC("tp_btf/kfree_skb")
int BPF_PROG(on_drop, struct sk_buff *skb)
{
	struct net_key k = {};

	/* Kernels before 5.17 give no reason. */
	if (!bpf_core_enum_value_exists(enum skb_drop_reason, SKB_DROP_REASON_NETFILTER_DROP))
		return 0;
	if ((u32)ctx[2] != bpf_core_enum_value(enum skb_drop_reason, SKB_DROP_REASON_NETFILTER_DROP) || between_windows)
		return 0;
	k.port = syn_port(skb);
	if (!k.port || (port && k.port != port && !(has_more_ports && bpf_map_lookup_elem(&more_ports, &k.port))))
		return 0;
	k.netns = BPF_CORE_READ(skb, dev, nd_net.net, ns.inum);
	count_net(&k, NET_SYN_FILTERED);
	return 0;
}

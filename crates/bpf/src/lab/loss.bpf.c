// SPDX-License-Identifier: (LGPL-2.1 OR BSD-2-Clause)
/*
 * Loses IP packets at the ingress of a device (TCX): by chance from a seed, and by a list of their numbers.
 *
 * Loss must be made where packets arrive. The stack of the sender takes a drop at its own egress for local congestion and does not
 * wait for an ACK that will not come. The device should receive single segments: a dropped superframe is a burst of forty.
 *
 * Whether a packet is lost depends on its number and the seed alone, as in `parshall_core::testbed::is_lost`, which computes the same.
 */
#include "kernel.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_endian.h>

enum { RANGES_MAX = 64, ETH_P_IP = 0x0800, ETH_P_IPV6 = 0x86dd, CHANCE_LOSS = 1 };

/* include/uapi/linux/bpf.h since Linux 6.6: enum tcx_action_base */
enum { TCX_NEXT = -1, TCX_DROP = 2 };

struct range {
	u64 first;
	u64 last;
};

/* Set before load. A packet is lost if its 32 random bits are below `threshold`. */
const volatile u64 seed;
const volatile u64 threshold;
const volatile u32 ranges;
const volatile struct range lost_ranges[RANGES_MAX];

/* IP packets that have arrived, and those of them that were lost. User space reads them, and sets them to 0 before a run. */
struct counts {
	u64 packets;
	u64 lost;
} counts;

static __always_inline u64 mix(u64 value)
{
	value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9ULL;
	value = (value ^ (value >> 27)) * 0x94d049bb133111ebULL;
	return value ^ (value >> 31);
}

static __always_inline int is_listed(u64 number)
{
	u32 i;

	for (i = 0; i < RANGES_MAX; i++) {
		if (i >= ranges)
			break;
		if (number >= lost_ranges[i].first && number <= lost_ranges[i].last)
			return 1;
	}
	return 0;
}

SEC("tcx/ingress")
int lose(struct __sk_buff *skb)
{
	u64 number, random;

	/* Address resolution has no number in a TUN device, so it has none here either. */
	if (skb->protocol != bpf_htons(ETH_P_IP) && skb->protocol != bpf_htons(ETH_P_IPV6))
		return TCX_NEXT;
	number = __sync_fetch_and_add(&counts.packets, 1) + 1;
	random = mix((seed + number * 0x9e3779b97f4a7c15ULL) ^ ((u64)CHANCE_LOSS << 56)) >> 32;
	if (random >= threshold && !is_listed(number))
		return TCX_NEXT;
	__sync_fetch_and_add(&counts.lost, 1);
	return TCX_DROP;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";

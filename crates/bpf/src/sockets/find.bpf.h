/* SPDX-License-Identifier: (LGPL-2.1 OR BSD-2-Clause) */
/*
 * Reads connections in two steps. Part of walk.bpf.c. Nearly all of the time is cache misses on the sockets, and the chains of
 * a hash table visit them in random order. So the first step only collects addresses: it follows many chains at a time and
 * reads one cache line of each socket. User space sorts the addresses. The second step reads the sockets in the order of their
 * addresses, in which a cache miss takes less than half the time.
 *
 * Between the steps a socket can be freed and its memory reused. So the second step only accepts a socket that is in the same
 * table, in one of the buckets that the first step has searched. Such a socket exists now, and no other batch contains it.
 */
#ifndef PARSHALL_SOCKETS_FIND_H
#define PARSHALL_SOCKETS_FIND_H

/* Addresses of one batch. */
#define FOUND (1 << 19)
/* Chains that are followed at the same time. */
#define WIDTH 128
/* Sockets that are prefetched together if few lines of each are needed. */
#define PREFETCH_MAX 16
/* Most connections that one run reads. It ends earlier if the array of records is full. */
#define READ_MAX 16384

struct found {
	u64 addresses[FOUND];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct found);
} found SEC(".maps");

/* Addresses of one batch, at most FOUND. Tests make it smaller. */
const volatile u32 batch_max = FOUND;

/* The heads of a block's chains; the current node of each chain that has not ended, and the chain's bucket within the block. */
u64 chain_heads[WIDTH] = {};
u64 nodes[WIDTH] = {};
u64 places[WIDTH] = {};

struct {
	u32 active;
	u32 first;
	u32 moved;
	u32 batch_full;
	u32 tries;
	/* Second step: the first connection of the batch that was not prefetched. */
	u32 prefetched;
} search = {};

#ifndef SOCKET_COPIES
/*
 * Prefetches the cache line of an address, so that the CPU waits for many lines at once. BPF has no prefetch instruction; a
 * load whose value is not used has the same effect.
 */
static __always_inline void prefetch_word(u64 address)
{
	u64 value = word_at(address);

	asm volatile("" : : "r"(value));
}

/*
 * A separate loop, because the fewer instructions are between two loads, the more cache misses overlap. A separate global
 * function, because the verifier then does not check the caller's code once for each number of iterations.
 */
__noinline int prefetch_nodes(u32 left)
{
	u32 i;

	for (i = 0; i < WIDTH; i++) {
		if (i >= left)
			break;
		prefetch_word(nodes[i]);
	}
	return 0;
}
#endif

/* Moves one node along all chains that have not ended. The loop has no branch on the node that was just loaded, which would
 * have to wait for the load. */
STEP(on_step)
{
	u32 zero = 0, i, left = search.active, count = job.found, still = 0;
	struct found *all = bpf_map_lookup_elem(&found, &zero);
	u64 base = at.base, moved = 0;

	if (!all || !left)
		return 1;
	if (count + left > batch_max) {
		search.batch_full = 1;
		return 1;
	}
#ifndef SOCKET_COPIES
	prefetch_nodes(left);
#endif
	for (i = 0; i < WIDTH; i++) {
		u64 node, place, next, end;

		if (i >= left)
			break;
		node = nodes[i];
		place = places[i];
		next = word_at(node + OFFSET(hlist_nulls_node, next));
		all->addresses[count & (FOUND - 1)] = node - OFFSET(sock_common, skc_nulls_node);
		count++;
		end = is_end(next);
		/* The end marker of a chain is the number of its bucket. Another number means that a socket has moved. */
		moved |= -end & (next ^ ((base + place) << 1 | 1));
		nodes[still & (WIDTH - 1)] = next;
		places[still & (WIDTH - 1)] = place;
		still += end ^ 1;
	}
	search.active = still;
	search.moved |= moved != 0;
	job.found = count;
	return 0;
}

/* Fills `nodes` and `places` with the chains of a block that are not empty, and returns their number. */
static __always_inline u32 read_block_heads(void)
{
	u64 bytes = (u64)(at.total - at.base) * sizeof(u64);
	u32 n = 0, i;

	/* read_heads() is not used, because its loop over single heads would take most of the verifier's time. It is not needed: a
	 * bucket of connections is 8 bytes, and only a table smaller than a block ends within a block. */
	if (bytes < sizeof(chain_heads))
		__builtin_memset(chain_heads, 0, sizeof(chain_heads));
	/* Makes the compiler test the register that it passes, as the verifier requires. */
	asm volatile("" : "+r"(bytes));
	if (bytes > sizeof(chain_heads))
		bytes = sizeof(chain_heads);
	bpf_probe_read_kernel(chain_heads, bytes, (void *)(at.heads_at + (u64)at.base * sizeof(u64)));
	for (i = 0; i < WIDTH; i++) {
		u64 head = chain_heads[i];

		nodes[n & (WIDTH - 1)] = head;
		places[n & (WIDTH - 1)] = i;
		n += is_end(head) ^ 1;
	}
	return n;
}

/* Searches the next block of buckets. A block in which a socket moved to another chain is searched again. */
STEP(on_find_block)
{
	if (!begin_block(WIDTH))
		return 1;
	search.first = job.found;
	search.moved = 0;
	search.batch_full = 0;
	search.active = read_block_heads();
	LONG_LOOP(CHAIN_MAX, on_step);
	if (search.batch_full && search.first) {
		/* The block goes to the next batch. */
		job.found = search.first;
		job.batch_ready = 1;
		at.stop = 1;
		return 1;
	}
	if (search.active) {
		job.chains_cut++;
	} else if (search.moved) {
		job.interrupted++;
		if (++search.tries < TRIES) {
			job.found = search.first;
			return 0;
		}
		job.expected++;
		job.torn++;
	}
	search.tries = 0;
	job.bucket = at.base + WIDTH;
	return 0;
}

/* Appends addresses of connections of the table to the batch. A batch contains connections of a single table. */
__noinline int find_table(void)
{
	if (!job.found)
		job.first_bucket = job.bucket;
	search.tries = 0;
	LOOP(BUCKETS_PER_RUN / WIDTH + 1, on_find_block);
	job.end_bucket = job.bucket;
	job.buckets = at.total;
	if (!at.stop && job.found) {
		job.batch_ready = 1;
		at.stop = 1;
	}
	return 0;
}

/* A copy reads a socket's lines one after the other, which the CPU prefetches by itself. */
#ifndef SOCKET_COPIES
#define LINE 64

#define LINE_OF(type, field) (1ull << (bpf_core_field_offset(struct type, field) / LINE & 63))

/* It has no branch, because the verifier would check all combinations of groups. */
#define FOR(group, lines) (-(u64)(groups / SOCKET_GROUP_##group & 1) & (lines))

/* The cache lines of a TCP socket that these groups need, as a bit mask. */
static __always_inline u64 lines_of(u32 groups)
{
	u64 lines = 3 | LINE_OF(tcp_sock, snd_una) | LINE_OF(tcp_sock, bytes_acked) | LINE_OF(tcp_sock, rcv_nxt) |
		    LINE_OF(tcp_sock, bytes_received);

	if (bpf_core_field_exists(((struct sock *)0)->sk_ino))
		lines |= LINE_OF(sock, sk_ino);
	lines |= FOR(MEMORY, LINE_OF(sock, sk_drops) | LINE_OF(sock, sk_backlog) | LINE_OF(sock, sk_rcvbuf) |
			 LINE_OF(sock, sk_wmem_alloc) | LINE_OF(sock, sk_sndbuf));
	lines |= FOR(RATE, LINE_OF(sock, sk_pacing_rate) | LINE_OF(sock, sk_max_pacing_rate) | LINE_OF(tcp_sock, mss_cache) |
			 LINE_OF(tcp_sock, rate_delivered));
	lines |= FOR(ATTRIBUTES, LINE_OF(sock, sk_mark) | LINE_OF(inet_sock, tos));
	lines |= FOR(CGROUP, LINE_OF(sock, sk_cgrp_data));
	lines |= FOR(TIMER, LINE_OF(sock, sk_timer) | LINE_OF(inet_connection_sock, icsk_retransmits));
	lines |= FOR(OPTIONS, LINE_OF(inet_sock, tos) | LINE_OF(inet_connection_sock, icsk_ulp_ops) | LINE_OF(tcp_sock, ecn_flags) |
			 LINE_OF(tcp_sock, rx_opt));
	lines |= FOR(CONGESTION, LINE_OF(inet_connection_sock, icsk_ca_ops) | LINE_OF(inet_connection_sock, icsk_ca_priv) |
			 LINE_OF(tcp_sock, mss_cache));
	lines |= FOR(RTT, LINE_OF(inet_connection_sock, icsk_rto) | LINE_OF(inet_connection_sock, icsk_ack) |
			 LINE_OF(tcp_sock, rtt_min) | LINE_OF(tcp_sock, mdev_us) | LINE_OF(tcp_sock, srtt_us) |
			 LINE_OF(tcp_sock, rcv_rtt_est));
	lines |= FOR(CWND, LINE_OF(inet_connection_sock, icsk_pmtu_cookie) | LINE_OF(inet_connection_sock, icsk_ack) |
			 LINE_OF(tcp_sock, snd_cwnd) | LINE_OF(tcp_sock, snd_ssthresh));
	lines |= FOR(QUEUES, LINE_OF(tcp_sock, copied_seq) | LINE_OF(tcp_sock, write_seq) | LINE_OF(tcp_sock, rcv_nxt));
	lines |= FOR(TRAFFIC, LINE_OF(tcp_sock, segs_out) | LINE_OF(tcp_sock, delivered) | LINE_OF(tcp_sock, bytes_received) |
			 LINE_OF(tcp_sock, bytes_acked));
	lines |= FOR(TIMES, LINE_OF(inet_connection_sock, icsk_ack) | LINE_OF(tcp_sock, lsndtime) | LINE_OF(tcp_sock, rcv_tstamp));
	lines |= FOR(LIMITS, LINE_OF(tcp_sock, chrono_stat));
	lines |= FOR(WINDOW, LINE_OF(tcp_sock, rcv_ssthresh) | LINE_OF(tcp_sock, snd_wnd) | LINE_OF(tcp_sock, rcv_wnd) |
			 LINE_OF(tcp_sock, rcvq_space));
	lines |= FOR(ECN, LINE_OF(tcp_sock, delivered_ce) | LINE_OF(tcp_sock, bytes_acked) | LINE_OF(tcp_sock, dsack_dups));
	lines |= FOR(LOSS, LINE_OF(tcp_sock, reordering) | LINE_OF(tcp_sock, retrans_out) | LINE_OF(tcp_sock, packets_out) |
			 LINE_OF(tcp_sock, dsack_dups) | LINE_OF(tcp_sock, reord_seen) | LINE_OF(tcp_sock, total_retrans) |
			 LINE_OF(tcp_sock, rcv_ooopack));
	if (bpf_core_field_exists(((struct tcp_sock *)0)->is_mptcp))
		lines |= FOR(MPTCP, LINE_OF(tcp_sock, is_mptcp));
	return lines;
}

/* Offsets of the cache lines to prefetch, in bytes from the beginning of a socket. */
#define PREFETCH_LINES 64
u16 prefetched[PREFETCH_LINES] = {};
u32 n_prefetched = 0;

/*
 * Fills `prefetched`. Memory delivers consecutive lines at twice the rate of lines with gaps. So if at least half of the lines
 * up to the last one are needed, all of them are prefetched. If a socket has many lines, those of one socket already keep the
 * CPU's miss buffers busy, and they are still in the L1 cache when they are read. If it has few, on_found() prefetches several
 * sockets at a time.
 */
__noinline int plan_prefetch(void)
{
	/* With rules, most sockets are probably filtered out: only the lines that the rules test are prefetched. */
	const u64 lines = job.rules & ~RULE_CHANGED ? 3 : lines_of(job.groups);
	u32 n = 0, end = 0, i, dense;

	for (i = 0; i < PREFETCH_LINES; i++) {
		prefetched[n & (PREFETCH_LINES - 1)] = i * LINE;
		n += lines >> i & 1;
		end ^= (end ^ (i + 1)) & -(u32)(lines >> i & 1);
	}
	dense = -(u32)(2 * n >= end);
	for (i = 0; i < PREFETCH_LINES; i++)
		prefetched[i] = (prefetched[i] & ~dense) | (i * LINE & dense);
	n_prefetched = (n & ~dense) | (end & dense);
	return 0;
}

static __always_inline void prefetch(u64 address)
{
	u32 n = n_prefetched, i;

	for (i = 0; i < PREFETCH_LINES; i++) {
		if (i >= n)
			break;
		prefetch_word(address + prefetched[i]);
	}
}

__noinline int prefetch_block(u32 first)
{
	u32 zero = 0, i;
	struct found *all = bpf_map_lookup_elem(&found, &zero);

	if (!all)
		return 0;
	for (i = 0; i < PREFETCH_MAX; i++) {
		if (first + i >= job.found)
			break;
		prefetch(all->addresses[(first + i) & (FOUND - 1)]);
	}
	return 0;
}

/* Prefetches the next connection of the batch, or several. */
static __always_inline void prefetch_found(u32 next, u64 address)
{
	if (n_prefetched > PREFETCH_MAX) {
		prefetch(address);
	} else if (next >= search.prefetched) {
		prefetch_block(next);
		search.prefetched = next + PREFETCH_MAX;
	}
}
#else
static __always_inline void plan_prefetch(void)
{
}

static __always_inline void prefetch_found(u32 next, u64 address)
{
}
#endif

/*
 * Whether this memory is a connection in the batch's table, in one of the batch's buckets. The memory may have been reused
 * since. Only a socket has a pointer to a network namespace at that offset.
 */
static __always_inline bool is_in_batch(const struct sock_common *c, struct identity identity)
{
	const struct net *net = SOCKET_AT(net, identity.net);
	u32 bucket = c->skc_hash & (job.buckets - 1);

	if (!c->skc_nulls_node.pprev || bucket < job.first_bucket || bucket >= job.end_bucket)
		return false;
#ifdef SOCKET_COPIES
	socket_netns(identity.net);
	if (!known_net.hashinfo)
		known_net.hashinfo = hashinfo_of(net);
	return known_net.ops == job.ns_ops && known_net.hashinfo == job.table;
#else
	return number_of(SOCKET_READ(net, ns.ops)) == job.ns_ops && hashinfo_of(net) == job.table;
#endif
}

/* Reads one connection if it still exists. Discards the records if the socket was replaced during the read. */
static __always_inline int take_found(u64 address)
{
	struct identity before = identity_of(address);
	const struct sock_common *c = SOCKET_OF_IDENTITY(address);
	int taken;

	if (!is_in_batch(c, before))
		return TAKEN;
	taken = take_tcp_inline(address, 0);
	if (taken == TAKEN)
		taken = take_its_mptcp(address);
	if (taken == TAKEN && !same_identity(before, identity_of(address)))
		taken = TORN;
	if (taken == TAKEN)
		commit();
	else
		discard_bucket();
	return taken;
}

/* Reads the next connection of the batch. */
STEP(on_found)
{
	u32 zero = 0, next = job.next_found;
	struct found *all = bpf_map_lookup_elem(&found, &zero);
	u64 address;
	int taken;

	if (!all || next >= job.found)
		return 1;
	address = all->addresses[next & (FOUND - 1)];
	prefetch_found(next, address);
	taken = take_found(address);
	if (taken == RECORDS_FULL)
		return 1;
	if (taken == TORN) {
		job.interrupted++;
		if (++at.tries < TRIES)
			return 0;
		job.expected++;
		job.torn++;
	}
	at.tries = 0;
	job.next_found = next + 1;
	return 0;
}

__noinline int read_found(void)
{
	plan_prefetch();
	search.prefetched = 0;
	LONG_LOOP(READ_MAX, on_found);
	return 0;
}

#endif

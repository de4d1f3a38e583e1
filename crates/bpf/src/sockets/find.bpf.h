/* SPDX-License-Identifier: (LGPL-2.1 OR BSD-2-Clause) */
/*
 * Connections, in two steps: part of walk.bpf.c. Nearly all of the time goes into waiting for sockets' memory, and the chains
 * of a hash table lead through it at random. So some runs only find the sockets, one cache line of each, along many chains at a
 * time; user space puts their addresses in order; further runs read the sockets as they lie in memory, where a line takes less
 * than half the time.
 *
 * A socket can go between the steps, and its memory become another's. What is read must therefore hang in the same table, in
 * one of the buckets that were gone through: then it is a connection of this moment, and no other batch of addresses has it.
 */
#ifndef PARSHALL_SOCKETS_FIND_H
#define PARSHALL_SOCKETS_FIND_H

/* Addresses of one batch. */
#define FOUND (1 << 19)
/* Chains that are followed side by side. */
#define WIDTH 128
/* Sockets whose memory is prefetched together, where few lines of each are. */
#define PREFETCH_MAX 16
/* Connections of one run, which ends before when the records do. */
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

/* Fewer than FOUND when a test wants several batches. */
const volatile u32 batch_max = FOUND;

/* The heads of a block's chains; where those stand that go on, and which bucket each belongs to, counted from the first. */
u64 chain_heads[WIDTH] = {};
u64 nodes[WIDTH] = {};
u64 places[WIDTH] = {};

struct {
	u32 going_on;
	u32 first;
	u32 astray;
	u32 no_room;
	u32 tries;
	/* Reading: up to which connection lines are prefetched, where those of several are. */
	u32 prefetched;
} way = {};

/*
 * Prefetches the cache line of an address. Memory is prefetched before anything of it is used: the CPU then waits for many lines
 * at once. BPF cannot prefetch; a load whose value nobody uses does the same.
 */
static __always_inline void prefetch_word(u64 address)
{
	u64 value = word_at(address);

	asm volatile("" : : "r"(value));
}

/* In a loop of its own: the more instructions between two prefetched lines, the fewer are under way at once. In a
 * function of its own, because the verifier then does not follow each of its ends through what comes next. */
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

/* One step in all chains that go on. What a chain leads to is noted before it is known whether it goes on, without a branch that
 * would have to wait for it. */
static long on_step(u32 step, void *unused)
{
	u32 zero = 0, i, left = way.going_on, count = job.found, still = 0;
	struct found *all = bpf_map_lookup_elem(&found, &zero);
	u64 base = at.base, astray = 0;

	if (!all || !left)
		return 1;
	if (count + left > batch_max) {
		way.no_room = 1;
		return 1;
	}
	prefetch_nodes(left);
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
		/* A chain ends with the number of its bucket, else the way led into another chain. */
		astray |= -end & (next ^ ((base + place) << 1 | 1));
		nodes[still & (WIDTH - 1)] = next;
		places[still & (WIDTH - 1)] = place;
		still += end ^ 1;
	}
	way.going_on = still;
	way.astray |= astray != 0;
	job.found = count;
	return 0;
}

/* Collects the chains of a block that are not empty, and returns their number. */
static __always_inline u32 read_block_heads(void)
{
	u64 bytes = (u64)(at.total - at.base) * sizeof(u64);
	u32 n = 0, i;

	/* Without read_heads(), whose loop over single heads would be most of what the verifier checks. The buckets of connections
	 * are eight bytes each, and only a table smaller than a block ends within one. */
	if (bytes < sizeof(chain_heads))
		__builtin_memset(chain_heads, 0, sizeof(chain_heads));
	/* The bound is tested on the register that is passed, where the verifier sees it. */
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

/* The next block of buckets. It is gone through again when a chain led astray. */
static long on_find_block(u32 step, void *unused)
{
	if (!begin_block(WIDTH))
		return 1;
	way.first = job.found;
	way.astray = 0;
	way.no_room = 0;
	way.going_on = read_block_heads();
	bpf_loop(CHAIN_MAX, on_step, NULL, 0);
	if (way.no_room && way.first) {
		/* The block is for the next batch. */
		job.found = way.first;
		job.batch_ready = 1;
		at.stop = 1;
		return 1;
	}
	if (way.going_on) {
		job.chains_cut++;
	} else if (way.astray) {
		job.interrupted++;
		if (++way.tries < TRIES) {
			job.found = way.first;
			return 0;
		}
		job.expected++;
		job.torn++;
	}
	way.tries = 0;
	job.bucket = at.base + WIDTH;
	return 0;
}

/* Finds the connections of a table, after those that the batch has of it. A batch is of one table. */
__noinline int find_table(void)
{
	if (!job.found)
		job.first_bucket = job.bucket;
	way.tries = 0;
	bpf_loop(BUCKETS_PER_RUN / WIDTH + 1, on_find_block, NULL, 0);
	job.end_bucket = job.bucket;
	job.buckets = at.total;
	if (!at.stop && job.found) {
		job.batch_ready = 1;
		at.stop = 1;
	}
	return 0;
}

#define LINE 64

#define LINE_OF(type, field) (1ull << (bpf_core_field_offset(struct type, field) / LINE & 63))

/* Without a branch, because the verifier would follow all combinations of groups. */
#define FOR(group, lines) (-(u64)(groups / SOCKET_GROUP_##group & 1) & (lines))

/* The cache lines of a TCP socket that these groups need, one bit each. */
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

/* The lines to prefetch, in bytes from a socket's first. */
#define PREFETCH_LINES 64
u16 prefetched[PREFETCH_LINES] = {};
u32 n_prefetched = 0;

/*
 * The memory brings lines that follow each other at twice the rate of lines with gaps: when at least half of the lines up to
 * the last are needed, all are prefetched. Of many lines, those of one socket are as much as the CPU can wait for, and still in
 * the first cache when they are read; of few, those of several sockets are.
 */
__noinline int plan_prefetch(void)
{
	/* What is likely to be left out is not prefetched. */
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

/* Whether a connection is here that hangs in the batch's table, in one of its buckets. What was a socket when it was found may be
 * anything by now; nothing but a socket has a network namespace in that place. */
static __always_inline bool hangs(const struct sock_common *c, struct identity identity)
{
	const struct net *net = SOCKET_FOLLOW(net, identity.net);
	u32 bucket = c->skc_hash & (job.buckets - 1);

	return c->skc_nulls_node.pprev && bucket >= job.first_bucket && bucket < job.end_bucket &&
	       number(net->ns.ops) == job.ns_ops && number(net->ipv4.tcp_death_row.hashinfo) == job.table;
}

/* Reads one connection, if it is there still; takes back what it read when it became another one meanwhile. */
static __always_inline int take_found(u64 address)
{
	const struct sock_common *c = SOCKET_FOLLOW(sock_common, address);
	struct identity before = identity_of(address);
	int taken;

	if (!hangs(c, before))
		return TAKEN;
	taken = take_tcp_inline(address, 0);
	if (taken == TAKEN)
		taken = take_its_mptcp(address);
	if (taken == TAKEN && !same(before, identity_of(address)))
		taken = TORN;
	if (taken == TAKEN)
		commit();
	else
		take_back();
	return taken;
}

/* The next connection of the batch. */
static long on_found(u32 step, void *unused)
{
	u32 zero = 0, next = job.next_found;
	struct found *all = bpf_map_lookup_elem(&found, &zero);
	u64 address;
	int taken;

	if (!all || next >= job.found)
		return 1;
	address = all->addresses[next & (FOUND - 1)];
	if (n_prefetched > PREFETCH_MAX) {
		prefetch(address);
	} else if (next >= way.prefetched) {
		prefetch_block(next);
		way.prefetched = next + PREFETCH_MAX;
	}
	taken = take_found(address);
	if (taken == NO_ROOM)
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
	way.prefetched = 0;
	bpf_loop(READ_MAX, on_found, NULL, 0);
	return 0;
}

#endif

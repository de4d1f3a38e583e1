/* SPDX-License-Identifier: (LGPL-2.1 OR BSD-2-Clause) */
/*
 * The way through the tables: part of walk.bpf.c, which says what a socket becomes. A table is read in blocks of buckets; a
 * block's heads are read at once, so that the next socket's memory is on its way while one is copied.
 */

/* The bucket is complete: its records and counts stand. */
static __always_inline void commit(void)
{
	job.expected += at.expected;
	job.filtered += at.filtered;
	at.first_record = at.record;
	at.first_name = at.name;
	at.expected = 0;
	at.filtered = 0;
	at.tries = 0;
	at.length = 0;
}

static __always_inline void take_back(void)
{
	at.record = at.first_record;
	at.name = at.first_name;
	at.expected = 0;
	at.filtered = 0;
	at.length = 0;
}

static __always_inline u64 head_of(u32 bucket)
{
	return number(SOCKET_FOLLOW(hlist_head, at.heads_at + (u64)bucket * at.stride)->first);
}

/* The number at the end of a chain of `nulls` kind, or 0 at the end of a plain one. */
static __always_inline bool is_end(u64 node)
{
	return !node || node & 1;
}

/* Stops here; the next run goes on with this bucket. */
static __always_inline void stop_at(u32 bucket)
{
	job.bucket = bucket;
	at.stop = 1;
}

/* Makes the next bucket of the block the one that is read; 1 when there is none. */
static __always_inline int next_bucket(void)
{
	u32 place;

	if (at.turn >= at.waiting)
		return 1;
	place = queue[at.turn & (BLOCK - 1)] & (BLOCK - 1);
	at.turn++;
	at.bucket = at.base + place;
	at.node = heads[place];
	return 0;
}

/* The bucket is done. A bucket in parts is read again for each part, a run for each. */
__noinline int end_bucket(void)
{
	commit();
	if (job.parts > 1) {
		if (++job.part < job.parts) {
			stop_at(at.bucket);
		} else {
			job.parts = 1;
			job.part = 0;
			stop_at(at.bucket + 1);
		}
		return 1;
	}
	return next_bucket();
}

/* Too much was found to go on; what was read stands, and that something is missing is counted. */
static __always_inline int cut_bucket(void)
{
	job.chains_cut++;
	return end_bucket();
}

/* No room for the next record: the bucket is for the next run, or, when it alone is too much for one, for several. */
__noinline int full_bucket(void)
{
	bool alone = !at.first_record;

	if (alone && job.parts >= CHAIN_MAX)
		return cut_bucket();
	take_back();
	if (alone) {
		job.parts = job.parts > 1 ? job.parts * 2 : 2;
		job.part = 0;
	}
	stop_at(at.bucket);
	return 1;
}

/* The chain changed under the reader: from its head again. */
__noinline int again(void)
{
	job.interrupted++;
	if (++at.tries >= TRIES) {
		job.expected++;
		job.torn++;
		return cut_bucket();
	}
	take_back();
	at.node = head_of(at.bucket);
	return 0;
}

/* One step in a chain of TCP sockets: ends with the number of its bucket. */
static long on_tcp_node(u32 step, void *unused)
{
	u64 node = at.node, address, next;
	const struct sock_common *c;
	struct identity before;
	int taken;

	if (is_end(node)) {
		if (node >> 1 != (u64)at.bucket + at.nulls)
			return again() != 0;
		return end_bucket() != 0;
	}
	if (++at.length > CHAIN_MAX)
		return cut_bucket() != 0;
	address = node - bpf_core_field_offset(struct sock_common, skc_nulls_node);
	c = SOCKET_FOLLOW(sock_common, address);
	before = identity_of(address);
	taken = take_tcp(address, 0);
	if (taken == TAKEN && job.kinds & KIND_MPTCP && c->skc_state != TIME_WAIT && c->skc_state != NEW_SYN_RECV &&
	    in_part(address))
		taken = take_mptcp(address);
	if (taken == NO_ROOM)
		return full_bucket() != 0;
	next = number(c->skc_nulls_node.next);
	if (!same(before, identity_of(address)))
		return again() != 0;
	at.node = next;
	return 0;
}

/* One step in a chain of UDP sockets, which keep their way on when they are taken out (RCU). */
static long on_udp_node(u32 step, void *unused)
{
	u64 node = at.node, address, next;
	const struct sock_common *c;
	struct identity before;

	if (is_end(node))
		return end_bucket() != 0;
	if (++at.length > CHAIN_MAX)
		return cut_bucket() != 0;
	address = node - bpf_core_field_offset(struct sock_common, skc_node);
	c = SOCKET_FOLLOW(sock_common, address);
	before = identity_of(address);
	if (take_udp(address) == NO_ROOM)
		return full_bucket() != 0;
	next = number(c->skc_node.next);
	if (!same(before, identity_of(address)))
		return again() != 0;
	at.node = next;
	return 0;
}

/* Whether a node of a chain of UNIX sockets is one still: their memory is not kept for readers. */
static __always_inline bool is_unix(const struct sock_common *c)
{
	return c->skc_node.pprev && c->skc_family == AF_UNIX && c->skc_hash == at.bucket && number(c->skc_net.net) == at.net;
}

static long on_unix_node(u32 step, void *unused)
{
	u64 node = at.node, address, next;
	const struct sock_common *c;

	if (is_end(node))
		return end_bucket() != 0;
	if (++at.length > CHAIN_MAX)
		return cut_bucket() != 0;
	address = node - bpf_core_field_offset(struct sock_common, skc_node);
	c = SOCKET_FOLLOW(sock_common, address);
	if (!is_unix(c))
		return again() != 0;
	if (take_unix(address) == NO_ROOM)
		return full_bucket() != 0;
	next = number(c->skc_node.next);
	if (!is_unix(c))
		return again() != 0;
	at.node = next;
	return 0;
}

/* Reads the heads of the next block and notes which have sockets; 1 when the table or the run is at its end. */
__noinline int next_block(void)
{
	u32 left, i, waiting = 0;

	if (at.stop)
		return 1;
	at.base = job.bucket;
	if (at.base >= at.total)
		return 1;
	if (!at.budget) {
		at.stop = 1;
		return 1;
	}
	at.budget--;
	left = at.total - at.base;
	at.turn = 0;
	if (at.stride == 8) {
		if (left > BLOCK)
			left = BLOCK;
		if (left == BLOCK)
			bpf_probe_read_kernel(heads, sizeof(heads), (void *)(at.heads_at + (u64)at.base * 8));
		else
			for (i = 0; i < BLOCK; i++)
				heads[i] = i < left ? head_of(at.base + i) : 0;
	} else {
		for (i = 0; i < BLOCK; i++)
			heads[i] = i < left ? head_of(at.base + i) : 0;
	}
	/* Without branches, whose combinations the verifier would all follow. */
	for (i = 0; i < BLOCK; i++) {
		u64 head = heads[i];

		queue[waiting & (BLOCK - 1)] = i;
		waiting += (head | -head) >> 63 & ~head & 1;
	}
	at.waiting = waiting;
	job.bucket = at.base + BLOCK;
	/* The bucket that was to be read in parts is empty by now. */
	if (job.parts > 1 && is_end(heads[0])) {
		job.parts = 1;
		job.part = 0;
	}
	return next_bucket() ? 2 : 0;
}

#define BLOCK_OF(step)                                                       \
	{                                                                    \
		int next = next_block();                                     \
                                                                             \
		if (!next)                                                   \
			bpf_loop(BLOCK *(CHAIN_MAX + 2), step, NULL, 0);     \
		return next == 1;                                            \
	}

static long on_tcp_block(u32 step, void *unused) BLOCK_OF(on_tcp_node)

__noinline int read_tcp_table(void)
{
	bpf_loop(BLOCKS_PER_RUN + 1, on_tcp_block, NULL, 0);
	return 0;
}

static long on_udp_block(u32 step, void *unused) BLOCK_OF(on_udp_node)

__noinline int read_udp_table(void)
{
	bpf_loop(BLOCKS_PER_RUN + 1, on_udp_block, NULL, 0);
	return 0;
}

static long on_unix_block(u32 step, void *unused) BLOCK_OF(on_unix_node)

__noinline int read_unix_table(void)
{
	bpf_loop(BLOCKS_PER_RUN + 1, on_unix_block, NULL, 0);
	return 0;
}

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
	return word_at(at.heads_at + (u64)bucket * at.stride);
}

/* 1 for the number at the end of a chain of `nulls` kind and for 0 at the end of a plain one, else 0; in a form of which the
 * compiler makes no branch. */
static __always_inline u64 is_end(u64 node)
{
	return (node & 1) | ((node - 1) & ~node) >> 63;
}

/* Begins the next block of so many buckets, if the table and the run have one. */
static __always_inline bool begin_block(u32 width)
{
	if (at.stop || job.bucket >= at.total)
		return false;
	if (at.budget < width) {
		at.stop = 1;
		return false;
	}
	at.budget -= width;
	at.base = job.bucket;
	return true;
}

/* The heads of a block's buckets, zero behind the end of the table. */
static __always_inline void read_heads(u64 *to, u32 width)
{
	u32 left = at.total - at.base, i;

	if (left < width || at.stride != sizeof(u64) ||
	    bpf_probe_read_kernel(to, width * sizeof(u64), (void *)(at.heads_at + (u64)at.base * sizeof(u64))))
		for (i = 0; i < width; i++)
			to[i] = i < left ? head_of(at.base + i) : 0;
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

/* After a TCP socket: the MPTCP connection that it is the first subflow of. */
static __always_inline int take_its_mptcp(u64 address)
{
	const struct sock_common *c = SOCKET_FOLLOW(sock_common, address);

	if (job.kinds & KIND_MPTCP && c->skc_state != TIME_WAIT && c->skc_state != NEW_SYN_RECV && in_part(address))
		return take_mptcp(address);
	return TAKEN;
}

/* One step in a chain of listeners: ends with the number of its bucket. */
static long on_listener_node(u32 step, void *unused)
{
	u64 node = at.node, address, next;
	const struct sock_common *c;
	struct identity before;

	if (is_end(node)) {
		if (node >> 1 != (u64)at.bucket + LISTENING_NULLS)
			return again() != 0;
		return end_bucket() != 0;
	}
	if (++at.length > CHAIN_MAX)
		return cut_bucket() != 0;
	address = node - bpf_core_field_offset(struct sock_common, skc_nulls_node);
	c = SOCKET_FOLLOW(sock_common, address);
	before = identity_of(address);
	if (take_tcp(address, 0) == NO_ROOM || take_its_mptcp(address) == NO_ROOM)
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
	u32 i, waiting = 0;

	if (!begin_block(BLOCK))
		return 1;
	at.turn = 0;
	read_heads(heads, BLOCK);
	/* Without branches, whose combinations the verifier would all follow. */
	for (i = 0; i < BLOCK; i++) {
		queue[waiting & (BLOCK - 1)] = i;
		waiting += is_end(heads[i]) ^ 1;
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

static long on_listener_block(u32 step, void *unused) BLOCK_OF(on_listener_node)

__noinline int read_listener_table(void)
{
	bpf_loop(BUCKETS_PER_RUN / BLOCK + 1, on_listener_block, NULL, 0);
	return 0;
}

static long on_udp_block(u32 step, void *unused) BLOCK_OF(on_udp_node)

__noinline int read_udp_table(void)
{
	bpf_loop(BUCKETS_PER_RUN / BLOCK + 1, on_udp_block, NULL, 0);
	return 0;
}

static long on_unix_block(u32 step, void *unused) BLOCK_OF(on_unix_node)

__noinline int read_unix_table(void)
{
	bpf_loop(BUCKETS_PER_RUN / BLOCK + 1, on_unix_block, NULL, 0);
	return 0;
}

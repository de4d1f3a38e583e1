/* SPDX-License-Identifier: (LGPL-2.1 OR BSD-2-Clause) */
/*
 * Iterates over the buckets and chains of a hash table. Part of walk.bpf.c, which has the functions that read a socket. A table
 * is read in blocks of buckets. The heads of a block are read together, so that their cache misses overlap.
 */

/* The table of connections of a namespace. */
static __always_inline u64 hashinfo_of(const struct net *net)
{
	const struct netns_ipv4___row *ipv4;
	const struct inet_timewait_death_row *row;

	if (bpf_core_field_exists(net->ipv4.tcp_death_row.hashinfo))
		return number_of(SOCKET_READ(net, ipv4.tcp_death_row.hashinfo));
	ipv4 = SOCKET_AT(netns_ipv4___row, (u64)net + bpf_core_field_offset(struct net, ipv4));
	row = SOCKET_AT(inet_timewait_death_row, SOCKET_READ(ipv4, tcp_death_row));
	return number_of(SOCKET_READ(row, hashinfo));
}

/* Whether this is the address of a network namespace. */
static __always_inline bool is_net(u64 address)
{
	const struct net *net = SOCKET_AT(net, address);

	return number_of(SOCKET_READ(net, ns.ops)) == job.ns_ops;
}

/* The inode of the file that a UNIX socket is bound to. */
static __always_inline u64 unix_file_inode(const struct unix_sock *u)
{
	const struct dentry *dentry = SOCKET_AT(dentry, SOCKET_READ(u, path.dentry));
	const struct inode *inode = SOCKET_AT(inode, SOCKET_READ(dentry, d_inode));

	return SOCKET_READ(inode, i_ino);
}

/* The bucket of a UNIX socket in the table of all namespaces (net/unix/af_unix.c before 6.0): by its name, or if it has none, by
 * its address. */
static __always_inline u32 unix_bucket(u64 address, const struct sock_common *c)
{
	const struct unix_sock *u = SOCKET_AT(unix_sock, address);
	const struct unix_address *name;
	u64 hash = address;

	/* Since 5.17 the socket has the number. */
	if (c->skc_hash || !bpf_core_field_exists(((struct unix_address *)0)->hash))
		return c->skc_hash;
	name = SOCKET_AT(unix_address, SOCKET_READ(u, addr));
	if (!name) {
		hash ^= hash >> 16;
		hash ^= hash >> 8;
		return UNIX_BUCKETS / 2 + hash % (UNIX_BUCKETS / 2);
	}
	hash = SOCKET_READ(name, hash);
	if (hash < UNIX_BUCKETS / 2)
		return hash;
	return unix_file_inode(u) & (UNIX_BUCKETS / 2 - 1);
}

/* The bucket is complete: keeps its records and counts. */
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

/* Discards the records and counts of the bucket. */
static __always_inline void discard_bucket(void)
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

/* 1 if `node` ends a chain, else 0. An hlist_nulls chain ends with an odd number, an hlist chain with 0. The expression is one
 * for which the compiler makes no branch. */
static __always_inline u64 is_end(u64 node)
{
	return (node & 1) | ((node - 1) & ~node) >> 63;
}

/* Begins the next block of `width` buckets. Returns false at the end of the table or of the run's budget. */
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

/* Reads the heads of a block's buckets; those behind the end of the table are set to zero. */
static __always_inline void read_heads(u64 *to, u32 width)
{
	u32 left = at.total - at.base, i;

	if (left < width || at.stride != sizeof(u64) ||
	    bpf_probe_read_kernel(to, width * sizeof(u64), (void *)(at.heads_at + (u64)at.base * sizeof(u64))))
		for (i = 0; i < width; i++)
			to[i] = i < left ? head_of(at.base + i) : 0;
}

/* Ends the run. The next run continues with this bucket. */
static __always_inline void stop_at(u32 bucket)
{
	job.bucket = bucket;
	at.stop = 1;
}

/* Selects the next bucket of the block that is not empty. Returns 1 if there is none. */
static __always_inline int next_bucket(void)
{
	u32 place;

	if (at.next_queued >= at.queued)
		return 1;
	place = queue[at.next_queued & (BLOCK - 1)] & (BLOCK - 1);
	at.next_queued++;
	at.bucket = at.base + place;
	at.node = heads[place];
	return 0;
}

/* Ends a bucket. A bucket that is read in parts is read once per part, each in its own run. */
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

/* Abandons the rest of a chain and counts that. Keeps what was read. */
static __always_inline int cut_bucket(void)
{
	job.chains_cut++;
	return end_bucket();
}

/* The array of records is full. The next run reads the bucket again. If the bucket alone has more sockets than the array,
 * several runs read it in parts. */
__noinline int full_bucket(void)
{
	bool alone = !at.first_record;

	if (alone && job.parts >= CHAIN_MAX)
		return cut_bucket();
	discard_bucket();
	if (alone) {
		job.parts = job.parts > 1 ? job.parts * 2 : 2;
		job.part = 0;
	}
	stop_at(at.bucket);
	return 1;
}

/* The chain has changed during the read: starts again from its head, at most TRIES times. */
__noinline int restart_bucket(void)
{
	job.interrupted++;
	if (++at.tries >= TRIES) {
		job.expected++;
		job.torn++;
		return cut_bucket();
	}
	discard_bucket();
	at.node = head_of(at.bucket);
	return 0;
}

/* Reads the MPTCP connection whose first subflow this TCP socket is. */
static __always_inline int take_its_mptcp(u64 address)
{
	const struct sock_common *c = SOCKET_OF_IDENTITY(address);
	u8 state;

	if (!(job.kinds & KIND_MPTCP))
		return TAKEN;
	state = c->skc_state;
	if (state != TIME_WAIT && state != NEW_SYN_RECV && in_current_part(address))
		return take_mptcp(address);
	return TAKEN;
}

/* Reads one listener. The end marker of the chain has the number of the bucket. */
STEP(on_listener_node)
{
	u64 node = at.node, address, next;
	const struct sock_common *c;
	struct identity before;

	if (is_end(node)) {
		if (node >> 1 != (u64)at.bucket + LISTENING_NULLS)
			return restart_bucket() != 0;
		return end_bucket() != 0;
	}
	if (++at.length > CHAIN_MAX)
		return cut_bucket() != 0;
	address = node - bpf_core_field_offset(struct sock_common, skc_nulls_node);
	c = SOCKET_AT(sock_common, address);
	before = identity_of(address);
	if (take_tcp(address, 0) == RECORDS_FULL || take_its_mptcp(address) == RECORDS_FULL)
		return full_bucket() != 0;
	next = number_of(SOCKET_READ(c, skc_nulls_node.next));
	if (!same_identity(before, identity_of(address)))
		return restart_bucket() != 0;
	at.node = next;
	return 0;
}

/* Reads one UDP socket. A socket that is removed from the chain keeps its next pointer (RCU). */
STEP(on_udp_node)
{
	u64 node = at.node, address, next;
	const struct sock_common *c;
	struct identity before;

	if (is_end(node))
		return end_bucket() != 0;
	if (++at.length > CHAIN_MAX)
		return cut_bucket() != 0;
	address = node - bpf_core_field_offset(struct sock_common, skc_node);
	c = SOCKET_AT(sock_common, address);
	before = identity_of(address);
	if (take_udp(address) == RECORDS_FULL)
		return full_bucket() != 0;
	next = number_of(SOCKET_READ(c, skc_node.next));
	if (!same_identity(before, identity_of(address)))
		return restart_bucket() != 0;
	at.node = next;
	return 0;
}

/* Whether a node is still a UNIX socket of this bucket. UNIX sockets are freed without queued for RCU readers. */
static __always_inline bool is_unix(u64 address)
{
	const struct sock_common *c = SOCKET_FOLLOW(sock_common, address);

	if (!c->skc_node.pprev || c->skc_family != AF_UNIX)
		return false;
	if (!at.net)
		return unix_bucket(address, c) == at.bucket && is_net(number_of(c->skc_net.net));
	return c->skc_hash == at.bucket && number_of(c->skc_net.net) == at.net;
}

STEP(on_unix_node)
{
	u64 node = at.node, address, next;
	const struct sock_common *c;

	if (is_end(node))
		return end_bucket() != 0;
	if (++at.length > CHAIN_MAX)
		return cut_bucket() != 0;
	address = node - bpf_core_field_offset(struct sock_common, skc_node);
	c = SOCKET_AT(sock_common, address);
	if (!is_unix(address))
		return restart_bucket() != 0;
	if (take_unix(address) == RECORDS_FULL)
		return full_bucket() != 0;
	next = number_of(SOCKET_READ(c, skc_node.next));
	if (!is_unix(address))
		return restart_bucket() != 0;
	at.node = next;
	return 0;
}

/* Reads the heads of the next block and queues the buckets that are not empty. Returns 1 at the end of the table or of the
 * run, 2 if all buckets of the block are empty. */
__noinline int next_block(void)
{
	u32 i, queued = 0;

	if (!begin_block(BLOCK))
		return 1;
	at.next_queued = 0;
	read_heads(heads, BLOCK);
	/* It has no branches, because the verifier would check all their combinations. */
	for (i = 0; i < BLOCK; i++) {
		queue[queued & (BLOCK - 1)] = i;
		queued += is_end(heads[i]) ^ 1;
	}
	at.queued = queued;
	job.bucket = at.base + BLOCK;
	/* The bucket that was read in parts has become empty. */
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
		if (!next) {                                                 \
			LONG_LOOP(BLOCK *(CHAIN_MAX + 2), step);             \
		}                                                            \
		return next == 1;                                            \
	}

STEP(on_listener_block) BLOCK_OF(on_listener_node)

TABLE_LOOP int read_listener_table(void)
{
	LOOP(BUCKETS_PER_RUN / BLOCK + 1, on_listener_block);
	return 0;
}

STEP(on_udp_block) BLOCK_OF(on_udp_node)

TABLE_LOOP int read_udp_table(void)
{
	LOOP(BUCKETS_PER_RUN / BLOCK + 1, on_udp_block);
	return 0;
}

STEP(on_unix_block) BLOCK_OF(on_unix_node)

TABLE_LOOP int read_unix_table(void)
{
	LOOP(BUCKETS_PER_RUN / BLOCK + 1, on_unix_block);
	return 0;
}

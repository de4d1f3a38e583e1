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
	before = identity_of(c);
	taken = take_tcp(address, 0);
	if (taken == TAKEN && job.kinds & KIND_MPTCP && c->skc_state != TIME_WAIT && c->skc_state != NEW_SYN_RECV &&
	    in_part(address))
		taken = take_mptcp(address);
	if (taken == NO_ROOM)
		return full_bucket() != 0;
	next = number(c->skc_nulls_node.next);
	if (!same(before, identity_of(c)))
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
	before = identity_of(c);
	if (take_udp(address) == NO_ROOM)
		return full_bucket() != 0;
	next = number(c->skc_node.next);
	if (!same(before, identity_of(c)))
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

/* Asks for the memory of one socket, and keeps the next one of its chain for the next pass. */
static long on_ahead(u32 turn, void *unused)
{
	u64 node = chains[turn & (BLOCK - 1)], next;

	touch_tcp(node - bpf_core_field_offset(struct sock_common, skc_nulls_node));
	next = number(SOCKET_FOLLOW(hlist_nulls_node, node)->next);
	chains[at.deeper & (BLOCK - 1)] = next;
	at.deeper += !is_end(next);
	return 0;
}

/* Asks for the memory of the block's sockets: of the first of every chain, then of the second. */
static __always_inline void ask_ahead(void)
{
	u32 left = at.waiting, pass;

	for (pass = 0; pass < DEPTH && left; pass++) {
		at.deeper = 0;
		bpf_loop(left, on_ahead, NULL, 0);
		left = at.deeper;
	}
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
		chains[waiting & (BLOCK - 1)] = head;
		waiting += (head | -head) >> 63 & ~head & 1;
	}
	at.waiting = waiting;
	if (at.ahead)
		ask_ahead();
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


/* A table, from the bucket where the job says. */
static __always_inline void begin_table(u64 heads_at, u32 stride, u32 total, u32 nulls)
{
	at.heads_at = heads_at;
	at.stride = stride;
	at.total = total;
	at.nulls = nulls;
}

static __always_inline void begin_run(void)
{
	socket_reader_begin(&reader);
	at.record = 0;
	at.name = 0;
	at.first_record = 0;
	at.first_name = 0;
	at.stop = 0;
	at.tries = 0;
	at.ahead = 0;
	at.budget = BLOCKS_PER_RUN;
	take_back();
	job.expected = 0;
	job.filtered = 0;
	job.torn = 0;
	job.dropped = 0;
	job.interrupted = 0;
	job.chains_cut = 0;
	job.namespaces = 0;
	job.namespaces_lost = 0;
	if (!job.parts)
		job.parts = 1;
}

static __always_inline void end_run(void)
{
	job.records = at.first_record;
	job.names = at.first_name;
	job.done = !at.stop;
}

static __always_inline void begin_ehash(u64 hashinfo)
{
	struct inet_hashinfo *h = SOCKET_FOLLOW(inet_hashinfo, hashinfo);

	at.ahead = 1;
	plan_ahead();
	begin_table(number(h->ehash), bpf_core_type_size(struct inet_ehash_bucket), h->ehash_mask + 1, 0);
}

static __always_inline void begin_udp(u64 table)
{
	struct udp_table *t = SOCKET_FOLLOW(udp_table, table);

	begin_table(number(t->hash) + bpf_core_field_offset(struct udp_hslot, head), bpf_core_type_size(struct udp_hslot),
		    t->mask + 1, 0);
}

static __always_inline void begin_listeners(u64 hashinfo)
{
	struct inet_hashinfo *h = SOCKET_FOLLOW(inet_hashinfo, hashinfo);

	begin_table(number(h->lhash2) + bpf_core_field_offset(struct inet_listen_hashbucket, nulls_head),
		    bpf_core_type_size(struct inet_listen_hashbucket), h->lhash2_mask + 1, LISTENING_NULLS);
}

/* A socket that has a port and is neither connected nor listening hangs only on the bucket of its port. Those are guarded by
 * locks alone, so what is found must first look like a socket. */
static long on_bound_socket(u32 step, void *unused)
{
	u64 node = at.inner, address = node - bpf_core_field_offset(struct sock_common, skc_bind_node);
	const struct sock_common *c = SOCKET_FOLLOW(sock_common, address);
	u16 family = c->skc_family;

	if (!node)
		return 1;
	if (!c->skc_bind_node.pprev || (family != AF_INET && family != AF_INET6) ||
	    number(SOCKET_FOLLOW(net, c->skc_net.net)->ns.ops) != job.ns_ops) {
		at.moved = 1;
		return 1;
	}
	if (c->skc_state == CLOSE && c->skc_num && take_tcp(address, BOUND_INACTIVE) == NO_ROOM) {
		at.no_room = 1;
		return 1;
	}
	at.inner = number(c->skc_bind_node.next);
	if (!c->skc_bind_node.pprev)
		at.moved = 1;
	return at.moved != 0;
}

static long on_bound_node(u32 step, void *unused)
{
	u64 node = at.node, address = node - bpf_core_field_offset(struct inet_bind2_bucket, node);
	const struct inet_bind2_bucket *bucket = SOCKET_FOLLOW(inet_bind2_bucket, address);

	if (is_end(node))
		return end_bucket() != 0;
	if (++at.length > CHAIN_MAX)
		return cut_bucket() != 0;
	at.inner = number(bucket->owners.first);
	at.moved = 0;
	at.no_room = 0;
	bpf_loop(CHAIN_MAX, on_bound_socket, NULL, 0);
	if (at.no_room)
		return full_bucket() != 0;
	at.node = number(bucket->node.next);
	if (at.moved || !bucket->node.pprev)
		return again() != 0;
	return 0;
}

static long on_bound_block(u32 step, void *unused) BLOCK_OF(on_bound_node)

__noinline int read_bound_table(void)
{
	bpf_loop(BLOCKS_PER_RUN + 1, on_bound_block, NULL, 0);
	return 0;
}


static __always_inline void begin_bound(u64 hashinfo)
{
	struct inet_hashinfo *h = SOCKET_FOLLOW(inet_hashinfo, hashinfo);

	begin_table(number(h->bhash2) + bpf_core_field_offset(struct inet_bind_hashbucket, chain),
		    bpf_core_type_size(struct inet_bind_hashbucket), h->bhash_size, 0);
}

/* The tables that a namespace can have for itself. */
enum space_table { SPACE_TCP, SPACE_UDP, SPACE_UNIX };

/* Begins a namespace's own table, if it has it and it is asked for. */
static __always_inline bool begin_own(const struct net *net, u32 table)
{
	if (table == SPACE_TCP) {
		u64 hashinfo = number(net->ipv4.tcp_death_row.hashinfo);

		if (hashinfo == job.main_hashinfo || !(job.want & WANT_TCP))
			return false;
		begin_ehash(hashinfo);
	} else if (table == SPACE_UDP) {
		u64 own = number(net->ipv4.udp_table);

		if (own == job.main_udp || !(job.want & WANT_UDP))
			return false;
		begin_udp(own);
	} else {
		if (!(job.want & WANT_UNIX) || !bpf_core_field_exists(net->unx.table.buckets))
			return false;
		begin_table(number(net->unx.table.buckets), sizeof(u64), UNIX_BUCKETS, 0);
	}
	return true;
}

/* One table of the namespace at.net; true when the run must stop. */
static __always_inline bool read_own(u32 table)
{
	if (job.space == at.net_inum && table < job.space_table)
		return false;
	if (!(job.space == at.net_inum && table == job.space_table))
		job.bucket = 0;
	if (!begin_own(SOCKET_FOLLOW(net, at.net), table))
		return false;
	if (table == SPACE_TCP)
		read_tcp_table();
	else if (table == SPACE_UDP)
		read_udp_table();
	else
		read_unix_table();
	if (at.stop) {
		job.space = at.net_inum;
		job.space_table = table;
	}
	return at.stop;
}

/* The namespace after the one that was read last; 1 at the end of the list, whose head is no namespace. */
static long on_space(u32 step, void *unused)
{
	u32 zero = 0, word;
	struct spaces *all = bpf_map_lookup_elem(&spaces, &zero);
	const struct net *net = SOCKET_FOLLOW(net, at.net);
	u64 bit;

	if (!all || number(net->ns.ops) != job.ns_ops)
		return 1;
	at.net_inum = net->ns.inum;
	job.namespaces++;
	word = at.net_inum >> 6 & (SPACE_WORDS - 1);
	bit = 1ull << (at.net_inum & 63);
	if (!(all->done[word] & bit)) {
		if (read_own(SPACE_TCP) || read_own(SPACE_UDP) || read_own(SPACE_UNIX))
			return 1;
		if (job.space == at.net_inum)
			job.space = 0;
		all->done[word] |= bit;
	}
	at.net = number(net->list.next) - bpf_core_field_offset(struct net, list);
	return 0;
}

static __always_inline void walk_spaces(void)
{
	at.net = job.init_net;
	bpf_loop(SPACES_MAX, on_space, NULL, 0);
	if (!at.stop && job.space) {
		/* It ended between two runs, with what was left of it. */
		job.namespaces_lost++;
		job.space = 0;
	}
}

/* One step from namespace to namespace in search of the list's head, which lies before the first one. */
static long on_prepare(u32 step, void *unused)
{
	const struct net *net = SOCKET_FOLLOW(net, at.net);
	u64 next = number(net->list.next) - bpf_core_field_offset(struct net, list);

	if (number(net->ns.ops) != job.ns_ops) {
		job.init_net = next;
		return 1;
	}
	at.net = next;
	return 0;
}

/* Finds the first namespace, and with it the tables that all share. */
static __always_inline void prepare(void)
{
	struct task_struct *task = (void *)bpf_get_current_task_btf();
	struct net *net = SOCKET_FOLLOW(nsproxy, task->nsproxy)->net_ns;

	job.init_net = 0;
	at.net = number(net);
	job.ns_ops = number(SOCKET_FOLLOW(net, at.net)->ns.ops);
	bpf_loop(SPACES_MAX, on_prepare, NULL, 0);
	if (job.init_net) {
		const struct net *first = SOCKET_FOLLOW(net, job.init_net);

		job.main_hashinfo = number(first->ipv4.tcp_death_row.hashinfo);
		job.main_udp = number(first->ipv4.udp_table);
	}
}

/* One program for all, because the verifier checks the functions that it calls once for each program. */
SEC("raw_tp/sys_enter")
int walk(void *ctx)
{
	begin_run();
	switch (job.what) {
	case WALK_PREPARE:
		prepare();
		break;
	case WALK_TCP:
		begin_ehash(job.main_hashinfo);
		read_tcp_table();
		break;
	case WALK_LISTENERS:
		/* Also those of namespaces with their own table of connections. */
		begin_listeners(job.main_hashinfo);
		read_tcp_table();
		break;
	case WALK_BOUND:
		begin_bound(job.main_hashinfo);
		read_bound_table();
		break;
	case WALK_UDP:
		begin_udp(job.main_udp);
		read_udp_table();
		break;
	case WALK_SPACES:
		walk_spaces();
		break;
	}
	end_run();
	return 0;
}

/* SPDX-License-Identifier: (LGPL-2.1 OR BSD-2-Clause) */
/* The hash tables of sockets, and the program that reads them. Part of walk.bpf.c. */
static __always_inline void begin_table(u64 heads_at, u32 stride, u32 total)
{
	at.heads_at = heads_at;
	at.stride = stride;
	at.total = total;
}

static __always_inline void begin_run(void)
{
	socket_reader_begin(&reader);
#ifdef SOCKET_COPIES
	known_net.address = 0;
	known_net.hashinfo = 0;
#endif
	at.record = 0;
	at.name = 0;
	at.first_record = 0;
	at.first_name = 0;
	at.stop = 0;
	at.tries = 0;
	at.budget = BUCKETS_PER_RUN;
	discard_bucket();
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
	const struct inet_hashinfo *h = SOCKET_AT(inet_hashinfo, hashinfo);

	job.table = hashinfo;
	begin_table(number_of(SOCKET_READ(h, ehash)), bpf_core_type_size(struct inet_ehash_bucket), SOCKET_READ(h, ehash_mask) + 1);
}

static __always_inline void begin_udp(u64 table)
{
	const struct udp_table *t = SOCKET_AT(udp_table, table);

	begin_table(number_of(SOCKET_READ(t, hash)) + bpf_core_field_offset(struct udp_hslot, head),
		    bpf_core_type_size(struct udp_hslot), SOCKET_READ(t, mask) + 1);
}

static __always_inline void begin_listeners(u64 hashinfo)
{
	const struct inet_hashinfo *h = SOCKET_AT(inet_hashinfo, hashinfo);
	u64 heads_at;
	u32 total;

	/* The table in which listeners are linked by `skc_nulls_node`. */
	if (bpf_core_field_exists(h->listening_hash)) {
		heads_at = hashinfo + bpf_core_field_offset(struct inet_hashinfo, listening_hash);
		total = sizeof(h->listening_hash) / sizeof(h->listening_hash[0]);
	} else {
		heads_at = number_of(SOCKET_READ(h, lhash2));
		total = SOCKET_READ(h, lhash2_mask) + 1;
	}
	begin_table(heads_at + bpf_core_field_offset(struct inet_listen_hashbucket, nulls_head),
		    bpf_core_type_size(struct inet_listen_hashbucket), total);
}

/* Whether a bound socket is linked in the bucket of its port alone (before 6.8), or in that of its port and address. */
#define BY_PORT bpf_core_field_exists(((struct inet_bind_bucket *)0)->owners)
/* The offset of a field in such a bucket. */
#define OF_PORT(field)                                                            \
	(BY_PORT ? bpf_core_field_offset(struct inet_bind_bucket, field) :        \
		   bpf_core_field_offset(struct inet_bind2_bucket, field))

/*
 * A socket that is bound and neither connected nor listening is only in the bucket of its port. These buckets are protected by
 * locks and not by RCU, so this checks that a node is a socket before it uses it.
 */
STEP(on_bound_socket)
{
	u64 node = at.inner, address = node - bpf_core_field_offset(struct sock_common, skc_bind_node);
	const struct sock_common *c = SOCKET_FOR_IDENTITY(address);
	const struct hlist_node *bound;
	u16 family = c->skc_family;

	if (!node)
		return 1;
	if (!c->skc_bind_node.pprev || (family != AF_INET && family != AF_INET6) ||
	    !is_net(number_of(c->skc_net.net))) {
		at.moved = 1;
		return 1;
	}
	if (c->skc_state == CLOSE && c->skc_num && take_tcp(address, BOUND_INACTIVE) == RECORDS_FULL) {
		at.records_full = 1;
		return 1;
	}
	bound = SOCKET_AT(hlist_node, node);
	at.inner = number_of(SOCKET_READ(bound, next));
	if (!SOCKET_READ(bound, pprev))
		at.moved = 1;
	return at.moved != 0;
}

STEP(on_bound_node)
{
	u64 node = at.node, address = node - OF_PORT(node);
	const struct hlist_node *link = SOCKET_AT(hlist_node, node);

	if (is_end(node))
		return end_bucket() != 0;
	if (++at.length > CHAIN_MAX)
		return cut_bucket() != 0;
	at.inner = word_at(address + OF_PORT(owners));
	at.moved = 0;
	at.records_full = 0;
	LONG_LOOP(CHAIN_MAX, on_bound_socket);
	if (at.records_full)
		return full_bucket() != 0;
	if (at.inner && !at.moved)
		job.chains_cut++;
	at.node = number_of(SOCKET_READ(link, next));
	if (at.moved || !SOCKET_READ(link, pprev))
		return restart_bucket() != 0;
	return 0;
}

STEP(on_bound_block) BLOCK_OF(on_bound_node)

TABLE_LOOP int read_bound_table(void)
{
	LOOP(BUCKETS_PER_RUN / BLOCK + 1, on_bound_block);
	return 0;
}


static __always_inline void begin_bound(u64 hashinfo)
{
	const struct inet_hashinfo *h = SOCKET_AT(inet_hashinfo, hashinfo);

	begin_table(number_of(BY_PORT ? SOCKET_READ(h, bhash) : SOCKET_READ(h, bhash2)) + bpf_core_field_offset(struct inet_bind_hashbucket, chain),
		    bpf_core_type_size(struct inet_bind_hashbucket), SOCKET_READ(h, bhash_size));
}

/* The tables that a network namespace can have for itself. */
enum netns_table { NETNS_TCP, NETNS_UDP, NETNS_UNIX };

/* Begins a namespace's own table. Returns false if the namespace has no such table or the job does not want it. */
static __always_inline bool begin_namespace_table(const struct net *net, u32 table)
{
	if (table == NETNS_TCP) {
		u64 hashinfo = hashinfo_of(net);

		if (hashinfo == job.main_hashinfo || !(job.want & WANT_TCP))
			return false;
		begin_ehash(hashinfo);
	} else if (table == NETNS_UDP) {
		u64 own = job.main_udp;

		if (bpf_core_field_exists(net->ipv4.udp_table))
			own = number_of(SOCKET_READ(net, ipv4.udp_table));
		if (own == job.main_udp || !(job.want & WANT_UDP))
			return false;
		begin_udp(own);
	} else {
		if (!(job.want & WANT_UNIX) || !bpf_core_field_exists(net->unx.table.buckets))
			return false;
		begin_table(number_of(SOCKET_READ(net, unx.table.buckets)), sizeof(u64), UNIX_BUCKETS);
	}
	return true;
}

/* Reads one table of the namespace at.net. Returns true if the run must stop. */
static __always_inline bool read_namespace_table(u32 table)
{
	if (job.netns == at.net_inum && table < job.netns_table)
		return false;
	if (!(job.netns == at.net_inum && table == job.netns_table)) {
		job.bucket = 0;
		/* Addresses that a previous run found in a namespace that has been destroyed since. */
		job.found = 0;
	}
	if (!begin_namespace_table(SOCKET_AT(net, at.net), table))
		return false;
	if (table == NETNS_TCP)
		find_table();
	else if (table == NETNS_UDP)
		read_udp_table();
	else
		read_unix_table();
	if (at.stop) {
		job.netns = at.net_inum;
		job.netns_table = table;
	}
	return at.stop;
}

/* Reads the namespace at.net and moves to the next one. Stops at the head of the list, which is not a namespace. */
STEP(on_namespace)
{
	u32 zero = 0, word;
	struct namespace_set *all = bpf_map_lookup_elem(&namespaces_read, &zero);
	const struct net *net = SOCKET_AT(net, at.net);
	u64 bit;

	if (!all || number_of(SOCKET_READ(net, ns.ops)) != job.ns_ops)
		return 1;
	at.net_inum = SOCKET_READ(net, ns.inum);
	job.namespaces++;
	word = at.net_inum >> 6 & (NAMESPACE_WORDS - 1);
	bit = 1ull << (at.net_inum & 63);
	if (!(all->done[word] & bit)) {
		if (read_namespace_table(NETNS_TCP) || read_namespace_table(NETNS_UDP) || read_namespace_table(NETNS_UNIX))
			return 1;
		if (job.netns == at.net_inum)
			job.netns = 0;
		all->done[word] |= bit;
	}
	at.net = number_of(SOCKET_READ(net, list.next)) - bpf_core_field_offset(struct net, list);
	return 0;
}

static __always_inline void walk_namespaces(void)
{
	at.net = job.init_net;
	LONG_LOOP(NAMESPACES_MAX, on_namespace);
	if (!at.stop && job.netns) {
		/* The namespace was destroyed between two runs, before all of it was read. */
		job.namespaces_lost++;
		job.netns = 0;
	}
}

/* Follows the list of namespaces to its head. The namespace after the head is the initial one. */
STEP(on_prepare)
{
	const struct net *net = SOCKET_AT(net, at.net);
	u64 next = number_of(SOCKET_READ(net, list.next)) - bpf_core_field_offset(struct net, list);

	if (number_of(SOCKET_READ(net, ns.ops)) != job.ns_ops) {
		job.init_net = next;
		return 1;
	}
	at.net = next;
	return 0;
}

/* The address of the socket behind a descriptor of the running process; 0 if it is not a socket. */
static __always_inline u64 socket_of(const struct task_struct *task, u32 fd)
{
	const struct files_struct *files = SOCKET_AT(files_struct, SOCKET_READ(task, files));
	const struct fdtable *table = SOCKET_AT(fdtable, SOCKET_READ(files, fdt));
	const struct file *file = SOCKET_AT(file, word_at(number_of(SOCKET_READ(table, fd)) + (u64)fd * sizeof(u64)));
	const struct socket *socket = SOCKET_AT(socket, SOCKET_READ(file, private_data));

	return number_of(SOCKET_READ(socket, sk));
}

/* The table that a UDP socket is in (before 6.2 all are in one). */
static __always_inline u64 udp_table_of(u64 address)
{
	const struct sock_common *c = SOCKET_AT(sock_common, address);
	const struct proto *proto = SOCKET_AT(proto, SOCKET_READ(c, skc_prot));

	return number_of(SOCKET_READ(proto, h.udp_table));
}

/*
 * The table that a UNIX socket is in. The first socket of a bucket points back to the bucket. A new socket is the first, unless
 * others were made since; what a socket points back to is then within a socket.
 */
static __always_inline u64 unix_table_of(u64 address)
{
	const u32 node = bpf_core_field_offset(struct sock_common, skc_node);
	const struct sock_common *c = SOCKET_AT(sock_common, address);
	u32 bucket = unix_bucket(address, SOCKET_FOLLOW(sock_common, address)), i;

	for (i = 0; i < TRIES; i++) {
		u64 back = number_of(SOCKET_READ(c, skc_node.pprev));
		const struct sock_common *before = SOCKET_AT(sock_common, back - node);

		if (!back)
			return 0;
		if (!is_net(number_of(SOCKET_READ(before, skc_net.net))))
			return back - bucket * sizeof(u64);
		c = before;
	}
	return 0;
}

/* Finds the initial network namespace and the tables that namespaces share with it. */
static __always_inline void prepare(void)
{
	const struct task_struct *task = CURRENT_TASK();
	const struct nsproxy *proxy = SOCKET_AT(nsproxy, SOCKET_READ(task, nsproxy));
	const struct net *own;

	job.init_net = 0;
	at.net = number_of(SOCKET_READ(proxy, net_ns));
	own = SOCKET_AT(net, at.net);
	job.ns_ops = number_of(SOCKET_READ(own, ns.ops));
	LONG_LOOP(NAMESPACES_MAX, on_prepare);
	if (job.init_net) {
		const struct net *first = SOCKET_AT(net, job.init_net);

		job.main_hashinfo = hashinfo_of(first);
		if (bpf_core_field_exists(first->ipv4.udp_table))
			job.main_udp = number_of(SOCKET_READ(first, ipv4.udp_table));
		else
			job.main_udp = udp_table_of(socket_of(task, job.udp_fd));
		if (!bpf_core_field_exists(first->unx.table.buckets))
			job.main_unix = unix_table_of(socket_of(task, job.unix_fd));
	}
}

/* A single program, because the verifier checks a global function again for each program that calls it. */
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
		find_table();
		break;
	case WALK_FOUND:
		read_found();
		break;
	case WALK_LISTENERS:
		/* The listeners of all namespaces are in this table, even of those that have their own table of connections. */
		begin_listeners(job.main_hashinfo);
		read_listener_table();
		break;
	case WALK_BOUND:
		begin_bound(job.main_hashinfo);
		read_bound_table();
		break;
	case WALK_UDP:
		begin_udp(job.main_udp);
		read_udp_table();
		break;
	case WALK_UNIX:
		/* The namespaces are told apart by their sockets. */
		at.net = 0;
		begin_table(job.main_unix, sizeof(u64), UNIX_BUCKETS);
		read_unix_table();
		break;
	case WALK_NAMESPACES:
		walk_namespaces();
		break;
	}
	end_run();
	return 0;
}

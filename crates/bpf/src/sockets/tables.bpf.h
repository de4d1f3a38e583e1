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
	struct inet_hashinfo *h = SOCKET_FOLLOW(inet_hashinfo, hashinfo);

	job.table = hashinfo;
	begin_table(number_of(h->ehash), bpf_core_type_size(struct inet_ehash_bucket), h->ehash_mask + 1);
}

static __always_inline void begin_udp(u64 table)
{
	struct udp_table *t = SOCKET_FOLLOW(udp_table, table);

	begin_table(number_of(t->hash) + bpf_core_field_offset(struct udp_hslot, head), bpf_core_type_size(struct udp_hslot),
		    t->mask + 1);
}

static __always_inline void begin_listeners(u64 hashinfo)
{
	struct inet_hashinfo *h = SOCKET_FOLLOW(inet_hashinfo, hashinfo);

	begin_table(number_of(h->lhash2) + bpf_core_field_offset(struct inet_listen_hashbucket, nulls_head),
		    bpf_core_type_size(struct inet_listen_hashbucket), h->lhash2_mask + 1);
}

/*
 * A socket that is bound and neither connected nor listening is only in the bucket of its port. These buckets are protected by
 * locks and not by RCU, so this checks that a node is a socket before it uses it.
 */
static long on_bound_socket(u32 step, void *unused)
{
	u64 node = at.inner, address = node - bpf_core_field_offset(struct sock_common, skc_bind_node);
	const struct sock_common *c = SOCKET_FOLLOW(sock_common, address);
	u16 family = c->skc_family;

	if (!node)
		return 1;
	if (!c->skc_bind_node.pprev || (family != AF_INET && family != AF_INET6) ||
	    number_of(SOCKET_FOLLOW(net, c->skc_net.net)->ns.ops) != job.ns_ops) {
		at.moved = 1;
		return 1;
	}
	if (c->skc_state == CLOSE && c->skc_num && take_tcp(address, BOUND_INACTIVE) == RECORDS_FULL) {
		at.records_full = 1;
		return 1;
	}
	at.inner = number_of(c->skc_bind_node.next);
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
	at.inner = number_of(bucket->owners.first);
	at.moved = 0;
	at.records_full = 0;
	bpf_loop(CHAIN_MAX, on_bound_socket, NULL, 0);
	if (at.records_full)
		return full_bucket() != 0;
	at.node = number_of(bucket->node.next);
	if (at.moved || !bucket->node.pprev)
		return restart_bucket() != 0;
	return 0;
}

static long on_bound_block(u32 step, void *unused) BLOCK_OF(on_bound_node)

__noinline int read_bound_table(void)
{
	bpf_loop(BUCKETS_PER_RUN / BLOCK + 1, on_bound_block, NULL, 0);
	return 0;
}


static __always_inline void begin_bound(u64 hashinfo)
{
	struct inet_hashinfo *h = SOCKET_FOLLOW(inet_hashinfo, hashinfo);

	begin_table(number_of(h->bhash2) + bpf_core_field_offset(struct inet_bind_hashbucket, chain),
		    bpf_core_type_size(struct inet_bind_hashbucket), h->bhash_size);
}

/* The tables that a network namespace can have for itself. */
enum netns_table { NETNS_TCP, NETNS_UDP, NETNS_UNIX };

/* Begins a namespace's own table. Returns false if the namespace has no such table or the job does not want it. */
static __always_inline bool begin_namespace_table(const struct net *net, u32 table)
{
	if (table == NETNS_TCP) {
		u64 hashinfo = number_of(net->ipv4.tcp_death_row.hashinfo);

		if (hashinfo == job.main_hashinfo || !(job.want & WANT_TCP))
			return false;
		begin_ehash(hashinfo);
	} else if (table == NETNS_UDP) {
		u64 own = number_of(net->ipv4.udp_table);

		if (own == job.main_udp || !(job.want & WANT_UDP))
			return false;
		begin_udp(own);
	} else {
		if (!(job.want & WANT_UNIX) || !bpf_core_field_exists(net->unx.table.buckets))
			return false;
		begin_table(number_of(net->unx.table.buckets), sizeof(u64), UNIX_BUCKETS);
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
	if (!begin_namespace_table(SOCKET_FOLLOW(net, at.net), table))
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
static long on_namespace(u32 step, void *unused)
{
	u32 zero = 0, word;
	struct namespace_set *all = bpf_map_lookup_elem(&namespaces_read, &zero);
	const struct net *net = SOCKET_FOLLOW(net, at.net);
	u64 bit;

	if (!all || number_of(net->ns.ops) != job.ns_ops)
		return 1;
	at.net_inum = net->ns.inum;
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
	at.net = number_of(net->list.next) - bpf_core_field_offset(struct net, list);
	return 0;
}

static __always_inline void walk_namespaces(void)
{
	at.net = job.init_net;
	bpf_loop(NAMESPACES_MAX, on_namespace, NULL, 0);
	if (!at.stop && job.netns) {
		/* The namespace was destroyed between two runs, before all of it was read. */
		job.namespaces_lost++;
		job.netns = 0;
	}
}

/* Follows the list of namespaces to its head. The namespace after the head is the initial one. */
static long on_prepare(u32 step, void *unused)
{
	const struct net *net = SOCKET_FOLLOW(net, at.net);
	u64 next = number_of(net->list.next) - bpf_core_field_offset(struct net, list);

	if (number_of(net->ns.ops) != job.ns_ops) {
		job.init_net = next;
		return 1;
	}
	at.net = next;
	return 0;
}

/* Finds the initial network namespace and the tables that namespaces share with it. */
static __always_inline void prepare(void)
{
	struct task_struct *task = (void *)bpf_get_current_task_btf();
	struct net *net = SOCKET_FOLLOW(nsproxy, task->nsproxy)->net_ns;

	job.init_net = 0;
	at.net = number_of(net);
	job.ns_ops = number_of(SOCKET_FOLLOW(net, at.net)->ns.ops);
	bpf_loop(NAMESPACES_MAX, on_prepare, NULL, 0);
	if (job.init_net) {
		const struct net *first = SOCKET_FOLLOW(net, job.init_net);

		job.main_hashinfo = number_of(first->ipv4.tcp_death_row.hashinfo);
		job.main_udp = number_of(first->ipv4.udp_table);
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
	case WALK_NAMESPACES:
		walk_namespaces();
		break;
	}
	end_run();
	return 0;
}

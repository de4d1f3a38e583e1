/* SPDX-License-Identifier: (LGPL-2.1 OR BSD-2-Clause) */
/* Which tables there are and where: part of walk.bpf.c, and its program. */
/* A table, from the bucket where the job says. */
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

	job.table = hashinfo;
	begin_table(number(h->ehash), bpf_core_type_size(struct inet_ehash_bucket), h->ehash_mask + 1);
}

static __always_inline void begin_udp(u64 table)
{
	struct udp_table *t = SOCKET_FOLLOW(udp_table, table);

	begin_table(number(t->hash) + bpf_core_field_offset(struct udp_hslot, head), bpf_core_type_size(struct udp_hslot),
		    t->mask + 1);
}

static __always_inline void begin_listeners(u64 hashinfo)
{
	struct inet_hashinfo *h = SOCKET_FOLLOW(inet_hashinfo, hashinfo);

	begin_table(number(h->lhash2) + bpf_core_field_offset(struct inet_listen_hashbucket, nulls_head),
		    bpf_core_type_size(struct inet_listen_hashbucket), h->lhash2_mask + 1);
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
	bpf_loop(BUCKETS_PER_RUN / BLOCK + 1, on_bound_block, NULL, 0);
	return 0;
}


static __always_inline void begin_bound(u64 hashinfo)
{
	struct inet_hashinfo *h = SOCKET_FOLLOW(inet_hashinfo, hashinfo);

	begin_table(number(h->bhash2) + bpf_core_field_offset(struct inet_bind_hashbucket, chain),
		    bpf_core_type_size(struct inet_bind_hashbucket), h->bhash_size);
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
		begin_table(number(net->unx.table.buckets), sizeof(u64), UNIX_BUCKETS);
	}
	return true;
}

/* One table of the namespace at.net; true when the run must stop. */
static __always_inline bool read_own(u32 table)
{
	if (job.space == at.net_inum && table < job.space_table)
		return false;
	if (!(job.space == at.net_inum && table == job.space_table)) {
		job.bucket = 0;
		/* What was found in a namespace that ended since, if anything. */
		job.found = 0;
	}
	if (!begin_own(SOCKET_FOLLOW(net, at.net), table))
		return false;
	if (table == SPACE_TCP)
		find_table();
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
		find_table();
		break;
	case WALK_FOUND:
		read_found();
		break;
	case WALK_LISTENERS:
		/* Also those of namespaces with their own table of connections. */
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
	case WALK_SPACES:
		walk_spaces();
		break;
	}
	end_run();
	return 0;
}

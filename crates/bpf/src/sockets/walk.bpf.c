// SPDX-License-Identifier: (LGPL-2.1 OR BSD-2-Clause)
/*
 * Every socket of every network namespace out of the kernel's hash tables. User space runs the programs again and
 * again (BPF_PROG_TEST_RUN) until they have nothing more to give; each run fills an array that user space reads in place.
 *
 * Nothing is locked. A run is one RCU section, so no table and no socket's memory goes to another type while it is read
 * (the slabs of TCP sockets are SLAB_TYPESAFE_BY_RCU), but a socket can be freed and become another under the reader. So:
 * - what says which socket it is is read before and after the copy and after the step to the next one; if it changed, the
 *   record is torn and the bucket is read again from its head;
 * - a chain of TCP must end with the number of its bucket, else the walk was led into another chain: read again;
 * - a bucket counts when it is complete: what was copied and counted of it before is taken back.
 * Connections, of which there are most, are found first and read afterwards, in other runs: see find.bpf.h.
 *
 * Its parts: chain.bpf.h (chains, bucket by bucket), find.bpf.h, tables.bpf.h (which tables there are).
 */
#include "sockets/read.bpf.h"
#define SOCK_DGRAM 2

/* Records of one run: few enough to be read out of the second cache. A whole bucket must fit, or it is read in parts. */
#define RECORDS 256
/* Room for names of UNIX sockets in one run: as many as records, and one more that is not complete. */
#define NAME_MAX 108
#define NAMES (RECORDS * 112)
#define NAME_ROOM 128
/* Heads of buckets that are read at once. */
#define BLOCK 16
/* How often a bucket is read again before its rest is given up, and how many sockets a chain may have. */
#define TRIES 16
#define CHAIN_MAX 65536
/* Buckets and namespaces of one run: bounds the RCU section. */
#define BUCKETS_PER_RUN 65536
#define SPACES_MAX 65536
/* UNIX_HASH_SIZE of include/net/netns/unix.h */
#define UNIX_BUCKETS 512
/* LISTENING_NULLS_BASE of include/net/inet_hashtables.h */
#define LISTENING_NULLS (1u << 29)

enum kind { KIND_TCP = 1, KIND_UDP = 2, KIND_MPTCP = 4, KIND_UNIX = 8 };

enum rule { RULE_NAMESPACES = 1, RULE_CGROUPS = 2, RULE_PORTS = 4, RULE_PREFIXES = 8, RULE_CHANGED = 16 };

/* What a run does. */
enum walk_what { WALK_PREPARE, WALK_TCP, WALK_LISTENERS, WALK_BOUND, WALK_UDP, WALK_SPACES, WALK_FOUND };

/* Which tables of a namespace's own WALK_SPACES reads. */
enum walk_want { WANT_TCP = 1, WANT_UDP = 2, WANT_UNIX = 4 };

/* What user space asks for, and the results. */
struct walk_job {
	u32 what;
	u32 want;
	/* The selection. */
	u32 groups;
	u32 kinds;
	u32 states;
	u32 rules;
	/* The how-manieth dump since the fingerprints were cleared, from 1; 7 bits of it are used. */
	u32 epoch;
	/* Where to go on, and where the next run goes on. */
	u32 bucket;
	u32 parts;
	u32 part;
	/* The namespace whose tables are being read, which of them, as `bucket` says where; 0: any. */
	u32 space;
	u32 space_table;
	/* Nothing is left. */
	u32 done;
	u32 records;
	u32 names;
	/* The batch of connections that are found and not read yet: how many, the next to read, whether to read them now; and where
	 * they hang: the table, its size, the first bucket and the one behind the last. */
	u32 found;
	u32 next_found;
	u32 batch_ready;
	u32 buckets;
	u32 first_bucket;
	u32 end_bucket;
	u32 reserved;
	u64 table;
	/* Counts of this run. */
	u64 expected;
	u64 filtered;
	u64 torn;
	u64 dropped;
	u64 interrupted;
	u64 chains_cut;
	u64 namespaces;
	u64 namespaces_lost;
	/* Learnt by WALK_PREPARE: the first namespace, which never ends, the list's head, and the tables that all share. */
	u64 init_net;
	u64 main_hashinfo;
	u64 main_udp;
	u64 ns_ops;
};

struct walk_job job = {};
struct socket_reader reader = {};

/* Where a run stands in the bucket that it reads. */
struct {
	/* The table: first bucket, distance of two, how many. */
	u64 heads_at;
	u32 stride;
	u32 total;
	/* The block: its first bucket, the heads in it, those that have sockets, and which of them is being read. */
	u32 base;
	u32 waiting;
	u32 turn;
	u32 bucket;
	/* The bucket: its next socket, where its records and names begin, and what was counted. */
	u64 node;
	u32 first_record;
	u32 first_name;
	u32 record;
	u32 name;
	u32 tries;
	u32 length;
	u32 expected;
	u32 filtered;
	u32 stop;
	u32 net_inum;
	u32 budget;
	u32 reserved;
	u64 net;
	u64 pointer;
	u64 inner;
	u64 print;
	u32 moved;
	u32 no_room;
} at = {};

u64 heads[BLOCK] = {};
u8 queue[BLOCK] = {};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, RECORDS);
	__type(key, u32);
	__type(value, struct socket_record);
} records SEC(".maps");

struct names {
	u8 bytes[NAMES + NAME_ROOM];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct names);
} names SEC(".maps");

/* Of each port: 1 wanted at the local end, 2 at the other. */
struct ports {
	u8 sides[65536];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct ports);
} ports SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 65536);
	__type(key, u32);
	__type(value, u8);
} wanted_namespaces SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 65536);
	__type(key, u64);
	__type(value, u8);
} wanted_cgroups SEC(".maps");

/* A network in CIDR form; `bits` counts the family's 32 too. */
struct prefix {
	u32 bits;
	u32 family;
	u8 address[16];
};

struct prefixes {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 65536);
	__type(key, struct prefix);
	__type(value, u8);
};

struct prefixes local_prefixes SEC(".maps");
struct prefixes remote_prefixes SEC(".maps");

/*
 * What sockets looked like in the last dump, for changed-since-last. A line is 8 entries in one cache line; an entry has a tag
 * of the socket (16 bits), the epoch (7), whether it was changed then (1) and the fingerprint (40). A socket that is pushed
 * out of its line counts as changed. An empty line reads as an old socket that nobody has.
 */
#define SEEN_LINES 32768
struct seen {
	u64 lines[SEEN_LINES][8];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct seen);
} seen SEC(".maps");

/* Namespaces whose own tables this dump has read, by the low bits of their inode, which the kernel gives from below. */
#define SPACE_WORDS 4096
struct spaces {
	u64 done[SPACE_WORDS];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct spaces);
} spaces SEC(".maps");

/* A pointer as a number, which may be computed with and handed on: the verifier does not follow it through memory. */
static __always_inline u64 number(const void *pointer)
{
	*(volatile u64 *)&at.pointer = (u64)pointer;
	return *(volatile u64 *)&at.pointer;
}

#define OFFSET(type, field) bpf_core_field_offset(struct type, field)

/* The eight bytes at an address, as a number. */
static __always_inline u64 word_at(u64 address)
{
	return SOCKET_FOLLOW(timespec64, address)->tv_sec;
}

static __always_inline struct socket_record *record_at(u32 place)
{
	return bpf_map_lookup_elem(&records, &place);
}

/* Which socket it is: changes when the memory becomes another one. */
struct identity {
	u64 addresses;
	u64 ports_and_hash;
	u64 net;
};

static __always_inline struct identity identity_of(u64 address)
{
	const struct sock_common *c = SOCKET_FOLLOW(sock_common, address);
	struct identity identity = { .addresses = c->skc_addrpair, .net = word_at(address + OFFSET(sock_common, skc_net)) };

	if (OFFSET(sock_common, skc_portpair) == OFFSET(sock_common, skc_hash) + 4)
		identity.ports_and_hash = word_at(address + OFFSET(sock_common, skc_hash));
	else
		identity.ports_and_hash = (u64)c->skc_portpair << 32 | c->skc_hash;
	return identity;
}

static __always_inline bool same(struct identity a, struct identity b)
{
	return a.addresses == b.addresses && a.ports_and_hash == b.ports_and_hash && a.net == b.net;
}

static __always_inline bool in_prefixes(void *trie, const struct sock_common *c, bool remote)
{
	struct prefix key = { .bits = 32 + 32, .family = 4 };
	u32 *words = (u32 *)key.address;

	if (c->skc_family == AF_INET) {
		words[0] = remote ? c->skc_daddr : c->skc_rcv_saddr;
	} else if (bpf_core_field_exists(c->skc_v6_daddr)) {
		const struct in6_addr *a = remote ? &c->skc_v6_daddr : &c->skc_v6_rcv_saddr;
		u32 w0 = a->in6_u.u6_addr32[0], w1 = a->in6_u.u6_addr32[1];
		u32 w2 = a->in6_u.u6_addr32[2], w3 = a->in6_u.u6_addr32[3];

		if (!w0 && !w1 && w2 == __builtin_bswap32(0xffff)) {
			words[0] = w3;
		} else {
			key.bits = 32 + 128;
			key.family = 6;
			words[0] = w0;
			words[1] = w1;
			words[2] = w2;
			words[3] = w3;
		}
	}
	return bpf_map_lookup_elem(trie, &key);
}

static __always_inline bool port_wanted(u16 local, u16 remote)
{
	u32 zero = 0;
	struct ports *all = bpf_map_lookup_elem(&ports, &zero);

	return all && (all->sides[local] & 1 || all->sides[remote] & 2);
}

/* The rules that need more than the state. `full` says that the socket has a control group. */
__noinline int rules_hold(u64 address, u32 full)
{
	const struct sock_common *c = SOCKET_FOLLOW(sock_common, address);
	u32 rules = job.rules;

	if (rules & RULE_NAMESPACES) {
		u32 inum = SOCKET_FOLLOW(net, c->skc_net.net)->ns.inum;

		if (!bpf_map_lookup_elem(&wanted_namespaces, &inum))
			return 0;
	}
	if (rules & RULE_PORTS && !port_wanted(c->skc_num, __builtin_bswap16(c->skc_dport)))
		return 0;
	if (rules & RULE_PREFIXES) {
		if (c->skc_family == AF_UNIX)
			return 0;
		if (!in_prefixes(&local_prefixes, c, false) && !in_prefixes(&remote_prefixes, c, true))
			return 0;
	}
	if (rules & RULE_CGROUPS) {
		u64 id = full ? cgroup_id_of(SOCKET_FOLLOW(sock, address)) : 0;

		if (!bpf_map_lookup_elem(&wanted_cgroups, &id))
			return 0;
	}
	return 1;
}

static __always_inline u64 mixed(u64 hash, u64 value)
{
	hash = (hash ^ value) * 0x9e3779b97f4a7c15ull;
	return hash ^ hash >> 29;
}

#define SEEN_PRINT ((1ull << 40) - 1)
#define SEEN_CHANGED (1ull << 40)

/* Whether the socket has the fingerprint that it had in the last dump; remembers it. Asked again in the same dump, because a
 * bucket is read again, it answers as before. */
__noinline int unchanged(u64 address, u64 print)
{
	u64 key = mixed(1, address), tag = key >> 33 & 0xffff, epoch = job.epoch & 127, entry;
	u32 zero = 0, place, i;
	struct seen *all = bpf_map_lookup_elem(&seen, &zero);
	u64 best = 0;
	u64 *line;

	if (!all)
		return 0;
	line = all->lines[key >> 49 & (SEEN_LINES - 1)];
	print &= SEEN_PRINT;
	/* The socket's entry, or else the oldest: without branches, whose combinations the verifier would all follow. */
	for (i = 0; i < 8; i++) {
		u64 other, score, less;

		entry = line[i];
		other = entry >> 48 ^ tag;
		score = ((other - 1) >> 63) << 20 | ((epoch - (entry >> 41)) & 127) << 3 | i;
		less = (u64)((s64)(best - score) >> 63);
		best ^= (best ^ score) & less;
	}
	place = best;
	place &= 7;
	entry = line[place];
	if (entry >> 48 == tag && (entry & SEEN_PRINT) == print) {
		if ((entry >> 41 & 127) == epoch)
			return !(entry & SEEN_CHANGED);
		line[place] = tag << 48 | epoch << 41 | print;
		return 1;
	}
	line[place] = tag << 48 | epoch << 41 | SEEN_CHANGED | print;
	return 0;
}

/* What of a socket's identity goes into its fingerprint. */
static __always_inline u64 print_of(const struct sock_common *c, u8 state)
{
	u64 print = mixed(state, c->skc_addrpair);

	print = mixed(print, (u64)c->skc_hash << 32 | c->skc_portpair);
	return mixed(print, SOCKET_FOLLOW(net, c->skc_net.net)->ns.inum);
}

/* What moves when a segment comes or goes, a byte is written or read, a connection waits for accept, or the file goes. */
static __always_inline u64 print_of_tcp(const struct tcp_sock *tp, u8 state)
{
	const struct sock *sk = &tp->inet_conn.icsk_inet.sk;
	u64 print = print_of(&sk->__sk_common, state);

	print = mixed(print, (u64)tp->segs_in << 32 | tp->segs_out);
	print = mixed(print, (u64)tp->write_seq << 32 | tp->snd_una);
	print = mixed(print, (u64)tp->rcv_nxt << 32 | tp->copied_seq);
	print = mixed(print, (u64)tp->snd_cwnd << 32 | tp->total_retrans);
	print = mixed(print, (u64)sk->sk_ack_backlog << 32 | sk->sk_max_ack_backlog);
	print = mixed(print, (u64)sk->sk_rcvbuf << 32 | (u32)sk->sk_sndbuf);
	return mixed(print, read_inode(sk));
}

static __always_inline u64 print_of_sock(const struct sock *sk)
{
	u64 print = print_of(&sk->__sk_common, sk->__sk_common.skc_state);

	print = mixed(print, (u64)sk->sk_backlog.rmem_alloc.counter << 32 | (u32)sk->sk_wmem_alloc.refs.counter);
	print = mixed(print, (u64)sk->sk_drops.counter << 32 | sk->sk_receive_queue.qlen);
	print = mixed(print, (u64)sk->sk_rcvbuf << 32 | (u32)sk->sk_sndbuf);
	return mixed(print, (u64)read_inode(sk) << 8 | sk->sk_shutdown);
}

static __always_inline bool state_wanted(u8 state)
{
	return job.states >> (state & 31) & 1;
}

/* Whether the socket belongs to the part of its bucket that is being read. */
static __always_inline bool in_part(u64 address)
{
	return job.parts <= 1 || (mixed(2, address) >> 40 & (job.parts - 1)) == job.part;
}

enum taken { TAKEN, NO_ROOM, TORN };

/* A record for the next socket, zero, or none when the array is full. */
static __always_inline struct socket_record *next_record(void)
{
	struct socket_record *r = record_at(at.record);

	if (r)
		__builtin_memset(r, 0, sizeof(*r));
	return r;
}

/* The connection that this subflow is the first of, if it is. */
__noinline int take_mptcp(u64 address)
{
	struct mptcp_subflow_context *context;
	struct socket_record *r;
	struct mptcp_sock *msk;
	u64 from, conn;
	u8 state;

	from = mptcp_context(SOCKET_FOLLOW(tcp_sock, address));
	if (!from || !bpf_core_type_exists(struct mptcp_sock))
		return TAKEN;
	context = SOCKET_FOLLOW(mptcp_subflow_context, from);
	conn = number(context->conn);
	if (!conn || number(context->node.prev) != conn + bpf_core_field_offset(struct mptcp_sock, conn_list))
		return TAKEN;
	msk = SOCKET_FOLLOW(mptcp_sock, conn);
	state = msk->sk.icsk_inet.sk.__sk_common.skc_state;
	at.expected++;
	if (!state_wanted(state) || (job.rules && !rules_hold(conn, 1)))
		goto filtered;
	if (job.rules & RULE_CHANGED) {
		u64 print = print_of_sock(&msk->sk.icsk_inet.sk);

		print = mixed(mixed(mixed(print, msk->bytes_sent), msk->bytes_received), msk->bytes_acked);
		if (unchanged(conn, print))
			goto filtered;
	}
	r = next_record();
	if (!r)
		return NO_ROOM;
	read_common(r, &msk->sk.icsk_inet.sk.__sk_common);
	read_mptcp(r, msk, state, job.groups);
	at.record++;
	return TAKEN;
filtered:
	at.filtered++;
	return TAKEN;
}

/* Fingerprint of a TCP socket of any state, in at.print: a function of its own, and so is fill_mini(), because the verifier
 * then follows its branches once and not along every path that leads to it. */
__noinline int print_tcp(u64 address, u32 state)
{
	if (state == TIME_WAIT || state == NEW_SYN_RECV)
		at.print = print_of(SOCKET_FOLLOW(sock_common, address), state);
	else
		at.print = print_of_tcp(SOCKET_FOLLOW(tcp_sock, address), state);
	return 0;
}

static __always_inline int fill_tcp(u64 address, u32 shown)
{
	struct socket_record *r = next_record();

	if (!r)
		return NO_ROOM;
	read_common(r, SOCKET_FOLLOW(sock_common, address));
	read_tcp(r, SOCKET_FOLLOW(tcp_sock, address), shown, job.groups, &reader);
	return TAKEN;
}

__noinline int fill_mini(u64 address, u32 state)
{
	struct socket_record *r = next_record();

	if (!r)
		return NO_ROOM;
	read_common(r, SOCKET_FOLLOW(sock_common, address));
	if (state == TIME_WAIT)
		read_time_wait(r, SOCKET_FOLLOW(inet_timewait_sock, address), job.groups, &reader);
	else
		read_request(r, SOCKET_FOLLOW(inet_request_sock, address), job.groups, &reader);
	return TAKEN;
}

/* A TCP socket of any state. `shown` is the state that the record tells, 0 for the socket's own. Nearly all of a dump goes
 * through here: on CPUs whose returns are made safe, each return costs as much as ten fields. */
static __always_inline int take_tcp_inline(u64 address, u32 shown)
{
	u8 state = SOCKET_FOLLOW(sock_common, address)->skc_state;
	bool full = state != TIME_WAIT && state != NEW_SYN_RECV;

	/* It has left the table by now, and nobody finds it any more. */
	if (state == CLOSE && !shown)
		return TAKEN;
	if (!in_part(address))
		return TAKEN;
	if (!shown)
		shown = state == TIME_WAIT ? SOCKET_FOLLOW(inet_timewait_sock, address)->tw_substate : state;
	at.expected++;
	if (!(job.kinds & KIND_TCP) || !state_wanted(shown) || (job.rules && !rules_hold(address, full)))
		goto filtered;
	if (job.rules & RULE_CHANGED) {
		print_tcp(address, state);
		if (unchanged(address, at.print))
			goto filtered;
	}
	if ((full ? fill_tcp(address, shown) : fill_mini(address, state)) != TAKEN)
		return NO_ROOM;
	at.record++;
	return TAKEN;
filtered:
	at.filtered++;
	return TAKEN;
}

__noinline int take_tcp(u64 address, u32 shown)
{
	return take_tcp_inline(address, shown);
}

__noinline int take_udp(u64 address)
{
	const struct udp_sock *udp = SOCKET_FOLLOW(udp_sock, address);
	const struct sock_common *c = &udp->inet.sk.__sk_common;
	struct socket_record *r;

	if (!in_part(address))
		return TAKEN;
	at.expected++;
	if (!state_wanted(c->skc_state) || (job.rules && !rules_hold(address, 1)))
		goto filtered;
	if (job.rules & RULE_CHANGED && unchanged(address, print_of_sock(&udp->inet.sk)))
		goto filtered;
	r = next_record();
	if (!r)
		return NO_ROOM;
	read_common(r, c);
	read_udp(r, udp, job.groups);
	at.record++;
	return TAKEN;
filtered:
	at.filtered++;
	return TAKEN;
}

/* Bytes that wait in the queue of a UNIX socket; of datagrams the first one's, as unix_diag tells it. */
static __always_inline u32 unix_waiting(const struct unix_sock *u)
{
	const struct sock *sk = &u->sk;
	u64 end = (u64)u + bpf_core_field_offset(struct sock, sk_receive_queue);
	u64 next = number(sk->sk_receive_queue.next);
	u32 sum = 0, i;

	if (sk->sk_type == SOCK_STREAM && bpf_core_field_exists(u->inq_len))
		return u->inq_len;
	for (i = 0; i < 16 && next && next != end; i++) {
		const struct sk_buff *skb = SOCKET_FOLLOW(sk_buff, next);

		sum += skb->len;
		if (sk->sk_type == SOCK_DGRAM)
			break;
		next = number(skb->next);
	}
	return sum;
}

/* The name of a UNIX socket, into the names of this run. */
static __always_inline void read_name(struct socket_record *r, const struct unix_sock *u)
{
	u32 zero = 0, prefix = bpf_core_field_offset(struct sockaddr_un, sun_path), length, place = at.name;
	struct names *all = bpf_map_lookup_elem(&names, &zero);
	struct unix_address *addr;
	u8 *to;

	if (!all || !u->addr || place > NAMES)
		return;
	addr = SOCKET_FOLLOW(unix_address, u->addr);
	length = addr->len - prefix;
	if (!length || length > NAME_MAX)
		return;
	/* Says the same again in a form that the verifier sees. */
	asm volatile("" : "+r"(length));
	length &= 127;
	to = &all->bytes[place];
	if (bpf_probe_read_kernel(to, length, (const u8 *)addr + bpf_core_type_size(struct unix_address) + prefix))
		return;
	/* A path is kept with a zero at its end; an abstract name begins with one. */
	if (to[0] && length > 1 && !to[(length - 1) & 127])
		length--;
	r->name_at = place;
	r->name_len = length;
	at.name = place + length;
}

__noinline int take_unix(u64 address)
{
	const struct unix_sock *u = SOCKET_FOLLOW(unix_sock, address);
	const struct sock *sk = &u->sk;
	u8 state = sk->__sk_common.skc_state;
	u32 groups = job.groups;
	struct socket_record *r;

	if (!in_part(address))
		return TAKEN;
	at.expected++;
	if (!state_wanted(state) || (job.rules && !rules_hold(address, 1)))
		goto filtered;
	if (job.rules & RULE_CHANGED) {
		u64 peer = (u64)u->peer;
		u32 inode = peer ? read_inode(SOCKET_FOLLOW(sock, peer)) : 0;

		if (unchanged(address, mixed(print_of_sock(sk), inode)))
			goto filtered;
	}
	r = next_record();
	if (!r)
		return NO_ROOM;
	r->address = address;
	r->cookie = sk->__sk_common.skc_cookie.counter;
	r->netns = at.net_inum;
	r->family = AF_UNIX;
	r->state = state;
	r->sock_type = sk->sk_type;
	r->inode = read_inode(sk);
	if (WANTED(QUEUES)) {
		if (state == LISTEN) {
			r->accept_queue = sk->sk_receive_queue.qlen;
			r->accept_limit = sk->sk_max_ack_backlog;
		} else {
			r->rqueue_bytes = unix_waiting(u);
			r->wqueue_bytes = sk->sk_wmem_alloc.refs.counter - 1;
		}
	}
	if (WANTED(MEMORY))
		read_memory(r, sk, false);
	if (WANTED(ATTRIBUTES))
		read_owner(r, sk);
	if (WANTED(CGROUP))
		read_cgroup(r, sk);
	if (WANTED(UNIX)) {
		u64 peer = (u64)u->peer;

		if (peer)
			r->peer_inode = read_inode(SOCKET_FOLLOW(sock, peer));
		read_name(r, u);
	}
	at.record++;
	return TAKEN;
filtered:
	at.filtered++;
	return TAKEN;
}

#include "sockets/chain.bpf.h"
#include "sockets/find.bpf.h"
#include "sockets/tables.bpf.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

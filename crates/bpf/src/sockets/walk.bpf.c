// SPDX-License-Identifier: (LGPL-2.1 OR BSD-2-Clause)
/*
 * Reads the sockets of all network namespaces from the kernel's hash tables. User space runs the program (BPF_PROG_TEST_RUN)
 * until it reports that it is done. Each run fills an array that user space reads in place.
 *
 * No lock is taken. A run is one RCU read-side critical section, so no table is freed while it is read, and the memory of a TCP
 * socket stays a TCP socket (its slab is SLAB_TYPESAFE_BY_RCU). But a socket can be freed and its memory reused for another
 * socket at any time. So:
 * - the socket's identity is read before and after the copy, and again after the step to the next node; if it has changed, the
 *   record is torn and the bucket is read again from its head;
 * - the end marker of a TCP chain must be the number of the bucket; if it is not, the reader has followed a socket into another
 *   chain, and the bucket is read again;
 * - records and counts of a bucket are kept only when the bucket is complete.
 * Most sockets are connections. One run finds them and later runs read them: see find.bpf.h.
 *
 * The parts: chain.bpf.h (buckets and chains), find.bpf.h (connections), tables.bpf.h (the tables, and the program).
 */
#ifdef WALK_COPIES
#include "sockets/copy.bpf.h"
#else
#include "sockets/cast.bpf.h"
#endif
#include "sockets/read.bpf.h"
#define SOCK_DGRAM 2

/* Records of one run, few enough to stay in the L2 cache. A bucket that has more sockets is read in parts. */
#define RECORDS 256
/* Bytes for the names of UNIX sockets of one run: one name for each record, and space for an incomplete one. */
#define NAME_MAX 108
#define NAMES (RECORDS * 112)
#define NAME_ROOM 128
/* Buckets whose heads are read together. */
#define BLOCK 16
/* How often a bucket is read before the rest of it is skipped, and the most sockets that are read of one chain. */
#define TRIES 16
#define CHAIN_MAX 65536
/* Buckets and namespaces of one run, which bound the length of the RCU read-side critical section. The verifier counts the
 * branches of a loop that is not bpf_loop(). */
#ifdef SOCKET_COPIES
#define BUCKETS_PER_RUN 16384
#else
#define BUCKETS_PER_RUN 65536
#endif
#define NAMESPACES_MAX 65536
/* UNIX_HASH_SIZE of include/net/netns/unix.h */
#define UNIX_BUCKETS 512
/* LISTENING_NULLS_BASE of include/net/inet_hashtables.h */
#define LISTENING_NULLS (1u << 29)

enum kind { KIND_TCP = 1, KIND_UDP = 2, KIND_MPTCP = 4, KIND_UNIX = 8 };

enum rule { RULE_NAMESPACES = 1, RULE_CGROUPS = 2, RULE_PORTS = 4, RULE_PREFIXES = 8, RULE_CHANGED = 16 };

enum walk_what { WALK_PREPARE, WALK_TCP, WALK_LISTENERS, WALK_BOUND, WALK_UDP, WALK_NAMESPACES, WALK_FOUND, WALK_UNIX };

/* Which of a namespace's own tables WALK_NAMESPACES reads. */
enum walk_want { WANT_TCP = 1, WANT_UDP = 2, WANT_UNIX = 4 };

/* The request of user space, and the results of a run. */
struct walk_job {
	u32 what;
	u32 want;
	/* The selection. */
	u32 groups;
	u32 kinds;
	u32 states;
	u32 rules;
	/* The number of this dump since the fingerprints were cleared, from 1. The lower 7 bits are used. */
	u32 epoch;
	/* The bucket with which this run begins; the run sets it to the one with which the next run begins. */
	u32 bucket;
	u32 parts;
	u32 part;
	/* The inode of the namespace in whose table `bucket` is, and that table. 0: the run does not begin within a namespace. */
	u32 netns;
	u32 netns_table;
	/* All tables of this kind were read. */
	u32 done;
	u32 records;
	u32 names;
	/* The batch of connections that were found and not read yet: their number, the next one to read, and whether user space must
	 * have it read now. Then where they were found: the table's size, the first bucket, the bucket after the last, the table. */
	u32 found;
	u32 next_found;
	u32 batch_ready;
	u32 buckets;
	u32 first_bucket;
	u32 end_bucket;
	/* For WALK_PREPARE: two new sockets of the calling process, a UDP and a UNIX one, by their descriptors. */
	u32 udp_fd;
	u32 unix_fd;
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
	/* Set by WALK_PREPARE: the initial network namespace, the tables that namespaces share with it, and `ns.ops`, whose value
	 * is the same in every network namespace. `main_unix`: the table of all namespaces, before 6.0. */
	u64 init_net;
	u64 main_hashinfo;
	u64 main_udp;
	u64 main_unix;
	u64 ns_ops;
};

struct walk_job job = {};
struct socket_reader reader = {};

/* The position of a run. */
struct {
	/* The table: address of its first bucket, bytes per bucket, number of buckets. */
	u64 heads_at;
	u32 stride;
	u32 total;
	/* The block: its first bucket, the number of queued buckets, the next queued one, and the bucket that is being read. */
	u32 base;
	u32 queued;
	u32 next_queued;
	u32 bucket;
	/* The bucket: its next node, where its records and names begin, and its counts. */
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
	u64 fingerprint;
	u32 moved;
	u32 records_full;
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

/* For each port: 1 if it is wanted as the local port, 2 as the remote port. */
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

/* A network as the key of an LPM trie. `bits` includes the 32 bits of `family`. */
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
 * The fingerprints of sockets in the previous dump, for RULE_CHANGED. This is a cache of lines with 8 entries. An entry has a
 * tag of the socket (16 bits), the epoch (7), whether the socket had changed then (1) and the fingerprint (40). A socket whose
 * entry was evicted counts as changed. An entry of zero matches no socket.
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

/* A bit for each namespace whose own tables this dump has read, by the low bits of its inode. The kernel allocates these inodes
 * in ascending order. */
#define NAMESPACE_WORDS 4096
struct namespace_set {
	u64 done[NAMESPACE_WORDS];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct namespace_set);
} namespaces_read SEC(".maps");

/* A pointer as a number. It is passed through memory, so that the verifier allows arithmetic with it. */
static __always_inline u64 number_of(const void *pointer)
{
#ifdef SOCKET_COPIES
	return (u64)pointer;
#else
	*(volatile u64 *)&at.pointer = (u64)pointer;
	return *(volatile u64 *)&at.pointer;
#endif
}

#define OFFSET(type, field) bpf_core_field_offset(struct type, field)

static __always_inline u64 word_at(u64 address)
{
	const struct timespec64 *word = SOCKET_AT(timespec64, address);

	return SOCKET_READ(word, tv_sec);
}

static __always_inline struct socket_record *record_at(u32 place)
{
	return bpf_map_lookup_elem(&records, &place);
}

/* Identifies a socket. It changes when the memory is reused for another socket. */
struct identity {
	u64 addresses;
	u64 ports_and_hash;
	u64 net;
};

static __always_inline struct identity identity_of(u64 address)
{
	const struct sock_common *c = SOCKET_FOR_IDENTITY(address);
#ifdef SOCKET_COPIES
	struct identity identity = { .addresses = c->skc_addrpair, .net = (u64)c->skc_net.net };
	const bool adjacent = false;
#else
	struct identity identity = { .addresses = c->skc_addrpair, .net = word_at(address + OFFSET(sock_common, skc_net)) };
	const bool adjacent = OFFSET(sock_common, skc_portpair) == OFFSET(sock_common, skc_hash) + 4;
#endif

	if (adjacent)
		identity.ports_and_hash = word_at(address + OFFSET(sock_common, skc_hash));
	else
		identity.ports_and_hash = (u64)c->skc_portpair << 32 | c->skc_hash;
	return identity;
}

static __always_inline bool same_identity(struct identity a, struct identity b)
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

static __always_inline bool port_wanted(u32 local, u32 remote)
{
	u32 zero = 0;
	struct ports *all = bpf_map_lookup_elem(&ports, &zero);

	/* Before 6.3 the verifier does not know that a swapped number has 16 bits. */
	asm volatile("" : "+r"(remote));
	return all && (all->sides[local] & 1 || all->sides[remote & 65535] & 2);
}

/* Tests the rules of the selection. `full`: the socket is a full socket, which has a control group. */
__noinline int rules_hold(u64 address, u32 full)
{
	const struct sock_common *c = SOCKET_FOLLOW(sock_common, address);
	u32 rules = job.rules;

	if (rules & RULE_NAMESPACES) {
		u32 inum = socket_netns((u64)c->skc_net.net);

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

static __always_inline u64 hash_mix(u64 hash, u64 value)
{
	hash = (hash ^ value) * 0x9e3779b97f4a7c15ull;
	return hash ^ hash >> 29;
}

#define SEEN_FINGERPRINT ((1ull << 40) - 1)
#define SEEN_CHANGED (1ull << 40)

/* Whether the socket's fingerprint is that of the previous dump. Stores the new one. If it is called again in the same dump,
 * because a bucket is read again, it returns the same result. */
__noinline int unchanged(u64 address, u64 fingerprint)
{
	u64 key = hash_mix(1, address), tag = key >> 33 & 0xffff, epoch = job.epoch & 127, entry;
	u32 zero = 0, place, i;
	struct seen *all = bpf_map_lookup_elem(&seen, &zero);
	u64 best = 0;
	u64 *line;

	if (!all)
		return 0;
	line = all->lines[key >> 49 & (SEEN_LINES - 1)];
	fingerprint &= SEEN_FINGERPRINT;
	/* Finds the socket's entry, or else the oldest one. It has no branches, because the verifier would check all their
	 * combinations. */
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
	if (entry >> 48 == tag && (entry & SEEN_FINGERPRINT) == fingerprint) {
		if ((entry >> 41 & 127) == epoch)
			return !(entry & SEEN_CHANGED);
		line[place] = tag << 48 | epoch << 41 | fingerprint;
		return 1;
	}
	line[place] = tag << 48 | epoch << 41 | SEEN_CHANGED | fingerprint;
	return 0;
}

static __always_inline u64 identity_fingerprint(const struct sock_common *c, u8 state)
{
	u64 fingerprint = hash_mix(state, c->skc_addrpair);

	fingerprint = hash_mix(fingerprint, (u64)c->skc_hash << 32 | c->skc_portpair);
	return hash_mix(fingerprint, socket_netns((u64)c->skc_net.net));
}

/* Fields of which at least one changes when a segment is sent or received, data is written or read, a connection enters or
 * leaves the accept queue, or the file is closed. */
static __always_inline u64 tcp_fingerprint(const struct tcp_sock *tp, u8 state)
{
	const struct sock *sk = &tp->inet_conn.icsk_inet.sk;
	u64 fingerprint = identity_fingerprint(&sk->__sk_common, state);

	fingerprint = hash_mix(fingerprint, (u64)tp->segs_in << 32 | tp->segs_out);
	fingerprint = hash_mix(fingerprint, (u64)tp->write_seq << 32 | tp->snd_una);
	fingerprint = hash_mix(fingerprint, (u64)tp->rcv_nxt << 32 | tp->copied_seq);
	fingerprint = hash_mix(fingerprint, (u64)tp->snd_cwnd << 32 | tp->total_retrans);
	fingerprint = hash_mix(fingerprint, (u64)sk->sk_ack_backlog << 32 | sk->sk_max_ack_backlog);
	fingerprint = hash_mix(fingerprint, (u64)sk->sk_rcvbuf << 32 | (u32)sk->sk_sndbuf);
	return hash_mix(fingerprint, read_inode(sk));
}

static __always_inline u64 sock_fingerprint(const struct sock *sk)
{
	u64 fingerprint = identity_fingerprint(&sk->__sk_common, sk->__sk_common.skc_state);

	fingerprint = hash_mix(fingerprint, (u64)sk->sk_backlog.rmem_alloc.counter << 32 | (u32)sk->sk_wmem_alloc.refs.counter);
	fingerprint = hash_mix(fingerprint, (u64)sk->sk_drops.counter << 32 | sk->sk_receive_queue.qlen);
	fingerprint = hash_mix(fingerprint, (u64)sk->sk_rcvbuf << 32 | (u32)sk->sk_sndbuf);
	return hash_mix(fingerprint, (u64)read_inode(sk) << 8 | sk->sk_shutdown);
}

static __always_inline bool state_wanted(u8 state)
{
	return job.states >> (state & 31) & 1;
}

/* A bucket that has too many sockets for one run is read in parts, by a hash of the socket's address. */
static __always_inline bool in_current_part(u64 address)
{
	return job.parts <= 1 || (hash_mix(2, address) >> 40 & (job.parts - 1)) == job.part;
}

enum taken { TAKEN, RECORDS_FULL, TORN };

/* The next record of the array, cleared; NULL if the array is full. */
static __always_inline struct socket_record *next_record(void)
{
	struct socket_record *r = record_at(at.record);

	if (r)
		__builtin_memset(r, 0, sizeof(*r));
	return r;
}

/* Reads the MPTCP connection whose first subflow this is. Does nothing for other sockets. */
__noinline int take_mptcp(u64 address)
{
	const struct tcp_sock *tp = SOCKET_AT(tcp_sock, address);
	const struct mptcp_subflow_context *context;
	struct socket_record *r;
	struct mptcp_sock *msk;
	u64 conn;
	u8 state;

	if (!bpf_core_field_exists(tp->is_mptcp) || !bpf_core_type_exists(struct mptcp_subflow_context) ||
	    !bpf_core_type_exists(struct mptcp_sock) || !SOCKET_READ(tp, is_mptcp))
		return TAKEN;
	context = SOCKET_AT(mptcp_subflow_context, SOCKET_READ(tp, inet_conn.icsk_ulp_data));
	conn = number_of(SOCKET_READ(context, conn));
	if (!conn || number_of(SOCKET_READ(context, node.prev)) != conn + bpf_core_field_offset(struct mptcp_sock, conn_list))
		return TAKEN;
	msk = SOCKET_FOLLOW(mptcp_sock, conn);
	state = msk->sk.icsk_inet.sk.__sk_common.skc_state;
	at.expected++;
	if (!state_wanted(state) || (job.rules && !rules_hold(conn, 1)))
		goto filtered;
	if (job.rules & RULE_CHANGED) {
		u64 fingerprint = sock_fingerprint(&msk->sk.icsk_inet.sk);

		if (bpf_core_field_exists(msk->bytes_sent)) {
			fingerprint = hash_mix(hash_mix(fingerprint, msk->bytes_sent), msk->bytes_received);
			fingerprint = hash_mix(fingerprint, msk->bytes_acked);
		} else {
			fingerprint = hash_mix(hash_mix(fingerprint, msk->write_seq), msk->ack_seq);
		}
		if (unchanged(conn, fingerprint))
			goto filtered;
	}
	r = next_record();
	if (!r)
		return RECORDS_FULL;
	read_common(r, &msk->sk.icsk_inet.sk.__sk_common, conn);
	read_mptcp(r, msk, state, job.groups);
	at.record++;
	return TAKEN;
filtered:
	at.filtered++;
	return TAKEN;
}

/* Sets at.fingerprint to the fingerprint of a TCP socket of any state. This and fill_small() are global functions, so that the
 * verifier checks their branches once and not for every path of their callers. */
__noinline int set_tcp_fingerprint(u64 address, u32 state)
{
	if (state == TIME_WAIT || state == NEW_SYN_RECV)
		at.fingerprint = identity_fingerprint(SOCKET_FOLLOW(sock_common, address), state);
	else
		at.fingerprint = tcp_fingerprint(SOCKET_FOLLOW(tcp_sock, address), state);
	return 0;
}

static __always_inline int fill_tcp(u64 address, u32 shown)
{
	struct socket_record *r = next_record();

	if (!r)
		return RECORDS_FULL;
	read_common(r, SOCKET_OF_IDENTITY(address), address);
	read_tcp(r, SOCKET_FOLLOW(tcp_sock, address), shown, job.groups, &reader);
	return TAKEN;
}

__noinline int fill_small(u64 address, u32 state)
{
	struct socket_record *r = next_record();

	if (!r)
		return RECORDS_FULL;
	read_common(r, SOCKET_FOLLOW(sock_common, address), address);
	if (state == TIME_WAIT)
		read_time_wait(r, SOCKET_FOLLOW(inet_timewait_sock, address), job.groups, &reader);
	else
		read_request(r, SOCKET_FOLLOW(inet_request_sock, address), job.groups, &reader);
	return TAKEN;
}

/* Reads a TCP socket of any state. `shown` is the state for the record; 0 means the socket's own. This runs for nearly every
 * socket of a dump. It is inlined, because with return thunks a return costs as much as reading ten fields. */
static __always_inline int take_tcp_inline(u64 address, u32 shown)
{
	const struct inet_timewait_sock *tw;
	const struct sock_common *c = SOCKET_OF_IDENTITY(address);
	u8 state = c->skc_state;
	bool full = state != TIME_WAIT && state != NEW_SYN_RECV;

	/* The socket was closed and removed from the table. */
	if (state == CLOSE && !shown)
		return TAKEN;
	if (!in_current_part(address))
		return TAKEN;
	if (!shown)
		shown = state;
	if (state == TIME_WAIT) {
		tw = SOCKET_AT(inet_timewait_sock, address);
		shown = SOCKET_READ(tw, tw_substate);
	}
	at.expected++;
	if (!(job.kinds & KIND_TCP) || !state_wanted(shown) || (job.rules && !rules_hold(address, full)))
		goto filtered;
	if (job.rules & RULE_CHANGED) {
		set_tcp_fingerprint(address, state);
		if (unchanged(address, at.fingerprint))
			goto filtered;
	}
	if ((full ? fill_tcp(address, shown) : fill_small(address, state)) != TAKEN)
		return RECORDS_FULL;
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

	if (!in_current_part(address))
		return TAKEN;
	at.expected++;
	if (!state_wanted(c->skc_state) || (job.rules && !rules_hold(address, 1)))
		goto filtered;
	if (job.rules & RULE_CHANGED && unchanged(address, sock_fingerprint(&udp->inet.sk)))
		goto filtered;
	r = next_record();
	if (!r)
		return RECORDS_FULL;
	read_common(r, c, address);
	read_udp(r, udp, job.groups);
	at.record++;
	return TAKEN;
filtered:
	at.filtered++;
	return TAKEN;
}

/* Bytes in the receive queue of a UNIX socket, as unix_diag reports them: for datagrams, those of the first one. */
static __always_inline u32 unix_rqueue_bytes(const struct unix_sock *u, u64 address)
{
	const struct sock *sk = &u->sk;
	u64 end = address + bpf_core_field_offset(struct sock, sk_receive_queue);
	u64 next = number_of(sk->sk_receive_queue.next);
	u32 sum = 0, i;

	if (sk->sk_type == SOCK_STREAM && bpf_core_field_exists(u->inq_len))
		return u->inq_len;
	for (i = 0; i < 16 && next && next != end; i++) {
		const struct sk_buff *skb = SOCKET_AT(sk_buff, next);

		sum += SOCKET_READ(skb, len);
		if (sk->sk_type == SOCK_DGRAM)
			break;
		next = number_of(SOCKET_READ(skb, next));
	}
	return sum;
}

/* Appends the name of a UNIX socket to the names of this run. */
static __always_inline void read_name(struct socket_record *r, const struct unix_sock *u)
{
	u32 zero = 0, prefix = bpf_core_field_offset(struct sockaddr_un, sun_path), length;
	u64 place = at.name;
	struct names *all = bpf_map_lookup_elem(&names, &zero);
	const struct unix_address *addr;
	u8 *to;

	/* Has the compiler test the register that it adds, as the verifier requires. */
	asm volatile("" : "+r"(place));
	if (!all || !u->addr || place > NAMES)
		return;
	addr = SOCKET_AT(unix_address, u->addr);
	length = SOCKET_READ(addr, len) - prefix;
	if (!length || length > NAME_MAX)
		return;
	/* The mask repeats the bound in a form that the verifier understands. */
	asm volatile("" : "+r"(length));
	length &= 127;
	to = &all->bytes[place];
	if (bpf_probe_read_kernel(to, length, (const u8 *)addr + bpf_core_type_size(struct unix_address) + prefix))
		return;
	/* A path ends with a NUL that is not part of it; an abstract name begins with one. */
	if (to[0] && length > 1 && !to[(length - 1) & 127])
		length--;
	r->name_at = place;
	r->name_len = length;
	at.name = place + length;
}

/* A function, so that the compiler makes no single load of this and of `at.net_inum`, which the verifier would refuse. */
__noinline int netns_of(u64 address)
{
	const struct sock_common *c = SOCKET_FOLLOW(sock_common, address);

	return socket_netns((u64)c->skc_net.net);
}

__noinline int take_unix(u64 address)
{
	const struct unix_sock *u = SOCKET_FOLLOW(unix_sock, address);
	const struct sock *sk = &u->sk;
	u8 state = sk->__sk_common.skc_state;
	u32 groups = job.groups;
	struct socket_record *r;

	if (!in_current_part(address))
		return TAKEN;
	at.expected++;
	if (!state_wanted(state) || (job.rules && !rules_hold(address, 1)))
		goto filtered;
	if (job.rules & RULE_CHANGED) {
		u64 peer = (u64)u->peer;
		u32 inode = peer ? inode_at(peer) : 0;

		if (unchanged(address, hash_mix(sock_fingerprint(sk), inode)))
			goto filtered;
	}
	r = next_record();
	if (!r)
		return RECORDS_FULL;
	r->address = address;
	r->cookie = sk->__sk_common.skc_cookie.counter;
	r->netns = at.net ? at.net_inum : netns_of(address);
	r->family = AF_UNIX;
	r->state = state;
	r->sock_type = sk->sk_type;
	r->inode = read_inode(sk);
	if (WANTED(QUEUES)) {
		if (state == LISTEN) {
			r->accept_queue = sk->sk_receive_queue.qlen;
			r->accept_limit = sk->sk_max_ack_backlog;
		} else {
			r->rqueue_bytes = unix_rqueue_bytes(u, address);
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
			r->peer_inode = inode_at(peer);
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

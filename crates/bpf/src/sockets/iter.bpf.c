// SPDX-License-Identifier: (LGPL-2.1 OR BSD-2-Clause)
/*
 * Reads the sockets of one network namespace with the kernel's iterators. The namespace is that of the thread that opens the
 * iterator. The kernel holds the lock of each socket while the program reads it, so no record is torn.
 *
 * For each socket the program writes a record; that of a UNIX socket is followed by its name. If a record does not fit into
 * the kernel's buffer, the kernel runs the program for the same socket again.
 */
#include "sockets/follow.bpf.h"
#include "sockets/read.bpf.h"

#define NAME_MOST 108
#define SOCK_DGRAM 2

enum { KIND_TCP = 1, KIND_MPTCP = 4 };

/* Set by user space before a dump: SOCKET_GROUP_... bits, one bit per state, and the kinds that dump_tcp() writes. */
u32 wanted_groups;
u32 wanted_states;
u32 wanted_kinds;
/* Counts of sockets whose state is not wanted, and of TCP sockets of an unknown type. */
u64 filtered;
u64 unknown;

/* Only one iterator is read at a time. */
u64 connection_copy[1024];
struct socket_record record;
struct socket_reader reader;
struct {
	struct socket_record record;
	char name[NAME_MOST];
} named;

struct bpf_iter__tcp {
	struct bpf_iter_meta *meta;
	struct sock_common *sk_common;
} __attribute__((preserve_access_index));

struct bpf_iter__udp {
	struct bpf_iter_meta *meta;
	struct udp_sock *udp_sk;
} __attribute__((preserve_access_index));

struct bpf_iter__unix {
	struct bpf_iter_meta *meta;
	struct unix_sock *unix_sk;
} __attribute__((preserve_access_index));

struct tcp_timewait_sock {
	struct inet_timewait_sock tw_sk;
} __attribute__((preserve_access_index));

struct tcp_request_sock {
	struct inet_request_sock req;
} __attribute__((preserve_access_index));

static __always_inline bool state_wanted(u8 state)
{
	if (wanted_states >> (state & 31) & 1)
		return true;
	filtered++;
	return false;
}

/*
 * Writes the MPTCP connection whose first subflow this is, because the kernel has no iterator over MPTCP connections. The
 * previous node of the first subflow is the list's head in the connection. Returns not 0 if the record did not fit.
 */
static __noinline int dump_connection(struct seq_file *seq, struct tcp_sock *tp)
{
	struct mptcp_subflow_context *context = (void *)mptcp_context(tp);
	struct mptcp_sock *msk;
	u64 connection, before;
	u8 state;

	if (!context || !bpf_core_type_exists(struct mptcp_sock))
		return 0;
	context = SOCKET_AT(mptcp_subflow_context, context);
	connection = (u64)SOCKET_READ(context, conn);
	before = (u64)SOCKET_READ(context, node.prev);
	if (!connection || before != connection + bpf_core_field_offset(struct mptcp_sock, conn_list))
		return 0;
	if (SOCKET_CASTS) {
		msk = SOCKET_CAST(mptcp_sock, connection);
	} else {
		bpf_probe_read_kernel(connection_copy, bpf_core_type_size(struct mptcp_sock), (const void *)connection);
		msk = (void *)connection_copy;
	}
	state = msk->sk.icsk_inet.sk.__sk_common.skc_state;
	if (!state_wanted(state))
		return 0;
	__builtin_memset(&record, 0, sizeof(record));
	read_common(&record, &msk->sk.icsk_inet.sk.__sk_common, connection);
	read_mptcp(&record, msk, state, wanted_groups);
	return bpf_seq_write(seq, &record, sizeof(record)) != 0;
}

/* Since 5.12, as the newer helper, an iterator can give a socket a cookie. Before, it reports the cookie of one that has one. */
#define MAKES_COOKIES bpf_core_enum_value_exists(enum bpf_func_id, BPF_FUNC_check_mtu)

SEC("iter/tcp")
int dump_tcp(struct bpf_iter__tcp *ctx)
{
	struct sock_common *c = ctx->sk_common;
	struct tcp_timewait_sock *tw;
	struct tcp_request_sock *request;
	struct tcp_sock *tp;
	u8 state;

	if (!c)
		return 0;
	state = c->skc_state;
	tp = bpf_skc_to_tcp_sock(c);
	/* If the connection's record does not fit, the kernel repeats the call, which then writes both records. */
	if (tp && wanted_kinds & KIND_MPTCP && dump_connection(ctx->meta->seq, tp))
		return 0;
	if (!(wanted_kinds & KIND_TCP))
		return 0;
	__builtin_memset(&record, 0, sizeof(record));
	socket_reader_begin(&reader);
	tw = bpf_skc_to_tcp_timewait_sock(c);
	if (tw) {
		if (!state_wanted(tw->tw_sk.tw_substate))
			return 0;
		read_common(&record, c, (u64)c);
		read_time_wait(&record, &tw->tw_sk, wanted_groups, &reader);
		goto write;
	}
	if (!state_wanted(state))
		return 0;
	request = bpf_skc_to_tcp_request_sock(c);
	if (request) {
		read_common(&record, c, (u64)c);
		read_request(&record, &request->req, wanted_groups, &reader);
		goto write;
	}
	if (!tp) {
		unknown++;
		return 0;
	}
	read_common(&record, c, (u64)c);
	read_tcp(&record, tp, state, wanted_groups, &reader);
write:
	if (MAKES_COOKIES)
		record.cookie = bpf_get_socket_cookie(c);
	bpf_seq_write(ctx->meta->seq, &record, sizeof(record));
	return 0;
}

SEC("iter/udp")
int dump_udp(struct bpf_iter__udp *ctx)
{
	struct udp_sock *udp = ctx->udp_sk;

	if (!udp || !state_wanted(udp->inet.sk.__sk_common.skc_state))
		return 0;
	__builtin_memset(&record, 0, sizeof(record));
	read_common(&record, &udp->inet.sk.__sk_common, (u64)udp);
	read_udp(&record, udp, wanted_groups);
	if (MAKES_COOKIES)
		record.cookie = bpf_get_socket_cookie(udp);
	bpf_seq_write(ctx->meta->seq, &record, sizeof(record));
	return 0;
}

/* Bytes in the receive queue, as unix_diag reports them: for datagrams, those of the first one. */
static __always_inline u32 unix_rqueue_bytes(struct unix_sock *un)
{
	u64 end = (u64)un + bpf_core_field_offset(struct sock, sk_receive_queue);
	u64 next = (u64)un->sk.sk_receive_queue.next;
	u16 type = un->sk.sk_type;
	u32 bytes = 0, i;

	if (type == SOCK_STREAM && bpf_core_field_exists(un->inq_len))
		return un->inq_len;
	for (i = 0; i < 16 && next && next != end; i++) {
		const struct sk_buff *skb = SOCKET_AT(sk_buff, next);

		bytes += SOCKET_READ(skb, len);
		if (type == SOCK_DGRAM)
			break;
		next = (u64)SOCKET_READ(skb, next);
	}
	return bytes;
}

/* As unix_diag: connections in the accept queue of a listener, bytes in the queues of other sockets. */
static __always_inline void read_unix_queues(struct socket_record *r, struct unix_sock *un)
{
	struct sock *sk = &un->sk;

	if (r->state == LISTEN) {
		r->accept_queue = sk->sk_receive_queue.qlen;
		r->accept_limit = sk->sk_max_ack_backlog;
	} else {
		r->rqueue_bytes = unix_rqueue_bytes(un);
		r->wqueue_bytes = sk->sk_wmem_alloc.refs.counter - 1;
	}
}

/* The kernel sets the address once, and frees it after it has removed the socket from the table. */
static __always_inline u32 read_unix_name(struct unix_sock *un, char *name)
{
	struct unix_address *address = un->addr;
	int length;

	if (!address)
		return 0;
	length = address->len - (int)sizeof(u16);
	if (length <= 0 || length > NAME_MOST)
		return 0;
	if (bpf_probe_read_kernel(name, length, &address->name[0].sun_path))
		return 0;
	/* A path ends with a NUL that is not part of it. */
	if (name[0] && !name[(length - 1) & 127])
		length--;
	return length;
}

SEC("iter/unix")
int dump_unix(struct bpf_iter__unix *ctx)
{
	struct unix_sock *un = ctx->unix_sk;
	struct socket_record *r = &named.record;
	struct sock *sk, *peer;
	u32 length;

	if (!un)
		return 0;
	sk = &un->sk;
	if (!state_wanted(sk->__sk_common.skc_state))
		return 0;
	__builtin_memset(&named, 0, sizeof(named));
	r->address = (u64)un;
	r->cookie = MAKES_COOKIES ? bpf_get_socket_cookie(un) : (u64)sk->__sk_common.skc_cookie.counter;
	r->netns = SOCKET_READ(SOCKET_AT(net, sk->__sk_common.skc_net.net), ns.inum);
	r->family = AF_UNIX;
	r->state = sk->__sk_common.skc_state;
	r->sock_type = sk->sk_type;
	r->inode = read_inode(sk);
	if (wanted_groups & SOCKET_GROUP_QUEUES)
		read_unix_queues(r, un);
	if (wanted_groups & SOCKET_GROUP_MEMORY)
		read_memory(r, sk, false);
	if (wanted_groups & SOCKET_GROUP_ATTRIBUTES)
		read_owner(r, sk);
	if (wanted_groups & SOCKET_GROUP_CGROUP)
		read_cgroup(r, sk);
	if (wanted_groups & SOCKET_GROUP_UNIX) {
		peer = un->peer;
		if (peer)
			r->peer_inode = inode_at((u64)peer);
		length = read_unix_name(un, named.name);
		r->name_len = length;
		if (length && length <= NAME_MOST) {
			bpf_seq_write(ctx->meta->seq, &named, sizeof(named.record) + length);
			return 0;
		}
	}
	bpf_seq_write(ctx->meta->seq, r, sizeof(*r));
	return 0;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";

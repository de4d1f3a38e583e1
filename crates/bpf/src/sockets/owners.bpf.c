// SPDX-License-Identifier: (LGPL-2.1 OR BSD-2-Clause)
/*
 * Which descriptors of which processes are sockets.
 *
 * The iterator visits each table of descriptors once: the kernel leaves out threads that share their leader's. What is
 * written are entries of 16 bytes; the entries of a process follow its head. The socket itself is not touched, for that
 * would be one more cache miss each: the address is in `struct socket`, and the inode beside it.
 *
 * Nearly all of the time goes into waiting for files and sockets, one after the other, so a table's next files, and then
 * what is behind them, are prefetched before the iterator comes there: the CPU waits for many lines at once.
 */
#include "kernel.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include "sockets/follow.bpf.h"

struct entry {
	u64 address;   /* of struct sock; 0: a head */
	u32 inode;     /* head: process id */
	u32 fd;        /* head: 0 */
};

struct head {
	struct entry entry;
	char comm[16];
};

struct stray {
	u32 inode;
	u32 pid;
	u32 fd;
};

/* Set by user space before each pass, as is `prefetched_pid`. */
u32 last_pid;
u32 find_strays;
u64 last_net;

/* Namespaces that sockets are in, with one descriptor each. Not only those that differ from the namespace of the thread that holds
 * the socket: user space does not get to see the namespace of every process. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__type(key, u32);
	__type(value, struct stray);
} strays SEC(".maps");

static __noinline int look_for_stray(struct task_struct *task, struct socket *socket, u32 fd)
{
	struct sock *sk = BPF_CORE_READ(socket, sk);
	struct net *there = BPF_CORE_READ(sk, __sk_common.skc_net.net);
	struct stray stray = {};

	/* Neighbours are mostly in the same one. */
	if (!there || (u64)there == last_net)
		return 0;
	last_net = (u64)there;
	stray.inode = BPF_CORE_READ(there, ns.inum);
	stray.pid = BPF_CORE_READ(task, tgid);
	stray.fd = fd;
	bpf_map_update_elem(&strays, &stray.inode, &stray, BPF_NOEXIST);
	return 0;
}

/* Descriptors that are prefetched at once. */
#define PREFETCHED 16

struct file___ref {
	struct {
	} f_ref;
} __attribute__((preserve_access_index));

struct file___ops {
	const void *f_op;
} __attribute__((preserve_access_index));

/* The table that was prefetched, and up to which descriptor. */
u32 prefetched_pid;
u32 prefetched_until;
u64 next_files[PREFETCHED];

/* A list's head stands for any word. */
static __always_inline u64 word_at(u64 address)
{
	u64 value = (u64)SOCKET_FOLLOW(hlist_head, address)->first;

	asm volatile("" : "+r"(value));
	return value;
}

/* BPF cannot prefetch; a load whose value nobody uses does the same. Of files that are no sockets nothing is followed: what
 * is behind them might not like to be read. */
static __noinline int prefetch(struct task_struct *task, u32 fd, u64 socket_ops)
{
	const u32 ops = bpf_core_field_offset(struct file___ops, f_op);
	const u32 private = bpf_core_field_offset(struct file, private_data);
	const u32 count = bpf_core_field_exists(struct file___ref, f_ref) ?
				  bpf_core_field_offset(struct file___ref, f_ref) : private;
	const u32 inode = bpf_core_field_offset(struct socket_alloc, vfs_inode) +
			  bpf_core_field_offset(struct inode, i_ino);
	const u32 sock = bpf_core_field_offset(struct socket, sk);
	const struct fdtable *table = task->files->fdt;
	u32 i;

	prefetched_pid = task->pid;
	prefetched_until = fd + PREFETCHED;
	/* What is behind the table's end are no files. */
	if (fd + PREFETCHED >= table->max_fds || bpf_probe_read_kernel(next_files, sizeof(next_files), table->fd + fd + 1))
		return 0;
	for (i = 0; i < PREFETCHED; i++)
		word_at(next_files[i] + count);
	for (i = 0; i < PREFETCHED; i++) {
		u64 file = next_files[i];

		next_files[i] = word_at(file + ops) == socket_ops ? word_at(file + private) : 0;
	}
	for (i = 0; i < PREFETCHED; i++) {
		if (!next_files[i])
			continue;
		word_at(next_files[i] + sock);
		word_at(next_files[i] + inode);
	}
	return 0;
}

SEC("iter/task_file")
int owners(struct bpf_iter__task_file *ctx)
{
	struct task_struct *task = ctx->task;
	struct file *file = ctx->file;
	struct socket *socket;
	struct {
		struct head head;
		struct entry entry;
	} both;
	struct entry entry;

	if (!task || !file)
		return 0;
	socket = (void *)bpf_sock_from_file(file);
	if (!socket)
		return 0;
	if (bpf_ksym_exists(bpf_rdonly_cast) && (prefetched_pid != task->pid || ctx->fd >= prefetched_until))
		prefetch(task, ctx->fd, (u64)((struct file___ops *)file)->f_op);
	entry.address = (u64)socket->sk;
	if (!entry.address)
		return 0;
	entry.inode = (u32)file->f_inode->i_ino;
	entry.fd = ctx->fd;
	if (find_strays)
		look_for_stray(task, socket, ctx->fd);
	if (last_pid == task->pid) {
		bpf_seq_write(ctx->meta->seq, &entry, sizeof(entry));
		return 0;
	}
	both.head.entry.address = 0;
	both.head.entry.inode = task->tgid;
	both.head.entry.fd = 0;
	bpf_probe_read_kernel(both.head.comm, sizeof(both.head.comm),
			      task->group_leader->comm);
	both.entry = entry;
	/* What does not fit is asked for again as a whole, with the next buffer. */
	if (!bpf_seq_write(ctx->meta->seq, &both, sizeof(both)))
		last_pid = task->pid;
	return 0;
}

char _license[] SEC("license") = "Dual BSD/GPL";

// SPDX-License-Identifier: (LGPL-2.1 OR BSD-2-Clause)
/*
 * Lists the descriptors of all processes that are sockets.
 *
 * The iterator visits each descriptor table once: the kernel skips threads that share the table of their leader. The output
 * has entries of 16 bytes; the entries of a process follow its head. The program does not read `struct sock`, which would be
 * one more cache miss for each: its address is in `struct socket`, next to the inode.
 *
 * Nearly all of the time is cache misses on files and sockets, one after the other. So the next files of a table, and then
 * what they point to, are prefetched: the CPU then waits for many cache lines at once.
 */
#include "sockets/follow.bpf.h"

struct entry {
	u64 address;   /* of struct sock; 0 in a head */
	u32 inode;     /* the process id in a head */
	u32 fd;        /* 0 in a head */
};

struct head {
	struct entry entry;
	char comm[16];
};

struct foreign_socket {
	u32 inode;
	u32 pid;
	u32 fd;
};

/* Set by user space before each pass, as is `prefetched_pid`. */
u32 last_pid;
u32 find_foreign_sockets;
u64 last_net;

/* The namespaces of sockets, with one descriptor each. This includes the namespaces of the threads that hold the sockets, because
 * user space may not read the namespace of every process. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__type(key, u32);
	__type(value, struct foreign_socket);
} foreign_sockets SEC(".maps");

static __noinline int note_namespace(struct task_struct *task, struct socket *socket, u32 fd)
{
	struct sock *sk = BPF_CORE_READ(socket, sk);
	struct net *there = BPF_CORE_READ(sk, __sk_common.skc_net.net);
	struct foreign_socket found = {};

	/* Consecutive descriptors are mostly in the same namespace. */
	if (!there || (u64)there == last_net)
		return 0;
	last_net = (u64)there;
	found.inode = BPF_CORE_READ(there, ns.inum);
	found.pid = BPF_CORE_READ(task, tgid);
	found.fd = fd;
	bpf_map_update_elem(&foreign_sockets, &found.inode, &found, BPF_NOEXIST);
	return 0;
}

/* Descriptors that are prefetched together. */
#define PREFETCHED 16

struct file___ref {
	struct {
	} f_ref;
} __attribute__((preserve_access_index));

struct file___ops {
	const void *f_op;
} __attribute__((preserve_access_index));

/* The process whose table was prefetched, and the first descriptor that was not. */
u32 prefetched_pid;
u32 prefetched_until;
u64 next_files[PREFETCHED];

/* Reads any word, as the head of a list. */
static __always_inline u64 word_at(u64 address)
{
	u64 value = (u64)SOCKET_CAST(hlist_head, address)->first;

	asm volatile("" : "+r"(value));
	return value;
}

/* BPF has no prefetch instruction; a load whose value is not used has the same effect. The private data of files that are not
 * sockets is not read, because it need not be memory. */
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
	/* There are no files behind the end of the table. */
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

/* Linux 5.11. */
#define SOCKET_FROM_FILE bpf_core_enum_value_exists(enum bpf_func_id, BPF_FUNC_sock_from_file)

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
	if (SOCKET_FROM_FILE) {
		socket = (void *)bpf_sock_from_file(file);
	} else {
		/* This kernel also lists the threads that share the table of their leader. */
		if (task->pid != task->tgid && task->files == task->group_leader->files)
			return 0;
		socket = (file->f_inode->i_mode & S_IFMT) == S_IFSOCK ? file->private_data : NULL;
	}
	if (!socket)
		return 0;
	if (bpf_ksym_exists(bpf_rdonly_cast) && (prefetched_pid != task->pid || ctx->fd >= prefetched_until))
		prefetch(task, ctx->fd, (u64)((struct file___ops *)file)->f_op);
	entry.address = SOCKET_FROM_FILE ? (u64)socket->sk : (u64)BPF_CORE_READ(socket, sk);
	if (!entry.address)
		return 0;
	entry.inode = (u32)file->f_inode->i_ino;
	entry.fd = ctx->fd;
	if (find_foreign_sockets)
		note_namespace(task, socket, ctx->fd);
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
	/* The kernel repeats the call with the next buffer if the record does not fit. */
	if (!bpf_seq_write(ctx->meta->seq, &both, sizeof(both)))
		last_pid = task->pid;
	return 0;
}

char _license[] SEC("license") = "Dual BSD/GPL";

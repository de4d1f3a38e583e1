/* SPDX-License-Identifier: (LGPL-2.1 OR BSD-2-Clause) */
/* Maps, variables and helpers that the probes of the btf object share. Those of both objects are in shared.bpf.h. */
#ifndef PARSHALL_COMMON_H
#define PARSHALL_COMMON_H

#include "diagnose/shared.bpf.h"
#include <bpf/bpf_tracing.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_endian.h>

#ifndef BPF_LOCAL_STORAGE_GET_F_CREATE
#define BPF_LOCAL_STORAGE_GET_F_CREATE 1
#endif

/* Set before load. */
const volatile u16 port = 0;
/* Whether `more_ports` has further ones. */
const volatile u8 has_more_ports = 0;
const volatile u32 max_flows = 16384;
/* The number of already open sockets that are tracked at once. Of the others, those that carried data within the last
 * `recent_jiffies` are; the rest are tracked at their first send or receive. */
const volatile u32 eager_flows = 8192;
const volatile u32 recent_jiffies = 0;
/* Addresses of tcp_delack_timer() and tcp_write_timer(), read from the first TCP socket, so that kallsyms is not needed. */
u64 delack_fn = 0;
u64 write_fn = 0;

u32 n_flows = 0;

/* The subject's ports but the first, in host order. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 64);
	__type(key, u16);
	__type(value, u8);
} more_ports SEC(".maps");

/* Set by user space between two windows: what ends then is not reported. */
u32 between_windows = 0;
/* Set by user space while the iterators read the ledgers that an earlier window has left: each is emptied when it is written. */
u32 renew = 0;

/* A thread of the subject splices from TCP sockets: only then is on_splice attached, which runs for each receive of the host. */
u32 splice_seen = 0;

#include "diagnose/older.bpf.h"

/* Of registers that the verifier trusts. */
static __always_inline s32 syscall_nr(struct pt_regs *regs)
{
#if defined(__TARGET_ARCH_x86)
	return (s32)regs->orig_ax;
#else
	return regs->syscallno;
#endif
}

/* Of registers that task_regs() found. */
static __always_inline s32 saved_syscall_nr(struct pt_regs *regs)
{
#if defined(__TARGET_ARCH_x86)
	return (s32)READ(regs, orig_ax);
#else
	return READ(regs, syscallno);
#endif
}

static __always_inline s32 task_syscall(struct task_struct *task)
{
	struct pt_regs *regs = task_regs(task);

	return regs ? saved_syscall_nr(regs) : -1;
}

static __always_inline bool call_is(s32 nr, u8 flag)
{
	u64 index = (u32)nr;

	if (index >= 512)
		return false;
	/* Keeps the compiler from removing the mask, which the verifier needs to see the bound. */
	asm volatile("" : "+r"(index));
	return call_flags[index & 511] & flag;
}

/* The file descriptor in the first argument of a system call. */
struct descriptor {
	u64 target; /* socket cookie (0 if none was generated yet), inode number, or address of a futex */
	s32 number;
	u8 kind;
};

/* Since Linux 6.2. */
extern void *bpf_rdonly_cast(const void *pointer, u32 btf_id) __ksym __weak;

/* Set before load: the numbers of the types in the kernel's BTF, which the reduced BTF of this object does not have. */
const volatile u32 task_struct_id = 0;
const volatile u32 file_id = 0;
const volatile u32 socket_id = 0;
const volatile u32 sock_id = 0;

/*
 * Whether UNTRUSTED() can be used for pointers to this structure. It gives a pointer that the verifier does not trust, so that a load
 * through it is a plain load with a handler for faults: a tenth of the time of a helper call. A load of a pointer through a trusted
 * pointer is as fast, but for each one the verifier searches all types of the kernel by name, four times 0.2 ms without being
 * preempted, once for each path. Other threads that want the CPU wait.
 */
#ifdef OLDER
#define CAN_CAST(type) false
#else
#define CAN_CAST(type) (bpf_ksym_exists(bpf_rdonly_cast) && type##_id)
#endif
#define UNTRUSTED(type, pointer) ((struct type *)bpf_rdonly_cast(pointer, type##_id))

static __always_inline struct task_struct *untrusted_task(struct task_struct *task)
{
	return CAN_CAST(task_struct) ? UNTRUSTED(task_struct, task) : task;
}

static __always_inline struct file *task_file(struct task_struct *task, u32 fd)
{
	struct files_struct *files = READ(untrusted_task(task), files);
	struct file *file = 0, **slot;
	struct fdtable *fdt;

	if (!files)
		return 0;
	fdt = READ(files, fdt);
	if (!fdt || fd >= READ(fdt, max_fds))
		return 0;
	slot = READ(fdt, fd) + fd;
	return bpf_probe_read_kernel(&file, sizeof(file), slot) ? 0 : file;
}

static __always_inline u16 file_mode(struct file *file)
{
	return CAN_CAST(file) ? UNTRUSTED(file, file)->f_inode->i_mode : BPF_CORE_READ(file, f_inode, i_mode);
}

static __always_inline struct sock *file_sock(struct file *file)
{
	struct socket *socket;

	if (CAN_CAST(file) && CAN_CAST(socket))
		return UNTRUSTED(socket, UNTRUSTED(file, file)->private_data)->sk;
	socket = BPF_CORE_READ(file, private_data);
	return BPF_CORE_READ(socket, sk);
}

static __always_inline u8 sock_kind(struct sock *sk)
{
	u16 family, protocol;

	if (CAN_CAST(sock)) {
		family = UNTRUSTED(sock, sk)->__sk_common.skc_family;
		protocol = UNTRUSTED(sock, sk)->sk_protocol;
	} else {
		family = BPF_CORE_READ(sk, __sk_common.skc_family);
		protocol = BPF_CORE_READ(sk, sk_protocol);
	}
	if (family == AF_UNIX)
		return FD_UNIX;
	if (family == AF_INET || family == AF_INET6) {
		if (protocol == IPPROTO_TCP || protocol == IPPROTO_MPTCP)
			return FD_TCP;
		if (protocol == IPPROTO_UDP)
			return FD_UDP;
	}
	return FD_SOCKET;
}

/* The kind of a file by the type in its mode. A table, because the verifier follows each case of a switch to the end of the program. */
const volatile u8 fd_kinds[16] = {
	[0] = FD_ANON,
	[S_IFIFO >> 12] = FD_PIPE,
	[S_IFCHR >> 12] = FD_CHAR,
	[S_IFDIR >> 12] = FD_FILE,
	[S_IFBLK >> 12] = FD_BLOCK,
	[S_IFREG >> 12] = FD_FILE,
	[S_IFSOCK >> 12] = FD_SOCKET,
};

static __always_inline void no_descriptor(struct descriptor *d)
{
	d->target = 0;
	d->number = -1;
	d->kind = FD_NONE;
}

/* The number of futex(2), whose first argument is an address, and of the calls that have flags of a receive. */
#if defined(__TARGET_ARCH_x86)
#define NR_FUTEX 202
#define NR_RECVFROM 45
#define NR_RECVMSG 47
#else
#define NR_FUTEX 98
#define NR_RECVFROM 207
#define NR_RECVMSG 212
#endif

/* The first argument of a system call with these registers. */
static __always_inline u64 first_argument(struct pt_regs *regs)
{
#if defined(__TARGET_ARCH_x86)
	return READ(regs, di);
#else
	return READ(regs, orig_x0);
#endif
}

/* The flags of a receive with these registers. */
static __always_inline int receive_flags(s32 nr, struct pt_regs *regs)
{
#if defined(__TARGET_ARCH_x86)
	return nr == NR_RECVFROM ? (int)READ(regs, r10) : nr == NR_RECVMSG ? (int)READ(regs, dx) : 0;
#else
	return nr == NR_RECVFROM ? (int)READ(regs, regs[3]) : nr == NR_RECVMSG ? (int)READ(regs, regs[2]) : 0;
#endif
}

/* The file descriptor, or the futex, in the first argument of the system call `nr`, whose registers are `regs`. */
static __always_inline void call_descriptor(struct task_struct *task, struct pt_regs *regs, s32 nr, bool with_target, struct descriptor *d)
{
	struct file *file;
	struct sock *sk;

	no_descriptor(d);
	if (!regs)
		return;
	if (with_target && nr == NR_FUTEX)
		d->target = first_argument(regs);
	if (!call_is(nr, CALL_FD))
		return;
	d->number = (s32)first_argument(regs);
	file = task_file(task, d->number);
	if (!file)
		return;
	d->kind = fd_kinds[(file_mode(file) >> 12) & 15];
	if (d->kind == FD_SOCKET) {
		sk = file_sock(file);
		d->kind = sock_kind(sk);
		if (with_target && bpf_core_type_exists(struct mptcp_sock) && BPF_CORE_READ(sk, sk_protocol) == IPPROTO_MPTCP)
			sk = BPF_CORE_READ((struct mptcp_sock *)sk, first);
		if (with_target)
			d->target = id_of_socket(sk);
	} else if (with_target && d->kind != FD_NONE) {
		d->target = BPF_CORE_READ(file, f_inode, i_ino);
	}
}

MERGED void task_descriptor(struct task_struct *task, s32 nr, bool with_target, struct descriptor *d)
{
	call_descriptor(task, task_regs(task), nr, with_target, d);
}

/* The bits of a sleep; 0 for a task that is not asleep. */
static __always_inline u32 task_state(struct task_struct *task)
{
	if (bpf_core_field_exists(task->__state))
		return task->__state;
	return ((struct task_struct___state *)task)->state;
}

static __always_inline bool port_matches(struct sock *sk)
{
	u16 local = READ(sk, __sk_common.skc_num), remote = bpf_ntohs(READ(sk, __sk_common.skc_dport));

	if (local == port || remote == port)
		return true;
	return has_more_ports && (bpf_map_lookup_elem(&more_ports, &local) || bpf_map_lookup_elem(&more_ports, &remote));
}

/* Both arrays have 16 bytes. An IPv4 address is in the first four. */
static __always_inline void fill_addresses(struct sock *sk, u8 *saddr, u8 *daddr)
{
	if (READ(sk, __sk_common.skc_family) == AF_INET6) {
		bpf_probe_read_kernel(saddr, 16, __builtin_preserve_access_index(&sk->__sk_common.skc_v6_rcv_saddr));
		bpf_probe_read_kernel(daddr, 16, __builtin_preserve_access_index(&sk->__sk_common.skc_v6_daddr));
	} else {
		*(u32 *)saddr = READ(sk, __sk_common.skc_rcv_saddr);
		*(u32 *)daddr = READ(sk, __sk_common.skc_daddr);
	}
}

#endif

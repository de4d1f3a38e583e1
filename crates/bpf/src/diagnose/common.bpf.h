/* SPDX-License-Identifier: (LGPL-2.1 OR BSD-2-Clause) */
/* What the probes of the btf object share, beyond what they share with the classic one. */
#ifndef PARSHALL_COMMON_H
#define PARSHALL_COMMON_H

#include "diagnose/shared.bpf.h"
#include <bpf/bpf_tracing.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_endian.h>

#ifndef BPF_LOCAL_STORAGE_GET_F_CREATE
#define BPF_LOCAL_STORAGE_GET_F_CREATE 1
#endif

/* What a process of the subject contributes: all its sockets, or only those with the subject's port. */
enum tgid_scope { SCOPE_ALL = 1, SCOPE_PORT = 2 };

/* Set before load. */
const volatile u16 port = 0;
const volatile u32 max_flows = 8192;
/* Learnt from the first TCP socket seen: the kernel's own timer functions, without reading kallsyms. */
u64 delack_fn = 0;
u64 write_fn = 0;

u32 n_flows = 0;

struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC | BPF_F_CLONE);
	__type(key, int);
	__type(value, struct flow);
} flows SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct thread);
} threads SEC(".maps");

static __always_inline s32 syscall_nr(struct pt_regs *regs)
{
#if defined(__TARGET_ARCH_x86)
	return (s32)regs->orig_ax;
#else
	return regs->syscallno;
#endif
}

static __always_inline s32 task_syscall(struct task_struct *task)
{
	struct pt_regs *regs = (struct pt_regs *)bpf_task_pt_regs(task);

	return regs ? syscall_nr(regs) : -1;
}

/* What the descriptor in the first argument of the task's system call refers to. */
static __always_inline u8 task_fd_kind(struct task_struct *task, s32 nr)
{
	struct pt_regs *regs;
	struct files_struct *files;
	struct fdtable *fdt;
	struct file *file = 0, **slot;
	struct socket *socket;
	struct sock *sk;
	u32 fd;
	u16 mode, family, proto;

	if (nr < 0 || nr >= 512 || !(call_flags[nr & 511] & 1))
		return FD_NONE;
	regs = (struct pt_regs *)bpf_task_pt_regs(task);
	if (!regs)
		return FD_NONE;
#if defined(__TARGET_ARCH_x86)
	fd = (u32)regs->di;
#else
	fd = (u32)regs->orig_x0;
#endif
	/* Plain loads through typed pointers: a tenth of the cost of a helper call each. */
	files = task->files;
	if (!files)
		return FD_NONE;
	fdt = files->fdt;
	if (!fdt || fd >= fdt->max_fds)
		return FD_NONE;
	slot = fdt->fd + fd;
	if (bpf_probe_read_kernel(&file, sizeof(file), slot) || !file)
		return FD_NONE;
	mode = BPF_CORE_READ(file, f_inode, i_mode);
	switch (mode & S_IFMT) {
	case S_IFREG:
	case S_IFDIR:
		return FD_FILE;
	case S_IFIFO:
		return FD_PIPE;
	case S_IFCHR:
		return FD_CHAR;
	case S_IFBLK:
		return FD_BLOCK;
	case 0:
		return FD_ANON;
	case S_IFSOCK:
		break;
	default:
		return FD_NONE;
	}
	socket = BPF_CORE_READ(file, private_data);
	sk = BPF_CORE_READ(socket, sk);
	family = BPF_CORE_READ(sk, __sk_common.skc_family);
	proto = BPF_CORE_READ(sk, sk_protocol);
	if (family == AF_UNIX)
		return FD_UNIX;
	if (family == AF_INET || family == AF_INET6) {
		if (proto == IPPROTO_TCP)
			return FD_TCP;
		if (proto == IPPROTO_UDP)
			return FD_UDP;
	}
	return FD_SOCKET;
}

#endif

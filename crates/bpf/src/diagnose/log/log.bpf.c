// SPDX-License-Identifier: (LGPL-2.1 OR BSD-2-Clause)
/*
 * Keeps the first bytes of what observed processes write to their stdout and stderr, or to files that the user has named. An object of its
 * own: it is loaded only if the user asks for it.
 *
 * The program runs at each system call of the host and goes on with write(2) and writev(2) of observed processes. Probes of these functions
 * alone would cost other calls nothing, and not every kernel has kprobes. The bytes are read when the call begins: the caller has just made
 * them. Only the program for files reads structures of the kernel, and needs BTF.
 */
#include "diagnose/log/log.h"
#include "diagnose/observed.bpf.h"
#include <bpf/bpf_core_read.h>

/* Read when the window is over: nobody has to run meanwhile. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, LOG_RING_BYTES);
} chunks SEC(".maps");

/* Inodes of the files that are named, and their numbers from 0. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, LOG_FILES);
	__type(key, u64);
	__type(value, u32);
} files SEC(".maps");

/* Whether stdout and stderr are wanted. */
u32 streams = 0;

u64 tick = 0;
u32 taken = 0;
/* Writes, or parts of them, that are not kept. */
u64 left_out = 0;

/* Numbers of the calls, and where `struct pt_regs` has their arguments. Both are an ABI. */
#if defined(__TARGET_ARCH_x86)
enum { CALL_WRITE = 1, CALL_WRITEV = 20, ARGUMENT_1 = 112, ARGUMENT_2 = 104, ARGUMENT_3 = 96 };
#else
enum { CALL_WRITE = 64, CALL_WRITEV = 66, ARGUMENT_1 = 0, ARGUMENT_2 = 8, ARGUMENT_3 = 16 };
#endif

struct vector {
	u64 base;
	u64 length;
};

static __always_inline u64 argument(u64 registers, u32 offset)
{
	u64 value = 0;

	bpf_probe_read_kernel(&value, sizeof(value), (char *)registers + offset);
	return value;
}

/* That of a file that is named; 0 for others. */
static __always_inline u32 named(u32 fd)
{
	struct task_struct *task = (struct task_struct *)bpf_get_current_task();
	struct fdtable *table = BPF_CORE_READ(task, files, fdt);
	struct file **all = BPF_CORE_READ(table, fd), *file = NULL;
	u32 *number;
	u64 inode;

	if (fd >= BPF_CORE_READ(table, max_fds))
		return 0;
	bpf_probe_read_kernel(&file, sizeof(file), &all[fd]);
	if (!file)
		return 0;
	inode = BPF_CORE_READ(file, f_inode, i_ino);
	number = bpf_map_lookup_elem(&files, &inode);
	return number ? LOG_FILE | *number : 0;
}

/* Where a write goes, as a record has it; 0 if it is not wanted. */
static __always_inline u32 wanted(u32 fd, bool by_name)
{
	u32 to = by_name ? named(fd) : 0;

	if (!to && streams && (fd == 1 || fd == 2))
		return fd;
	return to;
}

/* Whether this tick has a place for one more; CPUs that ask at once may take a few too many. */
static __always_inline bool may_take(u64 now)
{
	if (now >> LOG_TICK_SHIFT != tick) {
		tick = now >> LOG_TICK_SHIFT;
		taken = 0;
	}
	if (taken >= LOG_PER_TICK)
		return false;
	taken++;
	return true;
}

static __always_inline void take(u32 to, u64 from, u64 length)
{
	u64 now = bpf_ktime_get_ns(), id = bpf_get_current_pid_tgid(), kept = length;
	struct log_chunk *out = may_take(now) ? bpf_ringbuf_reserve(&chunks, sizeof(*out), 0) : NULL;

	if (!out) {
		__sync_fetch_and_add(&left_out, 1);
		return;
	}
	if (kept > LOG_BYTES)
		kept = LOG_BYTES;
	/* Keeps the compiler from using the unbounded value in its place. */
	asm volatile("" : "+r"(kept));
	if (kept > LOG_BYTES || bpf_probe_read_user(out->bytes, kept, (void *)from)) {
		__sync_fetch_and_add(&left_out, 1);
		bpf_ringbuf_discard(out, BPF_RB_NO_WAKEUP);
		return;
	}
	out->at = now;
	out->tgid = id >> 32;
	out->tid = (u32)id;
	out->to = to;
	out->kept = kept;
	out->length = length;
	bpf_ringbuf_submit(out, BPF_RB_NO_WAKEUP);
}

static __always_inline void take_parts(u32 to, u64 from, u64 parts)
{
	struct vector part;
	u32 i;

	for (i = 0; i < LOG_PARTS && i < parts; i++) {
		if (bpf_probe_read_user(&part, sizeof(part), (void *)(from + i * sizeof(part))))
			break;
		if (part.length)
			take(to, part.base, part.length);
	}
	if (parts > LOG_PARTS)
		__sync_fetch_and_add(&left_out, 1);
}

static __always_inline int call(struct bpf_raw_tracepoint_args *ctx, bool by_name)
{
	u64 registers = ctx->args[0], number = ctx->args[1], from, length;
	u32 to;

	if ((number != CALL_WRITE && number != CALL_WRITEV) || !active || !is_observed(bpf_get_current_pid_tgid() >> 32))
		return 0;
	to = wanted(argument(registers, ARGUMENT_1), by_name);
	if (!to)
		return 0;
	from = argument(registers, ARGUMENT_2);
	length = argument(registers, ARGUMENT_3);
	if (number == CALL_WRITE)
		take(to, from, length);
	else
		take_parts(to, from, length);
	return 0;
}

SEC("raw_tp/sys_enter")
int on_call(struct bpf_raw_tracepoint_args *ctx)
{
	return call(ctx, false);
}

/* The same where files are named. */
SEC("raw_tp/sys_enter")
int on_call_named(struct bpf_raw_tracepoint_args *ctx)
{
	return call(ctx, true);
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";

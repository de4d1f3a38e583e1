/* SPDX-License-Identifier: (LGPL-2.1 OR BSD-2-Clause) */
/*
 * Which processes an object observes that runs beside the probes of a rung: those that user space names when a window begins, and their
 * children from their first moment. observed.rs fills it in. Needs neither BTF nor any structure of the kernel.
 */
#ifndef PARSHALL_OBSERVED_H
#define PARSHALL_OBSERVED_H

#include "kernel.h"
#include <bpf/bpf_helpers.h>

#define OBSERVED_MAX 16384
#define NEW_PROCESS_NOT 0x10000 /* CLONE_THREAD */

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, OBSERVED_MAX);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, u32);
	__type(value, u8);
} observed SEC(".maps");

/* Set by user space from the begin of the window to its end: attaching and detaching take their time. */
u32 active = 0;
/* All processes but our own are observed. */
u32 observe_all = 0;
u32 own_tgid = 0;

/* Set before load: whether the children of observed processes are observed, and where task:task_newtask has its fields. */
const volatile u32 follow_children = 1;
const volatile u32 off_new_pid = 8;
const volatile u32 off_new_flags = 32;

static __always_inline bool is_observed(u32 tgid)
{
	if (observe_all)
		return tgid != own_tgid;
	return bpf_map_lookup_elem(&observed, &tgid);
}

/* task_newtask has the clone flags, which tell processes from threads. */
SEC("tracepoint")
int on_new_task(void *ctx)
{
	u64 flags = 0;
	u32 pid = 0;
	u8 one = 1;

	if (!active || observe_all || !follow_children || !is_observed(bpf_get_current_pid_tgid() >> 32))
		return 0;
	bpf_probe_read_kernel(&pid, sizeof(pid), (char *)ctx + off_new_pid);
	bpf_probe_read_kernel(&flags, sizeof(flags), (char *)ctx + off_new_flags);
	if (!(flags & NEW_PROCESS_NOT))
		bpf_map_update_elem(&observed, &pid, &one, BPF_ANY);
	return 0;
}

#endif

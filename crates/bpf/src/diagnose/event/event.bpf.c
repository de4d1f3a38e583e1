// SPDX-License-Identifier: (LGPL-2.1 OR BSD-2-Clause)
/*
 * Counts events of the kernel that the user has named, by thread, by one value of the event's record, and by stack. An object of its own:
 * it is loaded only if an event is asked for.
 *
 * The programs are those of classic tracepoints and perf events, and read no kernel structure. So they need neither BTF nor a newer kernel.
 * A program cannot ask which of several events it runs for before 5.15, so each event has one of its own.
 */
#include "diagnose/event/event.h"
#include <bpf/bpf_helpers.h>

/* Entries are preallocated: an event may be one of the kernel's allocator. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, EVENT_CELLS);
	__type(key, struct event_key);
	__type(value, struct event_value);
} cells SEC(".maps");

/* By process and value alone, once there are too many cells: a frequent event must not take the room of a rare one. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, EVENT_SUMS);
	__type(key, struct event_key);
	__type(value, struct event_value);
} sums SEC(".maps");

struct stacks {
	__uint(type, BPF_MAP_TYPE_STACK_TRACE);
	__uint(max_entries, EVENT_STACKS);
	__uint(key_size, sizeof(u32));
	__uint(value_size, EVENT_FRAMES * sizeof(u64));
};

struct stacks kernel_stacks SEC(".maps");
struct stacks user_stacks SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, EVENTS_MAX);
	__type(key, u32);
	__type(value, struct event_lost);
} lost SEC(".maps");

/* Set by user space from the begin of the window to its end: attaching and detaching take their time. */
u32 active = 0;

/* Set before load: where the value of an event is in its record, and its size, 0 for none. */
const volatile u32 value_offset[EVENTS_MAX] = {};
const volatile u32 value_size[EVENTS_MAX] = {};

/* Of another stack in the same bucket; the errors of what has no such stack, a kernel thread for one, are others. */
#define IS_TAKEN(id) ((id) == -17 /* EEXIST */ || (id) == -12 /* ENOMEM */)

/* Whether the event was counted. */
static __always_inline bool add(void *map, struct event_key *key)
{
	struct event_value first = { .count = 1 }, *found = bpf_map_lookup_elem(map, key);

	if (!found) {
		bpf_get_current_comm(first.comm, sizeof(first.comm));
		if (!bpf_map_update_elem(map, key, &first, BPF_NOEXIST))
			return true;
		/* Another CPU was first, or the map is full. */
		found = bpf_map_lookup_elem(map, key);
	}
	if (found)
		__sync_fetch_and_add(&found->count, 1);
	return found;
}

static __always_inline int take(void *ctx, u32 event, u64 value)
{
	struct event_key key = { .event = event, .value = value };
	struct event_lost *missed = bpf_map_lookup_elem(&lost, &event);
	u64 id = bpf_get_current_pid_tgid();

	if (!active || !missed)
		return 0;
	key.tgid = id >> 32;
	key.tid = (u32)id;
	key.kernel_stack = bpf_get_stackid(ctx, &kernel_stacks, 0);
	key.user_stack = bpf_get_stackid(ctx, &user_stacks, BPF_F_USER_STACK);
	if (IS_TAKEN(key.kernel_stack) || IS_TAKEN(key.user_stack))
		missed->stacks++;
	/* One number for all errors. */
	if (key.kernel_stack < 0)
		key.kernel_stack = -1;
	if (key.user_stack < 0)
		key.user_stack = -1;
	if (add(&cells, &key))
		return 0;
	if (key.kernel_stack >= 0 || key.user_stack >= 0)
		missed->stacks++;
	key.tid = 0;
	key.kernel_stack = key.user_stack = -1;
	if (!add(&sums, &key))
		missed->events++;
	return 0;
}

/* The offset and the size are read-only data: the verifier sees constants. */
static __always_inline u64 value_of(void *ctx, u32 event)
{
	u64 value = 0;

	if (value_size[event] == 1)
		bpf_probe_read_kernel(&value, 1, (char *)ctx + value_offset[event]);
	else if (value_size[event] == 2)
		bpf_probe_read_kernel(&value, 2, (char *)ctx + value_offset[event]);
	else if (value_size[event] == 4)
		bpf_probe_read_kernel(&value, 4, (char *)ctx + value_offset[event]);
	else if (value_size[event] == 8)
		bpf_probe_read_kernel(&value, 8, (char *)ctx + value_offset[event]);
	return value;
}

/* Programs of one event; user space loads those that are needed, by their numbers. */
#define EVENT(n)					\
SEC("tracepoint")					\
int on_tracepoint_##n(void *ctx)			\
{							\
	return take(ctx, n, value_of(ctx, n));		\
}							\
SEC("perf_event")					\
int on_software_##n(void *ctx)				\
{							\
	return take(ctx, n, 0);				\
}

EVENT(0)
EVENT(1)
EVENT(2)
EVENT(3)
EVENT(4)
EVENT(5)
EVENT(6)
EVENT(7)

char LICENSE[] SEC("license") = "Dual BSD/GPL";

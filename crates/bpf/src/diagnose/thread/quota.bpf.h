/* SPDX-License-Identifier: (LGPL-2.1 OR BSD-2-Clause) */
/*
 * Threads whose control group has used up its CPU quota. Since 6.18 each of them runs until it is stopped, and leaves the CPU with a flag.
 * Before, the group's run queue of a CPU is stopped with all threads that wait in it or are woken in it. The kernel adds up for how long
 * when it starts the queue again (tg_unthrottle_up, kernel/sched/fair.c), so a wait for a CPU is divided when it ends.
 */

struct cfs_rq___since_5_19 {
	u64 throttled_clock_pelt_time;
} __attribute__((preserve_access_index));

struct cfs_rq___older {
	u64 throttled_clock_task_time;
} __attribute__((preserve_access_index));

/* A run queue. */
struct throttle {
	u64 ns;         /* how long it has been stopped in all */
	u64 stopped_at; /* when a thread was seen to leave it stopped, and 0 once it runs again */
	u64 begin, end; /* when it was stopped last */
};

/* Where there are more, those that were stopped long ago go. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1024);
	__type(key, u64); /* its address */
	__type(value, struct throttle);
} throttles SEC(".maps");

static __always_inline u64 stopped_in_all(struct cfs_rq *queue)
{
	struct cfs_rq___since_5_19 *newer = (void *)queue;
	struct cfs_rq___older *older = (void *)queue;

	if (bpf_core_field_exists(newer->throttled_clock_pelt_time))
		return BPF_CORE_READ(newer, throttled_clock_pelt_time);
	if (bpf_core_field_exists(older->throttled_clock_task_time))
		return BPF_CORE_READ(older, throttled_clock_task_time);
	return 0;
}

/* Whether the kernel stops run queues, and not single threads. */
static __always_inline bool stops_queues(struct task_struct *task)
{
	return !bpf_core_field_exists(task->throttled) && bpf_core_field_exists(task->se.cfs_rq->throttle_count);
}

/* Whether a thread that leaves the CPU does so in a run queue that is stopped, or by itself since 6.18. */
static __always_inline bool is_throttled(struct task_struct *task)
{
	if (bpf_core_field_exists(task->throttled))
		return BPF_CORE_READ(task, throttled);
	return stops_queues(task) && BPF_CORE_READ(task, se.cfs_rq, throttle_count) > 0;
}

/* Notes that the run queue of a throttled thread is stopped from now on. */
static __always_inline void note_stopped(struct task_struct *task, u64 now)
{
	struct throttle first = { .stopped_at = now }, *known;
	struct cfs_rq *queue;
	u64 key;

	if (!stops_queues(task))
		return;
	queue = BPF_CORE_READ(task, se.cfs_rq);
	key = (u64)queue;
	first.ns = stopped_in_all(queue);
	known = bpf_map_lookup_elem(&throttles, &key);
	if (known) {
		known->ns = first.ns;
		known->stopped_at = now;
	} else {
		/* Without it, the next wait in this queue is not divided. */
		bpf_map_update_elem(&throttles, &key, &first, BPF_NOEXIST);
	}
}

/* Notes that the run queue runs again in which a thread has waited. Returns what is known of it, if the kernel stops queues. */
static __always_inline struct throttle *note_running(struct task_struct *task, u64 now)
{
	struct throttle first = {}, *known;
	struct cfs_rq *queue;
	u64 key, more;

	if (!stops_queues(task))
		return NULL;
	queue = BPF_CORE_READ(task, se.cfs_rq);
	first.ns = stopped_in_all(queue);
	if (!first.ns)
		return NULL;
	key = (u64)queue;
	known = bpf_map_lookup_elem(&throttles, &key);
	if (!known) {
		bpf_map_update_elem(&throttles, &key, &first, BPF_NOEXIST);
		return NULL;
	}
	more = first.ns - known->ns;
	if (more) {
		known->begin = known->stopped_at ? known->stopped_at : now - more;
		known->end = known->begin + more;
		known->ns = first.ns;
		known->stopped_at = 0;
	}
	return known;
}

/* For how much of the time from `from` to `now` the run queue was stopped in which a thread has waited. */
static __always_inline u64 throttled_ns(struct task_struct *task, u64 from, u64 now)
{
	struct throttle *known = note_running(task, now);
	u64 begin, end;

	if (!known)
		return 0;
	begin = known->begin;
	end = known->end < now ? known->end : now;
	/* It does not run yet: the slice ends. */
	if (BPF_CORE_READ(task, se.cfs_rq, throttle_count) > 0) {
		begin = known->stopped_at;
		end = now;
	}
	if (begin < from)
		begin = from;
	return end > begin ? end - begin : 0;
}

// SPDX-License-Identifier: (LGPL-2.1 OR BSD-2-Clause)
/*
 * Follows requests of observed processes to io_uring from their submission to their completion, and adds them up by thread, opcode and
 * error. An object of its own: it is loaded only where a process uses io_uring.
 *
 * The programs are those of classic tracepoints. Their fields are where the kernel's tracefs says; a field or a tracepoint that this kernel
 * lacks is left out.
 */
#include "diagnose/uring/uring.h"
#include "diagnose/observed.bpf.h"

/* Not preallocated: few services have as many. These tracepoints are none of the kernel's allocator. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, REQUESTS_MAX);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct request_key);
	__type(value, struct request_value);
} requests SEC(".maps");

/* Completions of a request that goes on come without its address, and on Linux 5.10 those of all. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, NAMED_MAX);
	__type(key, struct request_key);
	__type(value, struct request_value);
} named SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, CELLS_MAX);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct uring_cell_key);
	__type(value, struct uring_cell);
} cells SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, ERRORS_MAX);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct uring_cell_key);
	__type(value, u64);
} errors SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, THREADS_MAX);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, u64);
	__type(value, struct uring_thread);
} threads SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, WAITS_MAX);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct uring_wait_key);
	__type(value, u64);
} waits SEC(".maps");

/* Counts of zero, for the first entry of a thread: too large for the stack. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct uring_thread);
} blank SEC(".maps");

/* Read when the window is over: nobody has to run meanwhile. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, RECORD_BYTES);
} records SEC(".maps");

/* The last completion on a CPU: the record of an overflow follows that of its completion and does not say whose it is. */
struct last {
	u64 ctx;
	u64 user_data;
	struct request_value request;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct last);
} lasts SEC(".maps");

/* Set by user space when a window begins. */
u32 records_per_tick = 0;

u64 record_tick = 0;
u32 recorded = 0;
u64 follow_tick = 0;
u32 followed = 0;
/* Requests without a record, and events that no map had a place for. */
u64 left_out = 0;
u64 lost = 0;
/* Requests that were not followed. From the first one on an event whose request is not known may be of such a one, and does not count. */
u64 not_followed = 0;

/* Set before load: where a record has its fields, 0 for those that it does not have. */
const volatile u32 fields[POINTS][FIELDS] = {};
/* Where `struct io_kiocb` has the opcode; 0 if that is not known. */
const volatile u32 request_opcode = 0;

enum { CQE_MORE = 2, CQE_NOTIFICATION = 8 };
/* include/uapi/linux/io_uring.h: enum io_uring_op */
enum {
	OP_POLL_ADD = 6,
	OP_RECVMSG = 10,
	OP_TIMEOUT = 11,
	OP_ACCEPT = 13,
	OP_RECV = 27,
	OP_SEND_ZC = 47,
	OP_SENDMSG_ZC = 48,
	OP_READ_MULTISHOT = 49
};

static __always_inline u64 number(void *ctx, u32 point, u32 field, u32 size)
{
	u64 value = 0;

	/* The offset is read-only data: the verifier sees a constant, and drops what reads no field. */
	if (fields[point][field])
		bpf_probe_read_kernel(&value, size, (char *)ctx + fields[point][field]);
	return value;
}

/* False where the record does not say which request it is about. */
static __always_inline bool read_key(void *ctx, u32 point, struct request_key *key)
{
	/* Submissions of Linux 5.10 have the address of a request, and its completions do not. */
	u32 id = fields[POINT_COMPLETE][FIELD_REQ] ? FIELD_REQ : FIELD_USER_DATA;

	key->ctx = number(ctx, point, FIELD_CTX, 8);
	key->id = number(ctx, point, id, 8);
	return fields[point][FIELD_CTX] && fields[point][id];
}

static __always_inline u8 known(u8 opcode)
{
	return opcode < OPCODES ? opcode : OPCODE_UNKNOWN;
}

/* That of a request whose submission was not seen. */
static __always_inline u8 opcode_of(void *ctx, u32 point)
{
	u64 req = number(ctx, point, FIELD_REQ, 8);
	u8 opcode = OPCODE_UNKNOWN;

	if (fields[point][FIELD_OPCODE])
		return known(number(ctx, point, FIELD_OPCODE, 1));
	if (request_opcode && req)
		bpf_probe_read_kernel(&opcode, 1, (void *)(req + request_opcode));
	return known(opcode);
}

static __always_inline struct uring_cell *cell_of(struct request_value *of)
{
	struct uring_cell_key key = { .tgid = of->tgid, .tid = of->tid, .opcode = of->opcode };
	struct uring_cell *found = bpf_map_lookup_elem(&cells, &key), first = {};

	if (found)
		return found;
	/* It fails where another CPU was first, or the map is full. */
	bpf_map_update_elem(&cells, &key, &first, BPF_NOEXIST);
	found = bpf_map_lookup_elem(&cells, &key);
	if (!found)
		__sync_fetch_and_add(&lost, 1);
	return found;
}

static __always_inline struct uring_thread *thread_of(u32 tgid, u32 tid)
{
	u64 key = (u64)tgid << 32 | tid;
	struct uring_thread *found = bpf_map_lookup_elem(&threads, &key), *first;
	u32 zero = 0;

	if (found)
		return found;
	first = bpf_map_lookup_elem(&blank, &zero);
	if (first)
		bpf_map_update_elem(&threads, &key, first, BPF_NOEXIST);
	return bpf_map_lookup_elem(&threads, &key);
}

static __always_inline void add_outstanding(struct request_value *of, u32 by)
{
	struct uring_thread *thread = thread_of(of->tgid, of->tid);

	if (thread && of->opcode < OPCODES)
		__sync_fetch_and_add(&thread->outstanding[of->opcode], by);
}

static __always_inline void add_error(struct request_value *of, s32 error)
{
	struct uring_cell_key key = { .tgid = of->tgid, .tid = of->tid, .opcode = of->opcode, .error = error };
	u64 *found = bpf_map_lookup_elem(&errors, &key), one = 1;

	if (!found) {
		if (!bpf_map_update_elem(&errors, &key, &one, BPF_NOEXIST))
			return;
		found = bpf_map_lookup_elem(&errors, &key);
	}
	if (found)
		__sync_fetch_and_add(found, 1);
	else
		__sync_fetch_and_add(&lost, 1);
}

static __always_inline bool may_complete_often(u8 opcode)
{
	return opcode == OP_POLL_ADD || opcode == OP_RECVMSG || opcode == OP_TIMEOUT || opcode == OP_ACCEPT ||
	       opcode == OP_RECV || opcode == OP_READ_MULTISHOT;
}

static __always_inline void remember_name(u64 ring, u64 user_data, struct request_value *of)
{
	struct request_key key = { .ctx = ring, .id = user_data };
	struct request_value *before = bpf_map_lookup_elem(&named, &key);

	/* A program that gives its requests the same numbers again changes nothing here. */
	if (!before || before->opcode != of->opcode || before->tid != of->tid)
		bpf_map_update_elem(&named, &key, of, BPF_ANY);
}

/* Whether this tick has a place for one more; CPUs that ask at once may take a few too many. */
static __always_inline bool may_follow(u64 now)
{
	u64 tick = now >> TICK_SHIFT;

	if (tick != follow_tick) {
		follow_tick = tick;
		followed = 0;
	}
	if (followed >= FOLLOWED_PER_TICK)
		return false;
	followed++;
	return true;
}

SEC("tracepoint")
int on_submit(void *ctx)
{
	u64 id = bpf_get_current_pid_tgid();
	struct request_value of = { .tgid = id >> 32, .tid = (u32)id }, *before;
	struct request_key key = {};
	struct uring_cell *cell;

	if (!active || !is_observed(of.tgid))
		return 0;
	of.begin = bpf_ktime_get_ns();
	if (!may_follow(of.begin)) {
		__sync_fetch_and_add(&not_followed, 1);
		return 0;
	}
	read_key(ctx, POINT_SUBMIT, &key);
	of.opcode = opcode_of(ctx, POINT_SUBMIT);
	cell = cell_of(&of);
	if (cell)
		__sync_fetch_and_add(&cell->submitted, 1);
	before = bpf_map_lookup_elem(&requests, &key);
	/* A request that wanted no completion: its memory is used again. */
	if (before)
		add_outstanding(before, -1);
	if (bpf_map_update_elem(&requests, &key, &of, BPF_ANY)) {
		__sync_fetch_and_add(&left_out, 1);
		return 0;
	}
	add_outstanding(&of, 1);
	/* Without addresses several requests may have one number. */
	if (!fields[POINT_COMPLETE][FIELD_REQ] || may_complete_often(of.opcode))
		remember_name(key.ctx, number(ctx, POINT_SUBMIT, FIELD_USER_DATA, 8), &of);
	return 0;
}

/* The same for records. */
static __always_inline bool may_record(u64 now)
{
	u64 tick = now >> TICK_SHIFT;

	if (tick != record_tick) {
		record_tick = tick;
		recorded = 0;
	}
	if (recorded >= records_per_tick)
		return false;
	recorded++;
	return true;
}

static __always_inline void record(struct request_value *of, u64 now, s32 res)
{
	struct uring_record *out = may_record(now) ? bpf_ringbuf_reserve(&records, sizeof(*out), 0) : NULL;

	if (!out) {
		__sync_fetch_and_add(&left_out, 1);
		return;
	}
	out->begin = of->begin;
	out->end = now;
	out->tgid = of->tgid;
	out->tid = of->tid;
	out->res = res;
	out->opcode = of->opcode;
	out->flags = of->flags;
	out->pad[0] = out->pad[1] = 0;
	bpf_ringbuf_submit(out, BPF_RB_NO_WAKEUP);
}

static __always_inline void finish(struct request_key *key, struct request_value *of, struct uring_cell *cell, s32 res)
{
	u64 now = bpf_ktime_get_ns(), ns = now - of->begin;

	if (cell) {
		__sync_fetch_and_add(&cell->timed, 1);
		__sync_fetch_and_add(&cell->ns, ns);
		/* Of two CPUs at once one may win with the shorter time. */
		if (ns > cell->longest_ns)
			cell->longest_ns = ns;
	}
	record(of, now, res);
	add_outstanding(of, -1);
	bpf_map_delete_elem(&requests, key);
}

SEC("tracepoint")
int on_complete(void *ctx)
{
	u64 id = bpf_get_current_pid_tgid(), user_data = number(ctx, POINT_COMPLETE, FIELD_USER_DATA, 8);
	u32 cflags = number(ctx, POINT_COMPLETE, FIELD_CFLAGS, 4), zero = 0;
	s32 res = number(ctx, POINT_COMPLETE, FIELD_RES, 4);
	struct request_value *found, of = {};
	struct request_key key = {}, name;
	struct uring_cell *cell;
	struct last *last;
	bool open;

	/* The second completion of a send without copying says that its buffer is free. */
	if (!active || cflags & CQE_NOTIFICATION)
		return 0;
	read_key(ctx, POINT_COMPLETE, &key);
	found = bpf_map_lookup_elem(&requests, &key);
	open = found;
	if (!found && (!fields[POINT_COMPLETE][FIELD_REQ] || !key.id)) {
		name.ctx = key.ctx;
		name.id = user_data;
		found = bpf_map_lookup_elem(&named, &name);
	}
	if (found) {
		of = *found;
	} else {
		of.tgid = id >> 32;
		of.tid = (u32)id;
		if (not_followed || !is_observed(of.tgid))
			return 0;
		of.opcode = opcode_of(ctx, POINT_COMPLETE);
	}
	last = bpf_map_lookup_elem(&lasts, &zero);
	if (last) {
		last->ctx = key.ctx;
		last->user_data = user_data;
		last->request = of;
	}
	cell = cell_of(&of);
	if (cell)
		__sync_fetch_and_add(&cell->completed, 1);
	if (res < 0)
		add_error(&of, res);
	if (open && (!(cflags & CQE_MORE) || of.opcode == OP_SEND_ZC || of.opcode == OP_SENDMSG_ZC))
		finish(&key, &of, cell, res);
	return 0;
}

/* The request that an event is about; false if it is nobody's who is observed. */
static __always_inline bool request_of(void *ctx, u32 point, u8 flag, struct request_value *of)
{
	u64 id = bpf_get_current_pid_tgid();
	struct request_value *found;
	struct request_key key = {};

	if (!active)
		return false;
	found = read_key(ctx, point, &key) ? bpf_map_lookup_elem(&requests, &key) : NULL;
	if (found) {
		found->flags |= flag;
		*of = *found;
		return true;
	}
	of->tgid = id >> 32;
	of->tid = (u32)id;
	of->opcode = opcode_of(ctx, point);
	return !not_followed && is_observed(of->tgid);
}

SEC("tracepoint")
int on_poll(void *ctx)
{
	struct request_value of = {};
	struct uring_cell *cell = request_of(ctx, POINT_POLL, REQUEST_POLLED, &of) ? cell_of(&of) : NULL;

	if (cell)
		__sync_fetch_and_add(&cell->polls, 1);
	return 0;
}

SEC("tracepoint")
int on_worker(void *ctx)
{
	struct request_value of = {};
	struct uring_cell *cell = request_of(ctx, POINT_WORKER, REQUEST_WORKER, &of) ? cell_of(&of) : NULL;

	if (cell)
		__sync_fetch_and_add(&cell->workers, 1);
	return 0;
}

SEC("tracepoint")
int on_link(void *ctx)
{
	struct request_value of = {};
	struct uring_cell *cell = request_of(ctx, POINT_LINK, REQUEST_LINK_FAILED, &of) ? cell_of(&of) : NULL;

	if (cell)
		__sync_fetch_and_add(&cell->links, 1);
	return 0;
}

SEC("tracepoint")
int on_rejected(void *ctx)
{
	struct request_value of = {};
	struct uring_cell *cell = request_of(ctx, POINT_REJECTED, 0, &of) ? cell_of(&of) : NULL;

	if (cell)
		__sync_fetch_and_add(&cell->rejected, 1);
	return 0;
}

SEC("tracepoint")
int on_overflow(void *ctx)
{
	u64 ring = number(ctx, POINT_OVERFLOW, FIELD_CTX, 8), user_data = number(ctx, POINT_OVERFLOW, FIELD_USER_DATA, 8);
	u64 id = bpf_get_current_pid_tgid();
	struct request_value of = { .tgid = id >> 32, .tid = (u32)id, .opcode = OPCODE_UNKNOWN };
	struct uring_cell *cell;
	struct last *last;
	u32 zero = 0;

	if (!active)
		return 0;
	last = bpf_map_lookup_elem(&lasts, &zero);
	if (last && last->ctx == ring && last->user_data == user_data)
		of = last->request;
	else if (not_followed || !is_observed(of.tgid))
		return 0;
	cell = cell_of(&of);
	if (cell)
		__sync_fetch_and_add(&cell->overflowed, 1);
	return 0;
}

/* Before the thread sleeps in io_uring_enter(): what it waits for is some of what it has submitted. */
SEC("tracepoint")
int on_wait(void *ctx)
{
	u64 id = bpf_get_current_pid_tgid(), *found, one = 1;
	struct uring_wait_key key = { .tgid = id >> 32, .tid = (u32)id };
	struct uring_thread *thread;
	int i;

	if (!active || !is_observed(key.tgid))
		return 0;
	thread = bpf_map_lookup_elem(&threads, &(u64){ (u64)key.tgid << 32 | key.tid });
	if (thread) {
		for (i = 0; i < 64; i++)
			if ((s32)thread->outstanding[i] > 0)
				key.outstanding[0] |= 1ULL << i;
		for (i = 64; i < OPCODES; i++)
			if ((s32)thread->outstanding[i] > 0)
				key.outstanding[1] |= 1ULL << (i - 64);
	}
	found = bpf_map_lookup_elem(&waits, &key);
	if (!found && !bpf_map_update_elem(&waits, &key, &one, BPF_NOEXIST))
		return 0;
	if (!found)
		found = bpf_map_lookup_elem(&waits, &key);
	if (found)
		__sync_fetch_and_add(found, 1);
	else
		__sync_fetch_and_add(&lost, 1);
	return 0;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";

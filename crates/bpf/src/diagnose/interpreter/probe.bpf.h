/* SPDX-License-Identifier: (LGPL-2.1 OR BSD-2-Clause) */
/*
 * Copies the functions that an interpreter runs in the current thread: of each frame the address of its code object and of its
 * instruction. User space reads the names, once for each code object (crates/host, symbols/python).
 *
 * All addresses are the process's own and may lead anywhere. A read that fails gives 0, which ends the chain, and each loop has a bound.
 */

/* Set before load: whether somebody has asked for these stacks. The verifier removes the rest where not. */
const volatile u8 interpreters_wanted = 0;

/* States of threads that are searched: new ones are put before the others. */
#define STATES_SEARCHED 256
/* A thread that has none is searched once in this many times. */
#define SKIPS 16
/* The identity of a thread lies at most this far below its thread pointer: on arm64 that is the size of the libc's `struct pthread`. */
#if defined(__TARGET_ARCH_x86)
#define IDENTITY_BYTES 0
#else
#define IDENTITY_BYTES 8192
#endif

/* By process; user space adds those that run an interpreter. Preallocated, as programs of perf events take no other. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 256);
	__type(key, u32);
	__type(value, struct interpreter);
} interpreters SEC(".maps");

/* The thread state that was found of a thread before. */
struct found_state {
	u64 state;
	u32 tid;
	u32 skips; /* how often it is not searched again */
};

#define FOUND_STATES 1024

/* By the low bits of the thread's number: what another thread has overwritten is searched again. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, FOUND_STATES);
	__type(key, u32);
	__type(value, struct found_state);
} found_states SEC(".maps");

static __always_inline u64 user_word(u64 address)
{
	u64 word = 0;

	bpf_probe_read_user(&word, sizeof(word), (void *)address);
	return word;
}

static __always_inline u64 thread_pointer(void)
{
	struct task_struct *task = current_task();

#if defined(__TARGET_ARCH_x86)
	return BPF_CORE_READ(task, thread.fsbase);
#else
	return BPF_CORE_READ(task, thread.uw.tp_value);
#endif
}

static __always_inline bool is_state_of(struct interpreter *in, u64 state, u64 pointer)
{
	return pointer - user_word(state + in->state_identity) <= IDENTITY_BYTES;
}

/* The state that the interpreter keeps of the thread with this thread pointer; 0 if none is found. */
MERGED u64 search_state(struct interpreter *in, u64 pointer)
{
	u64 one = user_word(in->interpreters), state;

	state = one ? user_word(one + in->first_state) : 0;
#pragma clang loop unroll(disable)
	for (u32 i = 0; i < STATES_SEARCHED; i++) {
		if (state) {
			if (is_state_of(in, state, pointer))
				return state;
			state = user_word(state + in->next_state);
			continue;
		}
		if (one)
			one = user_word(one + in->next_interpreter);
		if (!one)
			return 0;
		state = user_word(one + in->first_state);
	}
	return 0;
}

static __always_inline u64 state_of_thread(struct interpreter *in, u32 tid)
{
	u32 place = tid & (FOUND_STATES - 1);
	struct found_state *found = bpf_map_lookup_elem(&found_states, &place);
	u64 pointer = thread_pointer(), state;

	if (!found || !pointer)
		return 0;
	if (found->tid == tid) {
		state = found->state;
		if (state && is_state_of(in, state, pointer))
			return state;
		if (!state && found->skips) {
			found->skips--;
			return 0;
		}
	}
	state = search_state(in, pointer);
	found->tid = tid;
	found->state = state;
	found->skips = SKIPS;
	return state;
}

MERGED void copy_frames(struct interpreter *in, u64 state, struct interpreted_rec *r)
{
	u64 frame = user_word(state + in->state_frame);
	u32 n = 0;

	if (in->through_cframe && frame)
		frame = user_word(frame + in->cframe_frame);
#pragma clang loop unroll(disable)
	for (u32 i = 0; i < INTERPRETED_MAX; i++) {
		if (!frame)
			break;
		r->frames[i].code = user_word(frame + in->frame_code);
		r->frames[i].instruction = user_word(frame + in->frame_instruction);
		r->frames[i].kind = user_word(frame + in->frame_kind);
		frame = user_word(frame + in->frame_caller);
		n = i + 1;
	}
	r->n_frames = n;
	r->more = frame != 0;
}

/*
 * Reports the functions that the current thread runs in an interpreter, for a sample at the time `at`, or for the user stack with the
 * sequence number `seq`. `id` is the result of bpf_get_current_pid_tgid().
 */
static __always_inline void emit_interpreted(u64 id, u32 seq, u64 at)
{
	u32 tgid = id >> 32, tid = (u32)id;
	struct interpreted_rec *r;
	struct interpreter *in;
	u64 state;

	if (!interpreters_wanted)
		return;
	in = bpf_map_lookup_elem(&interpreters, &tgid);
	if (!in)
		return;
	state = state_of_thread(in, tid);
	if (!state)
		return;
	r = RESERVE(interpreted_rec);
	if (!r)
		return;
	r->head.kind = REC_INTERPRETED;
	r->head.tid = tid;
	r->head.at = at;
	r->tgid = tgid;
	r->seq = seq;
	copy_frames(in, state, r);
	SUBMIT(r);
}

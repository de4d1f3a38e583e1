/* SPDX-License-Identifier: (LGPL-2.1 OR BSD-2-Clause) */
/*
 * Looks at the first bytes of what a call has sent or received. They are read from the buffer of the caller when the call is nearly
 * done, decoded at once and dropped: what is reported is a `struct frame`.
 */
#include "diagnose/frame/frame.h"

/* Set before load: 0 if nothing of the data may be looked at. */
const volatile u8 peek = 1;

/* Calls of a slice after which a connection without a frame is not looked at again within it. */
#define UNKNOWN_CALLS_MAX 32
#define FRAMES_SEEN 255

/* Of a reader that takes the length of a message first, and then the rest. */
#define LENGTH_BYTES 4
/* In `has_head`: the header of a message is read byte by byte. */
#define BY_BYTE 128
#define HEADER_MAX 4

struct user_vector {
	u64 base;
	u64 length;
};

/* The second argument of a system call. */
static __always_inline u64 second_argument(struct pt_regs *regs)
{
#if defined(__TARGET_ARCH_x86)
	return READ(regs, si);
#else
	return READ(regs, regs[1]);
#endif
}

/*
 * The buffer in user space of the call that the current task is in, and how many bytes of it may be read; 0 if it is not known, as with
 * sendfile(), splice(), io_uring and calls for several messages.
 */
static __always_inline u64 user_buffer(u32 op, u64 *length)
{
	struct pt_regs *regs = task_regs(current_task());
	struct user_vector first;
	u64 at;
	s32 nr;

	if (!regs)
		return 0;
	nr = saved_syscall_nr(regs);
	if (!call_is(nr, op == OP_RECEIVE ? CALL_RECEIVES : CALL_SENDS) || !call_is(nr, CALL_BUFFER | CALL_VECTOR))
		return 0;
	at = second_argument(regs);
	if (!call_is(nr, CALL_VECTOR))
		return at;
	/* struct msghdr: msg_name, msg_namelen, msg_iov */
	if (call_is(nr, CALL_BUFFER) && bpf_probe_read_user(&at, sizeof(at), (void *)(at + 16)))
		return 0;
	if (bpf_probe_read_user(&first, sizeof(first), (void *)at))
		return 0;
	if (*length > first.length)
		*length = first.length;
	return first.base;
}

static __always_inline void note_frame(struct flow *st, struct frame *frame)
{
	if (frame->protocol)
		st->unknown_calls = FRAMES_SEEN;
	else if (st->unknown_calls != FRAMES_SEEN)
		st->unknown_calls++;
}

/*
 * Readers of MQTT take the first byte of a message, and its length byte by byte, as its last byte is not known before. Returns whether this
 * call took one of these bytes, or the rest of such a message.
 */
ONCE int see_by_byte(struct flow *st, u32 first, u32 bytes, struct frame *frame)
{
	struct frame_bytes in = {};
	u32 known, rest = 0, header;

	if (!st || !frame)
		return 0;
	known = st->has_head & BY_BYTE ? st->has_head & (BY_BYTE - 1) : 0;
	if (bytes == 1 && known < HEADER_MAX) {
		st->head = known ? st->head | first << 8 * known : first;
		known++;
		/* A message that is complete without more bytes, such as a ping, is seen at once. */
		in.total = known;
	} else {
		in.total = bytes + known;
	}
	st->has_head = 0;
	if (!known)
		return 0;
	*(u32 *)in.b = st->head;
	/* With the first byte alone, whether it is one is told as if no more came. */
	in.n = known > 1 ? known : 2;
	header = mqtt_header(&in, &rest);
	if (bytes == 1 && (known == 1 ? header : first & 128 || rest)) {
		st->has_head = BY_BYTE | known;
		return 1;
	}
	if (known == 1 || header != known)
		return 0;
	read_frame(&in, frame);
	note_frame(st, frame);
	return 1;
}

MERGED void see_frame(struct flow *st, u32 op, u32 bytes, struct frame *frame)
{
	struct frame_bytes in = {};
	u64 n = bytes, at;

	if (!peek || (st->unknown_calls >= UNKNOWN_CALLS_MAX && st->unknown_calls != FRAMES_SEEN))
		return;
	at = user_buffer(op, &n);
	if (!at)
		return;
	in.total = bytes;
	if (op == OP_RECEIVE && st->has_head == LENGTH_BYTES) {
		st->has_head = 0;
		if (n > FRAME_BYTES - LENGTH_BYTES)
			n = FRAME_BYTES - LENGTH_BYTES;
		if (bpf_probe_read_user(in.b + LENGTH_BYTES, n, (void *)at))
			return;
		*(u32 *)in.b = st->head;
		in.n = n + LENGTH_BYTES;
		in.total += LENGTH_BYTES;
		read_frame(&in, frame);
		note_frame(st, frame);
		return;
	}
	if (n > FRAME_BYTES)
		n = FRAME_BYTES;
	if (bpf_probe_read_user(in.b, n, (void *)at))
		return;
	in.n = n;
	if (op == OP_RECEIVE && see_by_byte(st, in.b[0], bytes, frame))
		return;
	if (op == OP_RECEIVE && bytes == LENGTH_BYTES && n == LENGTH_BYTES && (!in.b[0] || !in.b[2])) {
		st->head = *(u32 *)in.b;
		st->has_head = LENGTH_BYTES;
		return;
	}
	read_frame(&in, frame);
	note_frame(st, frame);
}

MERGED void see_datagram(u32 op, u32 bytes, struct frame *frame)
{
	struct frame_bytes in = {};
	u64 n = bytes, at;

	if (!peek)
		return;
	at = user_buffer(op, &n);
	if (!at)
		return;
	in.total = bytes;
	if (n > FRAME_BYTES)
		n = FRAME_BYTES;
	if (bpf_probe_read_user(in.b, n, (void *)at))
		return;
	in.n = n;
	read_datagram(&in, frame);
}

/* SPDX-License-Identifier: (LGPL-2.1 OR BSD-2-Clause) */
/* Structures and limits of uring.bpf.c; mod.rs defines the same ones. No implicit padding. */
#ifndef PARSHALL_URING_H
#define PARSHALL_URING_H

#include "kernel.h"

/* Numbers of opcodes that are told apart; Linux 6.18 has 64. The others, and those that are not known, have one number. */
#define OPCODES 80
#define OPCODE_UNKNOWN 255

/* Requests that are outstanding at a time. */
#define REQUESTS_MAX 65536
/* Requests that may complete several times, by the number that their program gave them. */
#define NAMED_MAX 16384
#define CELLS_MAX 8192
#define ERRORS_MAX 4096
#define THREADS_MAX 4096
#define WAITS_MAX 4096
#define RECORD_BYTES (2 * 1024 * 1024)
/* Records are limited in each tick of 2^27 ns, so that those of a busy service are of the whole window. */
#define TICK_SHIFT 27
/* Requests that are followed in a tick, 150,000 a second: what following them takes has a limit, whatever the service does. */
#define FOLLOWED_PER_TICK 20000

/* Tracepoints; user space has them in the same order. */
enum uring_point {
	POINT_SUBMIT,
	POINT_COMPLETE,
	POINT_POLL,
	POINT_WORKER,
	POINT_OVERFLOW,
	POINT_LINK,
	POINT_REJECTED,
	POINT_WAIT,
	POINTS
};

/* Fields of their records. */
enum uring_field { FIELD_CTX, FIELD_REQ, FIELD_USER_DATA, FIELD_OPCODE, FIELD_RES, FIELD_CFLAGS, FIELDS };

/* Events of a request before it completed. */
enum uring_flag { REQUEST_POLLED = 1, REQUEST_WORKER = 2, REQUEST_LINK_FAILED = 4 };

/* The request's address, or on kernels whose completions have none (Linux 5.10) the number that its program gave it. */
struct request_key {
	u64 ctx;
	u64 id;
};

struct request_value {
	u64 begin;
	u32 tgid;
	u32 tid;
	u8 opcode;
	u8 flags;
	u8 pad[6];
};

struct uring_cell_key {
	u32 tgid;
	u32 tid;
	u32 opcode;
	s32 error; /* of the map of errors alone */
};

struct uring_cell {
	u64 submitted;
	u64 completed;
	u64 polls;
	u64 workers;
	u64 overflowed;
	u64 links;
	u64 rejected;
	u64 timed; /* completed, of those whose submission was seen */
	u64 ns; /* of these */
	u64 longest_ns;
};

struct uring_wait_key {
	u32 tgid;
	u32 tid;
	u64 outstanding[2]; /* a bit for each opcode */
};

struct uring_thread {
	u32 outstanding[OPCODES];
};

struct uring_record {
	u64 begin;
	u64 end;
	u32 tgid;
	u32 tid;
	s32 res;
	u8 opcode;
	u8 flags;
	u8 pad[2];
};

/* mod.rs asserts the same. */
_Static_assert(sizeof(struct request_key) == 16, "struct request_key");
_Static_assert(sizeof(struct request_value) == 24, "struct request_value");
_Static_assert(sizeof(struct uring_cell_key) == 16, "struct uring_cell_key");
_Static_assert(sizeof(struct uring_cell) == 80, "struct uring_cell");
_Static_assert(sizeof(struct uring_wait_key) == 24, "struct uring_wait_key");
_Static_assert(sizeof(struct uring_record) == 32, "struct uring_record");

#endif

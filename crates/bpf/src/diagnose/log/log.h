/* SPDX-License-Identifier: (LGPL-2.1 OR BSD-2-Clause) */
/* Structures and limits of log.bpf.c; mod.rs defines the same ones. No implicit padding. */
#ifndef PARSHALL_LOG_H
#define PARSHALL_LOG_H

#include "kernel.h"

/* Bytes that are kept of a write; user space cuts lines shorter. */
#define LOG_BYTES 512
/* Parts of a write from several buffers that are looked at. */
#define LOG_PARTS 8
/* Files by name. */
#define LOG_FILES 16
/* Of a number that is that of a file, and not of a descriptor. */
#define LOG_FILE 0x80000000U
#define LOG_RING_BYTES (4 * 1024 * 1024)
/* Writes are limited in each tick of 2^30 ns. */
#define LOG_TICK_SHIFT 30
#define LOG_PER_TICK 1000

struct log_chunk {
	u64 at;
	u32 tgid;
	u32 tid;
	u32 to; /* 1 or 2, or LOG_FILE and its number */
	u32 kept; /* bytes below */
	u64 length; /* bytes of the write, or of this part of it */
	u8 bytes[LOG_BYTES];
};

/* mod.rs asserts the same. */
_Static_assert(sizeof(struct log_chunk) == 32 + LOG_BYTES, "struct log_chunk");

#endif

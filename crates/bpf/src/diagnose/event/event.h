/* SPDX-License-Identifier: (LGPL-2.1 OR BSD-2-Clause) */
/* Structures and limits of event.bpf.c; mod.rs defines the same ones. No implicit padding. */
#ifndef PARSHALL_EVENT_H
#define PARSHALL_EVENT_H

#include "kernel.h"

/* Events of one observation. */
#define EVENTS_MAX 8
/* Different threads, values and stacks. */
#define EVENT_CELLS 16384
/* Different processes and values, for events that find no cell. */
#define EVENT_SUMS 4096
/* Different stacks, of the kernel and of programs each. */
#define EVENT_STACKS 16384
/* Frames of a stack, the innermost ones. A packet over loopback has some 50 in the kernel. */
#define EVENT_FRAMES 64

struct event_key {
	u64 value;
	u32 event;
	u32 tgid;
	u32 tid;
	s32 kernel_stack; /* -1: none */
	s32 user_stack;
	u32 pad;
};

struct event_value {
	u64 count;
	char comm[16];
};

struct event_lost {
	u64 events; /* not even a sum was free */
	u64 stacks; /* counted without a stack, because no bucket was free */
};

/* mod.rs asserts the same. */
_Static_assert(sizeof(struct event_key) == 32, "struct event_key");
_Static_assert(sizeof(struct event_value) == 24, "struct event_value");
_Static_assert(sizeof(struct event_lost) == 16, "struct event_lost");

#endif

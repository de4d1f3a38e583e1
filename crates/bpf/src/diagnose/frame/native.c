/* SPDX-License-Identifier: (LGPL-2.1 OR BSD-2-Clause) */
/* The decoder of frame.h as a function of user space. */
#include <stdbool.h>
#include <stdint.h>

typedef uint8_t u8;
typedef uint32_t u32;

#ifndef __always_inline
#define __always_inline inline
#endif
#define ONCE static
#include "frame.h"

int parshall_read_frame(struct frame_bytes *in, struct frame *out)
{
	return read_frame(in, out);
}

int parshall_read_datagram(struct frame_bytes *in, struct frame *out)
{
	return read_datagram(in, out);
}

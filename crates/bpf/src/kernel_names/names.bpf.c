// SPDX-License-Identifier: (LGPL-2.1 OR BSD-2-Clause)
/* Names addresses of kernel functions, as the kernel itself prints them. */
#include "kernel.h"
#include <bpf/bpf_helpers.h>

#define ADDRESSES 256
#define NAME_BYTES 96

struct job {
	u64 addresses[ADDRESSES];
	char names[ADDRESSES][NAME_BYTES];
};

struct job job;
static const char format[] = "%ps";

SEC("syscall")
int name_all(void *ctx)
{
	for (int i = 0; i < ADDRESSES; i++) {
		if (!job.addresses[i])
			break;
		bpf_snprintf(job.names[i], NAME_BYTES, format, &job.addresses[i], sizeof(u64));
	}
	return 0;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";

// SPDX-License-Identifier: (LGPL-2.1 OR BSD-2-Clause)
/* The object that is loaded: one room per probe, in the order of their dependencies. */
#include "common.bpf.h"
#include "thread/account.bpf.h"
#include "thread/probe.bpf.h"
#include "syscall/probe.bpf.h"
#include "flow/probe.bpf.h"
#include "timer/probe.bpf.h"
#include "sample/probe.bpf.h"
#include "lifecycle/probe.bpf.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

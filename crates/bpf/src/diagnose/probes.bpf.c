// SPDX-License-Identifier: (LGPL-2.1 OR BSD-2-Clause)
/* The object that is loaded: one header per probe, in the order of their dependencies. */
#include "diagnose/common.bpf.h"
#include "diagnose/thread/account.bpf.h"
#include "diagnose/interpreter/probe.bpf.h"
#include "diagnose/frame/probe.bpf.h"
#include "diagnose/timeline/probe.bpf.h"
#include "diagnose/thread/quota.bpf.h"
#include "diagnose/thread/probe.bpf.h"
#include "diagnose/syscall/probe.bpf.h"
#include "diagnose/udp/probe.bpf.h"
#include "diagnose/net/probe.bpf.h"
#include "diagnose/drop/probe.bpf.h"
#include "diagnose/flow/fields.bpf.h"
#include "diagnose/flow/probe.bpf.h"
#include "diagnose/flow/call_end.bpf.h"
#include "diagnose/timer/probe.bpf.h"
#include "diagnose/sample/probe.bpf.h"
#include "diagnose/lifecycle/probe.bpf.h"
#include "diagnose/signal/probe.bpf.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/* SPDX-License-Identifier: (LGPL-2.1 OR BSD-2-Clause) */
/*
 * Definitions that depend on the kernel's age in more than fields and tracepoints. The object is compiled twice; OLDER is for kernels
 * before 5.12.
 * They have no storage for tracing programs in tasks (5.11) and sockets (5.11), no trusted pointer to the current task (5.11), no
 * cookies for tracing programs (5.12), and no pointers in the arguments of global functions (5.12).
 */
#ifndef PARSHALL_OLDER_H
#define PARSHALL_OLDER_H

/*
 * Ports of listeners whose accepted sockets are found by the port: network namespace << 16 | port. The sockets of a listener of MPTCP
 * that the process holds and of the one whose storage accepted sockets inherit are two, and only the first is found among its
 * descriptors. OLDER finds all accepted sockets in this way.
 */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, u64);
	__type(value, u8);
} mptcp_ports SEC(".maps");

/* Whether there is one. */
u32 has_mptcp_ports = 0;

/* Both objects have the same variables, as user space knows one layout. */

/* Set before load: the size of a kernel stack. The registers of user mode are at its end. */
const volatile u64 kernel_stack_bytes = 0;
const volatile struct flow no_flow = {};
const volatile struct thread no_thread = {};

/* Arrival times that are kept per socket. If more datagrams are queued, a wait is counted from a later arrival. */
#define UDP_ARRIVALS 16

/* In socket storage, and only for sockets that are used in a slice. */
struct udp_socket {
	u64 cookie;
	u64 arrived[UDP_ARRIVALS];
	u32 arrivals;
	u32 taken;
	u32 queued_before; /* datagrams that were queued when the slice began */
	u32 gen;
};

#ifndef OLDER

/* A function that the verifier checks once and not along every path of its callers. */
#define ONCE __noinline
/* Reads a field through a pointer that the verifier trusts. */
#define READ(pointer, field) ((pointer)->field)
#define READ_BITS(pointer, field) BPF_CORE_READ_BITFIELD(pointer, field)

struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC | BPF_F_CLONE);
	__type(key, int);
	__type(value, struct flow);
} flows SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct thread);
} threads SEC(".maps");

static __always_inline struct task_struct *current_task(void)
{
	return bpf_get_current_task_btf();
}

static __always_inline struct pt_regs *task_regs(struct task_struct *task)
{
	return (struct pt_regs *)bpf_task_pt_regs(task);
}

static __always_inline struct thread *thread_of(struct task_struct *task)
{
	return bpf_task_storage_get(&threads, task, 0, 0);
}

static __always_inline struct thread *new_thread(struct task_struct *task)
{
	return bpf_task_storage_get(&threads, task, 0, BPF_LOCAL_STORAGE_GET_F_CREATE);
}

static __always_inline struct flow *stored_flow(struct sock *sk)
{
	return bpf_sk_storage_get(&flows, sk, 0, 0);
}

static __always_inline struct flow *new_flow(struct sock *sk)
{
	return bpf_sk_storage_get(&flows, sk, 0, BPF_LOCAL_STORAGE_GET_F_CREATE);
}

struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct udp_socket);
} udp_sockets SEC(".maps");

static __always_inline struct udp_socket *stored_udp(struct sock *sk)
{
	return bpf_sk_storage_get(&udp_sockets, sk, 0, 0);
}

static __always_inline struct udp_socket *new_udp(struct sock *sk)
{
	return bpf_sk_storage_get(&udp_sockets, sk, 0, BPF_LOCAL_STORAGE_GET_F_CREATE);
}

/* The kernel frees the storage with the socket or the task. */
static __always_inline void drop_flow(struct sock *sk)
{
}

static __always_inline void drop_thread(u32 tid)
{
}

static __always_inline u64 new_socket_id(struct sock *sk)
{
	return bpf_get_socket_cookie(sk);
}

/* 0 if the socket has none yet. */
static __always_inline u64 id_of_socket(struct sock *sk)
{
	return BPF_CORE_READ(sk, __sk_common.skc_cookie.counter);
}

static __always_inline struct tcp_sock *as_tcp(struct sock *sk)
{
	return bpf_skc_to_tcp_sock(sk);
}

#else

#define ONCE static __noinline
#define READ(pointer, field) BPF_CORE_READ(pointer, field)
#define READ_BITS(pointer, field) BPF_CORE_READ_BITFIELD_PROBED(pointer, field)

/* By the address of the socket. Those of the subject that are open at a time, and its listeners. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 32768);
	__type(key, u64);
	__type(value, struct flow);
} flows SEC(".maps");

/* By thread id. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 65536);
	__type(key, u32);
	__type(value, struct thread);
} threads SEC(".maps");

static __always_inline struct task_struct *current_task(void)
{
	return (struct task_struct *)bpf_get_current_task();
}

static __always_inline struct pt_regs *task_regs(struct task_struct *task)
{
	u64 stack = (u64)BPF_CORE_READ(task, stack);

	return stack ? (struct pt_regs *)(stack + kernel_stack_bytes - bpf_core_type_size(struct pt_regs)) : 0;
}

static __always_inline struct thread *thread_of(struct task_struct *task)
{
	u32 tid = BPF_CORE_READ(task, pid);

	return bpf_map_lookup_elem(&threads, &tid);
}

static __always_inline struct thread *new_thread(struct task_struct *task)
{
	u32 tid = BPF_CORE_READ(task, pid);

	/* It fails where there is one already. */
	bpf_map_update_elem(&threads, &tid, (const void *)&no_thread, BPF_NOEXIST);
	return bpf_map_lookup_elem(&threads, &tid);
}

static __always_inline struct flow *stored_flow(struct sock *sk)
{
	u64 key = (u64)sk;

	return bpf_map_lookup_elem(&flows, &key);
}

static __always_inline struct flow *new_flow(struct sock *sk)
{
	u64 key = (u64)sk;

	bpf_map_update_elem(&flows, &key, (const void *)&no_flow, BPF_NOEXIST);
	return bpf_map_lookup_elem(&flows, &key);
}

/* By the address of the socket. That a socket is closed is not seen, so the least used are dropped. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 8192);
	__type(key, u64);
	__type(value, struct udp_socket);
} udp_sockets SEC(".maps");

static __always_inline struct udp_socket *stored_udp(struct sock *sk)
{
	u64 key = (u64)sk;

	return bpf_map_lookup_elem(&udp_sockets, &key);
}

static __always_inline struct udp_socket *new_udp(struct sock *sk)
{
	struct udp_socket none = {};
	u64 key = (u64)sk;

	bpf_map_update_elem(&udp_sockets, &key, &none, BPF_NOEXIST);
	return bpf_map_lookup_elem(&udp_sockets, &key);
}

static __always_inline void drop_flow(struct sock *sk)
{
	u64 key = (u64)sk;

	bpf_map_delete_elem(&flows, &key);
}

static __always_inline void drop_thread(u32 tid)
{
	bpf_map_delete_elem(&threads, &tid);
}

/* The cookie, where the kernel has given one. Else a number of our own, which is unique as no CPU gives two in a nanosecond. */
static __always_inline u64 new_socket_id(struct sock *sk)
{
	u64 cookie = BPF_CORE_READ(sk, __sk_common.skc_cookie.counter);

	return cookie ? cookie : bpf_ktime_get_ns() << 7 | (bpf_get_smp_processor_id() & 127);
}

static __always_inline u64 id_of_socket(struct sock *sk)
{
	struct flow *st = stored_flow(sk);
	struct udp_socket *u;

	if (st)
		return st->cookie;
	u = stored_udp(sk);
	return u ? u->cookie : BPF_CORE_READ(sk, __sk_common.skc_cookie.counter);
}

static __always_inline struct tcp_sock *as_tcp(struct sock *sk)
{
	return (struct tcp_sock *)sk;
}

#endif
#endif

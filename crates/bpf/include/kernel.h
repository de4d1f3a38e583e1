/* SPDX-License-Identifier: (LGPL-2.1 OR BSD-2-Clause) */
/*
 * The few kernel structures that the probes read, and of each only the fields they read. CO-RE relocates every access
 * against the running kernel's BTF, so order and size here do not matter, names do. Written by hand instead of a
 * vmlinux.h dump: 130,000 lines of one kernel's layout would say nothing about what the probes depend on.
 */
#ifndef PARSHALL_KERNEL_H
#define PARSHALL_KERNEL_H

#include <linux/types.h>
#include <stdbool.h>
#include <linux/bpf.h>

typedef __u8 u8;
typedef __u16 u16;
typedef __u32 u32;
typedef __u64 u64;
typedef __s32 s32;
typedef __s64 s64;

#define AF_INET 2
#define AF_INET6 10
#define IPPROTO_TCP 6
#define IPPROTO_UDP 17
#define AF_UNIX 1

#define S_IFMT 00170000
#define S_IFSOCK 0140000
#define S_IFREG 0100000
#define S_IFBLK 0060000
#define S_IFDIR 0040000
#define S_IFCHR 0020000
#define S_IFIFO 0010000

/* include/net/tcp_states.h */
enum { ESTABLISHED = 1, SYN_SENT = 2, SYN_RECV = 3, CLOSE = 7, CLOSE_WAIT = 8, LISTEN = 10 };

/* include/uapi/linux/tcp.h enum tcp_ca_state */
enum { CA_RECOVERY = 3, CA_LOSS = 4 };

/* include/net/tcp.h */
enum { NAGLE_OFF = 1, NAGLE_CORK = 2 };

/* include/net/inet_connection_sock.h: icsk_pending and icsk_ack.pending */
enum { PENDING_RETRANS = 1, PENDING_PROBE0 = 3, PENDING_LOSS_PROBE = 5 };
enum { ACK_TIMER = 2 };

/* include/linux/net.h (bit number) and include/linux/tcp.h enum tsq_enum (bit number) */
enum { NOSPACE_BIT = 2, TSQ_THROTTLED_BIT = 0 };
enum { RCV_SHUTDOWN = 1 };
#define PF_KTHREAD 0x00200000

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct cfs_rq {
	int throttle_count;
};

struct sched_entity {
	u64 sum_exec_runtime;
	struct cfs_rq *cfs_rq;
};


struct inode {
	u16 i_mode;
	unsigned long i_ino;
};

struct file {
	struct inode *f_inode;
	void *private_data;
};

struct fdtable {
	unsigned int max_fds;
	struct file **fd;
};

struct files_struct {
	struct fdtable *fdt;
};

struct task_struct {
	unsigned int __state;
	unsigned int flags;
	int on_cpu;
	struct sched_entity se;
	int pid;
	int tgid;
	u64 utime;
	u64 stime;
	unsigned long nvcsw;
	unsigned long nivcsw;
	u64 start_time;
	char comm[16];
	struct files_struct *files;
	bool throttled;
};

#if defined(__TARGET_ARCH_x86)
struct pt_regs {
	long orig_ax;
	unsigned long di;
	unsigned long ax;
};
#elif defined(__TARGET_ARCH_arm64)
struct pt_regs {
	s32 syscallno;
	u64 orig_x0;
	u64 regs[31];
};
#else
#error "no system call registers known for this architecture"
#endif


struct in6_addr {
	union {
		u8 u6_addr8[16];
		__be32 u6_addr32[4];
	} in6_u;
};

struct ns_common {
	unsigned int inum;
};

struct net {
	struct ns_common ns;
};

typedef struct {
	struct net *net;
} possible_net_t;

struct sock_common {
	__be32 skc_daddr;
	__be32 skc_rcv_saddr;
	__be16 skc_dport;
	u16 skc_num;
	unsigned short skc_family;
	volatile unsigned char skc_state;
	possible_net_t skc_net;
	struct in6_addr skc_v6_daddr;
	struct in6_addr skc_v6_rcv_saddr;
};

struct socket {
	unsigned long flags;
	struct sock *sk;
};

struct sock {
	struct sock_common __sk_common;
	struct {
		int owned;
	} sk_lock;
	u8 sk_userlocks;
	int sk_rcvbuf;
	struct socket *sk_socket;
	unsigned long sk_tsq_flags;
	u16 sk_protocol;
	u16 sk_type;
	int sk_sndbuf;
	u8 sk_shutdown;
};

struct hrtimer {
	u8 state;
};

struct timer_list {
	void (*function)(struct timer_list *);
};

struct minmax_sample {
	u32 t;
	u32 v;
};

struct minmax {
	struct minmax_sample s[3];
};

struct inet_sock {
	struct sock sk;
	u16 inet_sport;
};

struct inet_connection_sock {
	struct inet_sock icsk_inet;
	struct timer_list icsk_retransmit_timer;
	struct timer_list icsk_delack_timer;
	u32 icsk_rto;
	u8 icsk_ca_state : 5;
	u8 icsk_pending;
	struct {
		u8 pending;
	} icsk_ack;
};

struct tcp_sock {
	struct inet_connection_sock inet_conn;
	u32 snd_wnd;
	u32 mss_cache;
	u32 snd_cwnd;
	u32 lost_out;
	u32 sacked_out;
	u32 copied_seq;
	u32 retrans_out;
	u32 snd_ssthresh;
	struct minmax rtt_min;
	u32 segs_out;
	u32 data_segs_out;
	u8 chrono_type;
	u32 chrono_start;
	u32 chrono_stat[3];
	u32 write_seq;
	u8 nonagle : 4;
	u8 rate_app_limited : 1;
	u32 rcv_nxt;
	u32 snd_nxt;
	u32 srtt_us;
	u32 snd_una;
	u32 packets_out;
	u32 rcv_wnd;
	u64 bytes_received;
	u32 segs_in;
	u64 bytes_acked;
	struct hrtimer pacing_timer;
	u32 total_retrans;
	u16 total_rto;
};

struct sk_buff {
	unsigned int len;
	char cb[48];
};

struct msghdr {
	int msg_flags;
};

struct seq_file {
};

struct bpf_iter_meta {
	struct seq_file *seq;
	u64 session_id;
	u64 seq_num;
};

struct bpf_iter__task {
	struct bpf_iter_meta *meta;
	struct task_struct *task;
};

struct bpf_iter__task_file {
	struct bpf_iter_meta *meta;
	struct task_struct *task;
	u32 fd;
	struct file *file;
};

struct bpf_iter__bpf_sk_storage_map {
	struct bpf_iter_meta *meta;
	struct bpf_map *map;
	struct sock *sk;
	void *value;
};

#pragma clang attribute pop

/* The program context of perf_event programs (include/uapi/linux/bpf_perf_event.h); only its address is used. */
struct bpf_perf_event_data;

#endif

/* SPDX-License-Identifier: (LGPL-2.1 OR BSD-2-Clause) */
/*
 * The kernel structures that the BPF programs read, and of each only the fields they read. CO-RE relocates every access
 * against the running kernel's BTF, so order and size here do not matter, names do. Written by hand instead of a vmlinux.h
 * dump: 130,000 lines of one kernel's layout would say nothing about what the programs depend on. Fields that some kernels
 * lack are guarded by bpf_core_field_exists where they are read.
 *
 * A program that mentions a structure of this list has user space reduce the kernel's type information to it and to what it
 * holds by value (src/small_btf.rs); what it only points to costs nothing.
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

#define AF_UNIX 1
#define SIGSTOP 19
#define SIGTTOU 22
#define AF_INET 2
#define AF_INET6 10
#define IPPROTO_TCP 6
#define IPPROTO_UDP 17
#define IPPROTO_MPTCP 262
#define SOCK_STREAM 1

/* Of sock_cgroup_data.val: is_data and no_refcnt. */
#define CGROUP_FLAGS 3
/* The id of the root of the control groups. */
#define CGROUP_ROOT_ID 1

#define S_IFMT 0170000
#define S_IFSOCK 0140000
#define S_IFREG 0100000
#define S_IFBLK 0060000
#define S_IFDIR 0040000
#define S_IFCHR 0020000
#define S_IFIFO 0010000

#define PF_KTHREAD 0x00200000

/* include/linux/sched.h: bits of __state. */
enum { TASK_UNINTERRUPTIBLE = 0x2, TASK_STOPPED_BIT = 0x4, TASK_TRACED_BIT = 0x8, TASK_FROZEN_BIT = 0x8000 };

/* include/linux/preempt.h: the preempt count's bits for softirqs that are served or disabled, and for hardware interrupts and NMIs. */
enum { SOFTIRQ_OR_DISABLED = 0xff00, HARDIRQ_OR_NMI = 0xff0000 };

/* include/linux/socket.h: flags of a receive that takes no data. */
enum { MSG_PEEK_FLAG = 0x2, MSG_ERRQUEUE_FLAG = 0x2000 };

#define SOCK_DGRAM 2
/* include/net/sock.h: sk_userlocks */
enum { BINDPORT_LOCK = 8 };

/* include/net/inet_sock.h: places in inet_flags */
enum {
	FLAGS_RECVERR = 9,
	FLAGS_RECVERR_RFC4884 = 10,
	FLAGS_FREEBIND = 11,
	FLAGS_HDRINCL = 12,
	FLAGS_MC_LOOP = 13,
	FLAGS_MC_ALL = 14,
	FLAGS_TRANSPARENT = 15,
	FLAGS_IS_ICSK = 16,
	FLAGS_NODEFRAG = 17,
	FLAGS_BIND_ADDRESS_NO_PORT = 18,
	FLAGS_DEFER_CONNECT = 19
};

/* include/net/inet_connection_sock.h: icsk_pending and icsk_ack.pending */
enum { PENDING_RETRANS = 1, PENDING_PROBE0 = 3, PENDING_LOSS_PROBE = 5, PENDING_REO_TIMEOUT = 6 };
enum { ACK_TIMER = 2 };

/* include/uapi/linux/tcp.h enum tcp_ca_state */
enum { CA_RECOVERY = 3, CA_LOSS = 4 };

/* include/linux/net.h and include/linux/tcp.h enum tsq_enum (bit numbers), include/net/sock.h: sk_shutdown */
enum { NOSPACE_BIT = 2, TSQ_THROTTLED_BIT = 0 };
enum { RCV_SHUTDOWN = 1 };

/* include/net/tcp.h: ecn_flags and nonagle */
enum { ECN_RFC3168 = 1, ECN_SEEN = 8, ECN_ACCECN = 16 };
enum { NAGLE_OFF = 1, NAGLE_CORK = 2 };

/* include/net/tcp_states.h */
enum {
	ESTABLISHED = 1,
	SYN_SENT,
	SYN_RECV,
	FIN_WAIT1,
	FIN_WAIT2,
	TIME_WAIT,
	CLOSE,
	CLOSE_WAIT,
	LAST_ACK,
	LISTEN,
	CLOSING,
	NEW_SYN_RECV,
	BOUND_INACTIVE
};

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

/* For its first field alone, which is a number of eight bytes. */
struct timespec64 {
	s64 tv_sec;
};

struct list_head {
	struct list_head *next, *prev;
};

struct hlist_node {
	struct hlist_node *next, **pprev;
};

struct hlist_head {
	struct hlist_node *first;
};

struct hlist_nulls_node {
	struct hlist_nulls_node *next, **pprev;
};

struct hlist_nulls_head {
	struct hlist_nulls_node *first;
};

typedef struct {
	int counter;
} atomic_t;

typedef struct {
	s64 counter;
} atomic64_t;

struct refcount_struct {
	atomic_t refs;
};

typedef struct refcount_struct refcount_t;

typedef struct {
	u32 val;
} kuid_t;

struct in6_addr {
	union {
		u8 u6_addr8[16];
		__be32 u6_addr32[4];
	} in6_u;
};

struct proc_ns_operations;

struct ns_common {
	const struct proc_ns_operations *ops;
	unsigned int inum;
};

struct inet_ehash_bucket {
	struct hlist_nulls_head chain;
};

struct inet_listen_hashbucket {
	struct hlist_nulls_head nulls_head;
};

struct inet_bind_hashbucket {
	struct hlist_head chain;
};

struct inet_bind2_bucket {
	struct hlist_node node;
	struct hlist_head owners;
};

/* Before 6.8 the owners of a port are here. */
struct inet_bind_bucket {
	struct hlist_node node;
	struct hlist_head owners;
};

struct inet_hashinfo {
	struct inet_ehash_bucket *ehash;
	unsigned int ehash_mask;
	struct inet_bind_hashbucket *bhash;
	struct inet_bind_hashbucket *bhash2;
	unsigned int bhash_size;
	/* Before 5.19. */
	struct inet_listen_hashbucket listening_hash[32];
	unsigned int lhash2_mask;
	struct inet_listen_hashbucket *lhash2;
	bool pernet;
};

struct inet_timewait_death_row {
	struct inet_hashinfo *hashinfo;
};

struct udp_hslot {
	struct hlist_head head;
};

struct udp_table {
	struct udp_hslot *hash;
	unsigned int mask;
};

struct netns_ipv4 {
	struct inet_timewait_death_row tcp_death_row;
	struct udp_table *udp_table;
};

struct unix_table {
	struct hlist_head *buckets;
};

struct netns_unix {
	struct unix_table table;
};

/* From 5.17 to 6.0. */
struct netns_ipv4___row {
	struct inet_timewait_death_row *tcp_death_row;
};

struct net {
	struct list_head list;
	struct ns_common ns;
	struct netns_unix unx;
	struct netns_ipv4 ipv4;
};

typedef struct {
	struct net *net;
} possible_net_t;

struct proto {
	union {
		struct udp_table *udp_table;
	} h;
};

struct sock_common {
	struct proto *skc_prot;
	u64 skc_addrpair;
	u32 skc_portpair;
	__be32 skc_daddr;
	__be32 skc_rcv_saddr;
	unsigned int skc_hash;
	__be16 skc_dport;
	u16 skc_num;
	unsigned short skc_family;
	volatile unsigned char skc_state;
	unsigned char skc_reuse : 4;
	unsigned char skc_reuseport : 1;
	unsigned char skc_ipv6only : 1;
	int skc_bound_dev_if;
	struct hlist_node skc_bind_node;
	possible_net_t skc_net;
	struct in6_addr skc_v6_daddr;
	struct in6_addr skc_v6_rcv_saddr;
	atomic64_t skc_cookie;
	struct hlist_node skc_node;
	struct hlist_nulls_node skc_nulls_node;
};

struct kernfs_node {
	u64 id;
};

struct cgroup {
	struct kernfs_node *kn;
};

struct sock_cgroup_data {
	struct cgroup *cgroup;
	u32 classid;
};

/* Before 5.15: a control group, or the numbers of the classic network controllers if one of the flags is set. */
struct sock_cgroup_data___shared {
	u64 val;
};

struct numa_drop_counters {
	atomic_t drops0;
	atomic_t drops1;
};

struct timer_list {
	struct hlist_node entry;
	unsigned long expires;
	void (*function)(struct timer_list *);
};

struct hrtimer {
	u8 state;
};

/* Since 7.2 in place of the state. */
struct hrtimer___queued {
	bool is_queued;
};

struct inode {
	u16 i_mode;
	unsigned long i_ino;
};

struct socket {
	unsigned long flags;
	struct sock *sk;
};

struct socket_alloc {
	struct socket socket;
	struct inode vfs_inode;
};

struct sk_buff {
	struct sk_buff *next;
	struct net_device *dev;
	unsigned int len;
	char cb[48];
	unsigned char *head;
	u16 network_header;
};

struct sk_buff_head {
	struct sk_buff *next;
	u32 qlen;
};

struct sock {
	struct sock_common __sk_common;
	struct {
		int owned;
	} sk_lock;
	atomic_t sk_drops;
	struct sk_buff_head sk_receive_queue;
	struct {
		atomic_t rmem_alloc;
		int len;
	} sk_backlog;
	u32 sk_ack_backlog;
	u32 sk_max_ack_backlog;
	int sk_rcvbuf;
	int sk_forward_alloc;
	atomic_t sk_omem_alloc;
	int sk_wmem_queued;
	refcount_t sk_wmem_alloc;
	struct timer_list sk_timer;
	unsigned long sk_tsq_flags;
	unsigned long sk_pacing_rate;
	unsigned long sk_max_pacing_rate;
	u32 sk_priority;
	u32 sk_mark;
	kuid_t sk_uid;
	u16 sk_protocol;
	u16 sk_type;
	int sk_sndbuf;
	u8 sk_shutdown;
	u8 sk_userlocks : 4;
	unsigned long sk_ino;
	struct socket *sk_socket;
	struct sock_cgroup_data sk_cgrp_data;
	struct numa_drop_counters *sk_drop_counters;
};

/* After 6.18 the retransmission timer moved into struct sock. */
struct sock___timer {
	struct timer_list tcp_retransmit_timer;
};

struct ipv6_pinfo {
	u8 tclass;
};

struct inet_sock {
	struct sock sk;
	struct ipv6_pinfo *pinet6;
	__be16 inet_sport;
	unsigned long inet_flags;
	u8 tos;
};

/* Before 6.6 the flags were bits of their own. */
struct inet_sock___bits {
	u8 recverr : 1;
	u8 is_icsk : 1;
	u8 freebind : 1;
	u8 hdrincl : 1;
	u8 mc_loop : 1;
	u8 transparent : 1;
	u8 mc_all : 1;
	u8 nodefrag : 1;
	u8 bind_address_no_port : 1;
	u8 recverr_rfc4884 : 1;
	u8 defer_connect : 1;
};

struct udp_sock {
	struct inet_sock inet;
	struct sk_buff_head reader_queue;
	int forward_deficit;
};

struct tcp_congestion_ops {
	char name[16];
};

struct tcp_ulp_ops {
	char name[16];
};

struct inet_connection_sock {
	struct inet_sock icsk_inet;
	struct timer_list icsk_retransmit_timer;
	struct timer_list icsk_delack_timer;
	unsigned long icsk_timeout;
	struct timer_list icsk_keepalive_timer;
	u32 icsk_rto;
	u32 icsk_rto_min;
	u32 icsk_delack_max;
	u32 icsk_pmtu_cookie;
	u32 icsk_user_timeout;
	const struct tcp_congestion_ops *icsk_ca_ops;
	const struct tcp_ulp_ops *icsk_ulp_ops;
	void *icsk_ulp_data;
	u8 icsk_ca_state : 5;
	u8 icsk_retransmits;
	u8 icsk_pending;
	u8 icsk_backoff;
	u8 icsk_probes_out;
	struct {
		u8 pending;
		u32 ato : 8;
		u32 lrcvtime;
		u16 rcv_mss;
	} icsk_ack;
	u64 icsk_ca_priv[13];
};

struct minmax_sample {
	u32 t;
	u32 v;
};

struct minmax {
	struct minmax_sample s[3];
};

struct tcp_options_received {
	u16 tstamp_ok : 1;
	u16 wscale_ok : 1;
	u16 sack_ok : 3;
	u16 snd_wscale : 4;
	u16 rcv_wscale : 4;
};

struct tcp_sock {
	struct inet_connection_sock inet_conn;
	u32 rcv_ssthresh;
	u32 reordering;
	u32 snd_wnd;
	u32 mss_cache;
	u32 snd_cwnd;
	u32 lost_out;
	u32 sacked_out;
	u8 tcp_usec_ts : 1;
	u32 copied_seq;
	u32 retrans_out;
	u16 advmss;
	u32 snd_ssthresh;
	struct minmax rtt_min;
	u32 segs_out;
	u32 data_segs_out;
	u64 bytes_sent;
	u8 chrono_type : 2;
	u32 chrono_start;
	u32 chrono_stat[3];
	u32 write_seq;
	u32 lsndtime;
	u32 mdev_us;
	u8 ecn_flags;
	u8 nonagle : 4;
	u8 rate_app_limited : 1;
	u32 rcv_nxt;
	u32 snd_nxt;
	u32 snd_una;
	u32 srtt_us;
	u32 packets_out;
	u32 delivered;
	u32 delivered_ce;
	u32 received_ce;
	u32 received_ecn_bytes[3];
	u32 rcv_wnd;
	u32 rcv_tstamp;
	struct tcp_options_received rx_opt;
	u64 bytes_received;
	u32 segs_in;
	u32 data_segs_in;
	u32 rate_delivered;
	u32 rate_interval_us;
	u32 delivered_ecn_bytes[3];
	u64 bytes_acked;
	struct hrtimer pacing_timer;
	struct {
		u32 rtt_us;
	} rcv_rtt_est;
	struct {
		int space;
	} rcvq_space;
	u32 dsack_dups;
	u8 fastopen_client_fail : 2;
	u8 syn_data_acked : 1;
	u8 syn_fastopen_child : 1;
	u8 accecn_fail_mode : 4;
	u8 saw_accecn_opt : 2;
	u32 reord_seen;
	u64 bytes_retrans;
	u32 total_retrans;
	u32 rto_stamp;
	u16 total_rto;
	u16 total_rto_recoveries;
	u32 total_rto_time;
	u16 timeout_rehash;
	u32 rcv_ooopack;
	u32 plb_rehash;
	bool is_mptcp;
};

struct inet_timewait_sock {
	struct sock_common __tw_common;
	u32 tw_mark;
	unsigned char tw_substate;
	struct timer_list tw_timer;
};

struct request_sock {
	struct sock_common __req_common;
	struct timer_list rsk_timer;
};

struct inet_request_sock {
	struct request_sock req;
	u32 ir_mark;
};

/* net/ipv4/tcp_bbr.c, tcp_dctcp.c, tcp_vegas.h: what lies in icsk_ca_priv. */
struct bbr {
	u32 min_rtt_us;
	struct minmax bw;
	u32 lt_use_bw : 1;
	u32 lt_bw;
	u32 pacing_gain : 10;
	u32 cwnd_gain : 10;
};

struct dctcp {
	u32 old_delivered;
	u32 old_delivered_ce;
	u32 dctcp_alpha;
	u32 ce_state;
};

struct vegas {
	u8 doing_vegas_now;
	u16 cntRTT;
	u32 minRTT;
	u32 baseRTT;
};

struct mptcp_subflow_context {
	struct list_head node;
	u32 token;
	struct sock *conn;
};

struct mptcp_pm_data {
	u8 extra_subflows;
};

/* Before 6.18 it was called subflows. */
struct mptcp_pm_data___subflows {
	u8 subflows;
};

struct mptcp_sock {
	struct inet_connection_sock sk;
	u64 write_seq;
	u64 ack_seq;
	u64 bytes_sent;
	u64 bytes_received;
	u64 bytes_retrans;
	u64 bytes_acked;
	u32 token;
	unsigned long flags;
	bool can_ack;
	struct list_head conn_list;
	struct sock *first;
	struct mptcp_pm_data pm;
};

struct sockaddr_un {
	unsigned short sun_family;
	char sun_path[108];
};

struct dentry {
	struct inode *d_inode;
};

struct path {
	struct dentry *dentry;
};

struct unix_address {
	int len;
	/* Before 5.17. */
	unsigned int hash;
	struct sockaddr_un name[0];
};

struct unix_sock {
	struct sock sk;
	struct unix_address *addr;
	struct sock *peer;
	struct path path;
	int inq_len;
};

struct rq;

struct cfs_rq {
	struct rq *rq;
	int throttle_count;
};

struct sched_entity {
	u64 sum_exec_runtime;
	struct cfs_rq *cfs_rq;
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

struct nsproxy {
	struct net *net_ns;
};

#if defined(__TARGET_ARCH_arm64)
struct thread_info {
	struct {
		u32 count;
	} preempt;
};
#endif

/* From 6.2 to 6.14 the preempt count of x86 is a part of this; before and after it is a variable of its own. */
struct pcpu_hot {
	int preempt_count;
};

/* The saved registers of a thread that does not run: its thread pointer is among them. */
struct thread_struct {
#if defined(__TARGET_ARCH_x86)
	unsigned long fsbase;
#else
	struct {
		unsigned long tp_value;
	} uw;
#endif
};

struct task_struct {
#if defined(__TARGET_ARCH_arm64)
	struct thread_info thread_info;
#endif
	struct thread_struct thread;
	unsigned int __state;
	unsigned int flags;
	/* Unsigned, so that libbpf can narrow the load: one byte since 7.2, four before. */
	unsigned int on_cpu;
	struct sched_entity se;
	int pid;
	int tgid;
	struct nsproxy *nsproxy;
	u64 utime;
	u64 stime;
	unsigned long nvcsw;
	unsigned long nivcsw;
	u64 start_time;
	struct task_struct *group_leader;
	char comm[16];
	struct files_struct *files;
	void *stack;
	bool throttled;
	u8 in_iowait : 1;
	u8 frozen : 1;
};

/* Before 5.14. */
struct task_struct___state {
	long state;
};

#if defined(__TARGET_ARCH_x86)
struct pt_regs {
	long orig_ax;
	unsigned long r10;
	unsigned long di;
	unsigned long si;
	unsigned long dx;
	unsigned long ax;
	unsigned long ip;
	unsigned long sp;
	unsigned long bp;
};
#elif defined(__TARGET_ARCH_arm64)
struct pt_regs {
	s32 syscallno;
	u64 orig_x0;
	u64 regs[31];
	u64 sp;
	u64 pc;
};
#else
#error "no system call registers known for this architecture"
#endif

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

struct bpf_iter__bpf_map_elem {
	struct bpf_iter_meta *meta;
	struct bpf_map *map;
	void *key;
	void *value;
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

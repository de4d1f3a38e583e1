/* SPDX-License-Identifier: (LGPL-2.1 OR BSD-2-Clause) */
/*
 * The structures that the programs pass to user space. The mod.rs of the probe that fills a structure defines the same one in
 * Rust; a test compares their sizes. All fields have a fixed width, and there is no implicit padding.
 */
#ifndef PARSHALL_RECORDS_H
#define PARSHALL_RECORDS_H

#include "kernel.h"

#define STALL_MIN_NS 1000000ULL
#define COMM_LEN 16
#define KSTACK_MAX 24
#define USTACK_MAX 40

/* parshall_evidence::FlowState */
enum flow_state {
	FS_IDLE_RECV, FS_IDLE_SEND, FS_IN_FLIGHT, FS_NAGLE, FS_CORKED, FS_PEER_WINDOW, FS_CWND, FS_SNDBUF, FS_PACED,
	FS_QDISC, FS_RECOVERY, FS_LOSS, FS_RX_WAITING, FS_OTHER, FS_N
};

/* parshall_evidence::Release */
enum release {
	RL_APP_SEND, RL_APP_RECV, RL_RX_DATA, RL_RX_ACK, RL_RX_ACK_DELAYED, RL_RX_DATA_OWN_DELACK, RL_RTO_TIMER,
	RL_RETRANSMIT, RL_WRITE_TIMER, RL_CUT, RL_CLOSE, RL_N
};

/* parshall_evidence::OffCpu */
enum off_cpu { OFF_BLOCKED, OFF_RUNNABLE, OFF_THROTTLED };

/* parshall_evidence::FdKind */
enum fd_kind { FD_NONE, FD_FILE, FD_PIPE, FD_TCP, FD_UDP, FD_UNIX, FD_SOCKET, FD_ANON, FD_CHAR, FD_BLOCK };

/* The context in which a thread was woken. It decides whether the critical path continues in the waker. */
enum waker_context { WAKER_UNKNOWN, WAKER_THREAD, WAKER_KERNEL_THREAD, WAKER_SOFTIRQ, WAKER_HARDIRQ };

/* parshall_core::critical_path::timeline::Why */
enum off_why { WHY_SLEPT, WHY_SLEPT_FOR_IO, WHY_SLEPT_UNINTERRUPTIBLY, WHY_PREEMPTED, WHY_THROTTLED, WHY_STOPPED };

/* parshall_core::critical_path::timeline::Op */
enum call_op { OP_RECEIVE, OP_SEND, OP_ACCEPT };

enum record_kind {
	REC_FLOW_STALL = 1, REC_THREAD_STALL, REC_USER_STACK, REC_SAMPLE, REC_FLOW_END, REC_THREAD_END, REC_OFF_CPU, REC_CALL,
	REC_UDP_CALL, REC_SHORT_FLOW_END, REC_STOP_SIGNAL, REC_USER_MEMORY, REC_INTERPRETED
};

struct flow_key {
	u8 saddr[16];
	u8 daddr[16];
	u16 sport;
	u16 dport;
	u16 family;
	u8 state;
	u8 passive;
	u32 netns;
};

struct snapshot {
	u64 at;
	u64 bytes_acked;
	u64 bytes_received;
	u32 segs_out;
	u32 segs_in;
	u32 data_segs_out;
	u32 total_retrans;
	u32 total_rto;
	u32 busy_j;
	u32 rwnd_j;
	u32 sndbuf_j;
	u32 srtt_us;
	u32 min_rtt_us;
	u32 rto_j;
	u32 cwnd;
	u32 ssthresh;
	u32 mss;
	u32 snd_wnd;
	u32 rcv_wnd;
	u32 packets_out;
	u32 unsent;
	u32 unread;
	u32 sndbuf;
	u32 rcvbuf;
	u8 state;
	u8 ca_state;
	u8 nonagle;
	u8 userlocks;
	u8 app_limited;
	u8 pad[3];
};

struct calls {
	u64 sends;
	u64 send_bytes;
	u64 small_sends;
	u64 write_after_write;
	u64 held_sends;
	u64 recvs;
	u64 recv_bytes;
	u64 recv_left_over;
	u64 eagain;
	u64 exchanges;
	u32 send_min;
	u32 send_max;
	u32 pair_first;
	u32 pair_second;
};

/* The state of a flow between two events, and its ledger. In the socket storage of the flow's socket. */
struct flow {
	u64 sk;           /* the socket; in the copy that an accepted socket inherits, still the listener */
	u64 cookie;
	u64 begin;        /* when it was first seen */
	u64 run_begin;    /* the run of intervals with the same state */
	u64 last;         /* the last event */
	u32 run_una;
	u32 run_copied;
	u32 gen;          /* the slice that last touched it */
	u32 tgid;
	u32 tid;          /* of the last send or receive */
	u32 last_send;
	u8 run_state;
	u8 last_release;
	u8 last_op;       /* 0 none, 1 receive, 2 send */
	u8 passive;
	u8 in_send;
	u8 late;          /* the connection was open before it was tracked, at its first send or receive */
	u8 sends_in_row;  /* sends since the last receive, 255 at most */
	u8 listener_followed; /* a followed process was seen to begin to listen; accepted sockets inherit it */
	u32 run_unsent;   /* fields of the socket during the run */
	u32 run_packets_out;
	u32 run_unread;
	u32 run_snd_wnd;
	u32 run_cwnd;
	u32 copied;       /* copied_seq after the last event */
	u32 copied_gen;   /* the slice in which `copied` was set */
	/* Times within the slice; 0 if not observed: */
	u64 arrived;      /* when the first unread byte arrived */
	u64 last_arrival; /* when the last segment with data arrived */
	u64 recv_since;   /* `arrived` of the data of a receive whose sock_recv_length event is still to come */
	u64 send_begin;   /* when the send that has not returned began */
	u32 head;         /* four bytes that the last receive took: the length of a message */
	u8 has_head;
	u8 unknown_calls; /* that were looked at within the slice; FRAMES_SEEN once one had a frame */
	u8 opener;        /* this end was seen to open the connection */
	u8 closed_in;     /* the last seen since its process closed it with something left to send, else 0 */
	struct calls calls;
	u64 ns[FS_N * RL_N];
	u32 count[FS_N * RL_N];
};

/* The counted events of connections, in the order of struct net_value. */
enum net_count {
	NET_RETRANS, NET_RST_OUT, NET_RST_IN, NET_OPENED, NET_CLOSED, NET_ACCEPTED, NET_RST_BY_OPENER, NET_RST_FROM_OPENER,
	NET_SYN_FILTERED, NET_N
};

struct net_key {
	u32 tgid;    /* 0: by the port */
	u32 netns;   /* and the port of a connection that no process is known to have */
	u16 port;
	u8 followed; /* 1: of a process that is none of the subject's, see FOLLOWED */
	u8 pad;
};

struct net_value {
	u64 n[NET_N];
};

/* Written by the iterator over sockets: the flow's key, a snapshot of the socket, and the flow's ledger. */
struct flow_dump {
	struct flow_key key;
	struct snapshot snap;
	struct flow flow;
};

struct record_head {
	u32 kind;
	u32 tid;
	u64 at;
};

struct flow_stall_rec {
	struct record_head head;
	u64 cookie;
	u64 begin;
	u64 ns;
	u32 unsent;
	u32 packets_out;
	u32 unread;
	u32 snd_wnd;
	u32 cwnd;
	u8 state;
	u8 release;
	u8 pad[2];
};

struct thread_stall_rec {
	struct record_head head;
	u64 begin;
	u64 ns;
	u32 tgid;
	u32 seq;
	s32 nr;
	u8 fd;
	u8 why;
	u8 waker_irq;
	u8 followed; /* 1: its process is none of the subject's, see FOLLOWED */
	u32 waker_tid;
	char waker_comm[COMM_LEN];
	u32 n_kstack;
	u32 n_wstack;
	u32 waker_tgid;
	u64 kstack[KSTACK_MAX];
	u64 wstack[KSTACK_MAX];
};

struct user_stack_rec {
	struct record_head head;
	u32 tgid;
	u32 seq;
	u32 n_ustack;
	u32 pad;
	u64 sp;       /* 0 where it is not known */
	u64 ustack[USTACK_MAX];
};

#define MEMORY_BLOCK 2048
#define MEMORY_BLOCKS 8

/* Registers of user mode, and the user stack's memory from `sp` on, for the user stack with the same thread and sequence number. */
struct user_memory_rec {
	struct record_head head;
	u32 tgid;
	u32 seq;
	u64 ip;
	u64 sp;
	u64 fp;
	u64 lr;
	u32 n_memory;
	u32 pad;
	u8 memory[MEMORY_BLOCK * MEMORY_BLOCKS];
};

struct sample_rec {
	struct record_head head;
	u32 tgid;
	s32 nr;
	u32 user;
	u32 n_kstack;
	u32 n_ustack;
	u32 pad;
	u64 kstack[KSTACK_MAX];
	u64 ustack[USTACK_MAX];
};

/* Where an interpreter of a process has what a stack is made of: an address, and the offsets of fields. */
struct interpreter {
	u64 interpreters;      /* address of the pointer to the first interpreter */
	u32 next_interpreter;  /* in an interpreter: the next one */
	u32 first_state;       /* and the state of its first thread */
	u32 next_state;        /* in the state of a thread: the next one */
	u32 state_identity;    /* pthread_self() of the thread */
	u32 state_frame;       /* its innermost frame, or a structure that has it */
	u32 through_cframe;    /* 1: such a structure */
	u32 cframe_frame;      /* in that structure: the innermost frame */
	u32 frame_caller;      /* in a frame: the frame that called it */
	u32 frame_code;
	u32 frame_instruction;
	u32 frame_kind;        /* a byte that says how the frame came to be */
	u32 pad;
};

#define INTERPRETED_MAX 48

struct interpreted_frame {
	u64 code;        /* address of the code object */
	u64 instruction; /* its address, or in the low half its number */
	u64 kind;        /* in the lowest byte */
};

/* The functions that a thread runs in an interpreter, innermost first: of a sample with the same time, or of the user stack with the same
 * thread and sequence number. */
struct interpreted_rec {
	struct record_head head;
	u32 tgid;
	u32 seq;
	u32 n_frames;
	u32 more; /* 1: there are more */
	struct interpreted_frame frames[INTERPRETED_MAX];
};

/* The state of a thread between two events, and its ledger. In task storage. */
struct thread {
	u64 since;        /* begin of the current state */
	u64 wake;         /* when it was last woken */
	u64 memory_sp;    /* the stack pointer when memory was last copied */
	u64 on_ns;
	u64 sys_t0;
	u64 sys_on0;
	u64 runq_ns;
	u32 gen;
	u32 tid;
	u32 tgid;
	u32 runq_count;
	u32 waker_tid;
	u32 waker_tgid;
	u32 n_wstack;
	u32 seq;
	s32 sys_nr;
	u8 state;         /* enum thread_state */
	u8 waker_irq;
	u8 want_ustack;
	u8 sys_fd;
	/* data that the thread copies from one socket to another */
	u64 last_recv_sk;
	u64 copy_pairs;
	u64 copy_bytes;
	u64 copy_recvs;
	u64 copy_mode_count;
	u64 copy_left_over;
	u32 last_recv_len;
	u32 copy_mode;
	u32 copy_votes;
	u8 why;           /* enum off_why of the sleep that ended at `wake` */
	u8 waker_context; /* enum waker_context; it and waker_tid are set for every sleep, the other waker_ fields for stalls */
	u8 memory_copies; /* user stacks whose memory was copied */
	u8 pad;
	u32 runq_log2[20];
	char waker_comm[COMM_LEN];
	u64 wstack[KSTACK_MAX];
};

enum thread_state { TS_UNKNOWN, TS_ON, TS_BLOCKED, TS_RUNNABLE, TS_THROTTLED };

/* Written by the task iterator. */
struct thread_dump {
	u64 at;
	u64 cpu_ns;
	u64 utime;
	u64 stime;
	u64 nvcsw;
	u64 nivcsw;
	u64 on_ns;
	u64 runq_ns;
	u64 copy_pairs;
	u64 copy_bytes;
	u64 copy_recvs;
	u64 copy_mode_count;
	u64 copy_left_over;
	u64 start_time;
	u32 tid;
	u32 tgid;
	u32 runq_count;
	u32 copy_mode;
	u32 runq_log2[20];
	char comm[COMM_LEN];
	u32 followed;  /* 1: its process is none of the subject's, see FOLLOWED */
	u32 port_only; /* 1: only the sockets of its process that have the subject's port belong to it */
};

struct thread_end_rec {
	struct record_head head;
	struct thread_dump dump;
};

struct flow_end_rec {
	struct record_head head;
	struct flow_dump dump;
};

/* A shorter form of flow_end_rec, a third of its size, for a flow with time in at most SHORT_CELLS cells. Most short
 * connections are such flows. */
#define SHORT_CELLS 16
#define FLOW_HEAD __builtin_offsetof(struct flow, ns)

struct flow_cell {
	u64 ns;
	u32 count;
	u32 cell;
};

struct short_flow_end_rec {
	struct record_head head;
	struct flow_key key;
	struct snapshot snap;
	struct flow_cell cells[SHORT_CELLS];
	u32 n_cells;
	u32 pad;
	u8 flow[FLOW_HEAD];
};

struct off_key {
	u32 tid;
	s32 nr;
	u8 fd;
	u8 why;
	u8 pad[2];
};

struct off_value {
	u64 ns;
	u64 count;
};

struct sys_key {
	u32 tid;
	s32 nr;
	u32 fd;
};

struct sys_value {
	u64 count;
	u64 errors;
	u64 eagain;
	u64 bytes;
	u64 on_ns;
	u64 off_ns;
};

/* One interval of a thread off the CPU. `head.at` is when it ran again, or when the slice ended. */
struct off_cpu_rec {
	struct record_head head;
	u64 begin;
	u64 wake;
	u64 target;       /* socket cookie, or inode number */
	s32 nr;
	s32 fd_number;
	u32 tgid;
	u32 waker_tid;
	u32 prev_tid;
	u8 fd;
	u8 why;           /* enum off_why */
	u8 waker_context;
	u8 pad;
};

/* A call that sent or received data on a TCP socket, or accepted a connection. `head.at` is when it returned. */
struct call_rec {
	struct record_head head;
	u64 cookie;
	u64 since;        /* of a receive when the data arrived, of a send when it began; 0 for an accept */
	u32 tgid;
	u32 bytes;
	u8 op;            /* enum call_op */
	/* struct frame, all 0 if nothing is known */
	u8 protocol;
	u8 type;
	u8 flags;
	u32 length;
	u32 stream;
	u32 second;
};

/* One datagram received or sent. */
struct udp_call_rec {
	struct call_rec call;
	u8 saddr[16];
	u8 daddr[16];
	u16 sport;
	u16 dport;        /* 0: not connected */
	u16 family;
	u8 bound;         /* bind() was called with a port */
	u8 pad;
	u32 netns;
	u32 pad2;
};

/* A signal that stops a process of the subject. `head.tid` is the thread it was sent to. */
struct stop_signal_rec {
	struct record_head head;
	u32 tgid;
	u32 signal;
	u32 sender_tgid;
	u32 pad;
	char sender_comm[COMM_LEN];
};

_Static_assert(sizeof(struct off_cpu_rec) == 64 && sizeof(struct call_rec) == 56 && sizeof(struct udp_call_rec) == 104 &&
		       sizeof(struct stop_signal_rec) == 48 && sizeof(struct interpreted_rec) == 1184,
	       "the decoders have the same sizes");

/* Written by the iterator over files: a process has this socket open. */
struct owner_rec {
	u64 cookie;
	u32 tgid;
	u32 fd;
};

#endif

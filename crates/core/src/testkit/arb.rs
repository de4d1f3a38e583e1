//! Arbitrary captures: well-formed ones and nonsense, with times out of range and figures that overflow.
use parshall_evidence::*;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

use super::{FlowBuilder, ThreadBuilder, WINDOW_NS, empty_capture};

/// Times: mostly within the window, at times absurd.
fn ns() -> impl Strategy<Value = u64> {
    prop_oneof![8 => 0..2 * WINDOW_NS, 2 => 0..100_000u64, 1 => Just(0), 1 => Just(u64::MAX), 1 => any::<u64>()]
}

fn counter() -> impl Strategy<Value = u64> {
    prop_oneof![8 => 0..100_000u64, 1 => Just(0), 1 => Just(u64::MAX)]
}

fn cell() -> impl Strategy<Value = FlowCell> {
    (select(&FlowState::ALL[..]), select(&Release::ALL[..]), ns(), counter())
        .prop_map(|(state, release, ns, count)| FlowCell { state, release, ns, count })
}

fn stall() -> impl Strategy<Value = FlowStall> {
    (0..6u64, ns(), ns(), select(&FlowState::ALL[..]), select(&Release::ALL[..]), 100..106u32).prop_map(
        |(flow, begin_ns, ns, state, release, tid)| FlowStall {
            flow,
            begin_ns,
            ns,
            state,
            release,
            tid,
            unsent_bytes: 1,
            packets_out: 1,
            unread_bytes: 1,
            snd_wnd: 0,
            cwnd: 1,
        },
    )
}

fn calls() -> impl Strategy<Value = FlowCalls> {
    vec(counter(), 8).prop_map(|n| FlowCalls {
        sends: n[0],
        send_bytes: n[1],
        small_sends: n[2],
        write_after_write: n[3],
        recvs: n[4],
        recv_bytes: n[5],
        recv_left_over: n[6],
        exchanges: n[7],
        ..FlowCalls::default()
    })
}

fn flow() -> impl Strategy<Value = FlowRecord> {
    let role = select(vec![Role::Client, Role::Server, Role::Unknown]);
    let times = (ns(), ns(), ns());
    (0..6u64, role, times, vec(cell(), 0..12), calls(), vec(counter(), 6)).prop_map(
        |(id, role, (begin_ns, end_ns, observed_ns), cells, calls, n)| {
            let mut record = FlowBuilder::new(id, role).record;
            (record.begin_ns, record.end_ns, record.observed_ns) = (begin_ns, end_ns, observed_ns);
            (record.cells, record.calls) = (cells, calls);
            record.last_tid = 100 + (id as u32);
            let last = &mut record.last;
            (last.total_retrans, last.data_segs_out, last.bytes_acked) = (n[0], n[1], n[2]);
            (last.bytes_received, last.busy_us, last.rwnd_limited_us) = (n[3], n[4], n[5]);
            record
        },
    )
}

fn off_cpu() -> impl Strategy<Value = (OffCpu, &'static str, FdKind)> {
    let why = select(vec![OffCpu::Blocked, OffCpu::Runnable, OffCpu::Throttled]);
    (why, select(vec!["epoll_wait", "futex", "read", "nanosleep", ""]), select(&FdKind::ALL[..]))
}

fn thread() -> impl Strategy<Value = ThreadRecord> {
    let cells = vec((off_cpu(), ns(), counter()), 0..6);
    (100..106u32, cells, vec(ns(), 5), vec(counter(), 8), proptest::option::of(ns())).prop_map(
        |(tid, cells, t, n, utime_ns)| {
            let mut record = ThreadBuilder::new(tid).record;
            (record.begin_ns, record.end_ns, record.cpu_ns) = (t[0], t[1], t[2]);
            (record.observed_ns, record.on_cpu_ns, record.utime_ns) = (t[3], t[4], utime_ns);
            (record.samples_user, record.samples_kernel) = (n[0], n[1]);
            record.copy = CopyPattern {
                pairs: n[2],
                bytes: n[3],
                recvs: n[4],
                mode_bytes: 4096,
                mode_count: n[5],
                left_over: n[6],
            };
            record.runq = RunQueue { count: n[7], ns: n[7], log2_us: n.clone() };
            let to_cell = |((why, name, fd), ns, count): ((OffCpu, &str, FdKind), u64, u64)| OffCpuCell {
                why,
                syscall: if name.is_empty() { NO_SYSCALL } else { 1 },
                syscall_name: name.to_string(),
                fd,
                ns,
                count,
            };
            record.off_cpu = cells.into_iter().map(to_cell).collect();
            record
        },
    )
}

fn thread_stall() -> impl Strategy<Value = ThreadStall> {
    (100..107u32, ns(), ns(), off_cpu(), 0..107u32, any::<bool>()).prop_map(
        |(tid, begin_ns, ns, (why, name, fd), waker_tid, waker_in_irq)| ThreadStall {
            tid,
            begin_ns,
            ns,
            why,
            syscall: if name.is_empty() { NO_SYSCALL } else { 1 },
            syscall_name: name.to_string(),
            fd,
            waker_tid,
            waker_comm: String::new(),
            waker_in_irq,
            stack: Some(9),
            waker_stack: None,
        },
    )
}

fn hop() -> impl Strategy<Value = Hop> {
    let names = select(vec!["", "app", "python3", "postgres", "VM Thread"]);
    let targets = select(vec!["", "127.0.0.1:7000", "10.0.0.2:7000", "app", "sh", "/var/log/x.log"]);
    let calls = select(vec!["", "futex", "write", "epoll_wait"]);
    (select(&HopKind::ALL[..]), names.clone(), names, targets, calls, 99..104u32).prop_map(
        |(kind, process, thread, target, syscall, tid)| Hop {
            title: String::new(),
            pid: if tid == 99 { 0 } else { 100 + tid % 2 },
            tid,
            threads: tid % 3,
            thread: thread.to_string(),
            process: process.to_string(),
            kind,
            syscall: syscall.to_string(),
            target: target.to_string(),
            object: match (target.parse(), target) {
                (Ok(address), _) => Object::Peer(address),
                (Err(_), "app" | "sh") => Object::Thread(Runner { pid: 0, process: target.to_string() }),
                (Err(_), _) => Object::None,
            },
            stack: (tid == 101).then_some(tid % 2),
        },
    )
}

fn part() -> impl Strategy<Value = PathPart> {
    let part = (vec(hop(), 0..5), ns(), counter());
    part.prop_map(|(hops, ns, requests)| PathPart { hops, ns, requests, longest_ns: ns, setup: ns % 8 == 0 })
}

/// Any service.
pub fn service() -> impl Strategy<Value = Service> {
    let flags = (any::<bool>(), any::<bool>(), 0..4u32, 7000..7002u16);
    let tail = (vec(ns(), 4), vec(counter(), 4), vec(part(), 0..4)).prop_map(|(t, n, path)| Tail {
        from_ns: t[0],
        requests: n[0],
        connections: n[1],
        moments: n[2],
        ns: t[1],
        followed_requests: n[3],
        followed_ns: t[2],
        path,
        behind_one: n[3] / 2,
        behind_one_ns: t[3],
        blockers: if n[0] % 2 == 0 { vec![] } else { vec!["127.0.0.1:50000".to_string()] },
    });
    (vec(ns(), 12), vec(counter(), 3), vec(part(), 0..8), flags, proptest::option::of(tail)).prop_map(
        |(t, n, path, (outbound, followed, workers, port), tail)| {
            let mut service = super::service::ServiceBuilder::new(port).record;
            (service.outbound, service.followed, service.workers) = (outbound, followed, workers);
            (service.requests, service.unanswered, service.followed_requests) = (n[0], n[1], n[2]);
            (service.unanswered_longest_ns, service.observed_ns) = (t[0], t[1]);
            (service.p50_ns, service.p99_ns) =
                (Some(t[2]).filter(|_| n[1] % 8 != 0), Some(t[3]).filter(|_| n[1] % 4 != 0));
            (service.outstanding_ns, service.working_ns, service.worked_ns) = (t[4], t[5], t[6]);
            (service.reply_gap_p10_ns, service.reply_gap_p50_ns, service.reply_gap_p90_ns) = (t[7], t[8], t[9]);
            (service.followed_ns, service.path, service.tail) = (t[10], path, tail);
            service
        },
    )
}

/// Counters, with listeners, sockets, descriptors, ports and a queue.
fn counters() -> impl Strategy<Value = Counters> {
    const NAMES: [&str; 8] = [
        "TcpExt.ListenOverflows",
        "TcpExt.TCPSynRetrans",
        "TcpExt.PruneCalled",
        "Tcp.PassiveOpens",
        "Tcp.ActiveOpens",
        "Udp.RcvbufErrors",
        "Udp.InDatagrams",
        "TcpExt.TCPAbortOnData",
    ];
    vec(counter(), 20).prop_map(|n| {
        let mut counters = super::rose(&[]);
        counters.elapsed_ns = n[0];
        let space = &mut counters.namespaces[0];
        space.rose = NAMES.iter().zip(&n).map(|(name, n)| ((*name).to_string(), *n)).collect();
        space.queues = vec![DeviceQueue {
            device: "eth0".to_string(),
            kind: "tbf".to_string(),
            sent_bytes: n[8],
            drops: n[9],
            overlimits: n[10],
            backlog_bytes: n[11],
        }];
        counters.listeners = vec![super::listener(7000, n[12])];
        counters.listeners[0].queued = (n[13], n[14]);
        let local = counters.listeners[0].local;
        counters.udp =
            vec![UdpCounters { local, netns: 1, pid: 0, drops: n[15], queued_bytes: 1, rcvbuf_bytes: n[16] }];
        counters.descriptors = vec![DescriptorUse { pid: 100, open: n[17], limit: n[18] }];
        counters.ports = vec![PortUse { netns: 1, remote: local, taken: n[19], time_wait: n[0], of: n[1] }];
        counters
    })
}

/// Requests of two threads to io_uring, in any order and with any times.
fn uring() -> impl Strategy<Value = Uring> {
    let opcode = || select(vec!["recv", "send", ""]).prop_map(str::to_owned);
    let cell = (100..103u32, opcode(), vec(counter(), 9)).prop_map(|(tid, opcode, n)| UringCell {
        pid: 100,
        tid,
        opcode,
        counts: UringCounts {
            submitted: n[0],
            completed: n[1],
            outstanding: n[2],
            polls: n[3],
            to_workers: n[4],
            errors: vec![UringErrors { error: "EIO".to_owned(), count: n[5] }],
            ..UringCounts::default()
        },
        timed: n[6],
        ns: n[7],
        longest_ns: n[8],
        ..UringCell::default()
    });
    let request = (ns(), proptest::option::of(ns()), 100..103u32, opcode(), any::<i32>());
    let request = request.prop_map(|(begin_ns, end_ns, tid, opcode, result)| UringRequest {
        begin_ns,
        end_ns,
        tid,
        opcode,
        result,
        ..UringRequest::default()
    });
    let waits = (100..103u32, vec(opcode(), 0..3), counter());
    let waits = waits.prop_map(|(tid, outstanding, count)| UringWaits {
        pid: 100,
        tid,
        outstanding,
        count,
        ..UringWaits::default()
    });
    (vec(cell, 0..5), vec(request, 0..20), vec(waits, 0..5), counter())
        .prop_map(|(cells, requests, waits, left_out)| Uring { cells, requests, waits, left_out, ..Uring::default() })
}

fn log() -> impl Strategy<Value = Log> {
    let line = (ns(), 100..103u32, "\\PC{0,8}", any::<bool>());
    let line = line.prop_map(|(at_ns, pid, text, cut)| LogLine { at_ns, pid, text, cut, ..LogLine::default() });
    (vec(line, 0..10), counter()).prop_map(|(lines, left_out)| Log { lines, left_out })
}

/// Waits: a few ends of some processes that may be each other's, and threads in all states.
fn waiting() -> impl Strategy<Value = Waiting> {
    let ages = (proptest::option::of(ns()), proptest::option::of(ns()), ns(), ns());
    let end = (0..8u64, any::<[bool; 3]>(), select(vec![1u8, 2, 8]), 100..103u32, 0..2u64, ages);
    let end = end.prop_map(|(id, [serves, subject, accepted], state, pid, unread_bytes, ages)| {
        let (server, client) =
            (([127, 0, 0, 1], 7000 + (id % 2) as u16).into(), ([127, 0, 0, 1], 40_000 + id as u16 / 2).into());
        let (received_ns, sent_ns, acked_ns, still_ns) = ages;
        WaitingEnd {
            id,
            local: if serves { server } else { client },
            remote: if serves { client } else { server },
            netns: 1,
            serves,
            subject,
            accepted,
            state,
            pids: if pid == 102 { vec![] } else { vec![pid, pid + 1] },
            unread_bytes,
            received_ns,
            sent_ns,
            acked_ns,
            still_ns,
        }
    });
    let calls = select(vec!["epoll_wait", "poll", "futex", "recvfrom", "nanosleep", "flock", "accept4", "write", ""]);
    let thread = (100..106u32, calls, select(vec!['S', 'D', 'T', 'R']), select(&FdKind::ALL[..]), vec(0..8u64, 0..3));
    let thread =
        (thread, 100..106u32, any::<[bool; 4]>()).prop_map(|((tid, call, state, fd, awaits), other, flags)| {
            let [seen, awaits_any, owned, still] = flags;
            WaitingThread {
                pid: 100 + tid / 2 % 3,
                tid,
                process: "app".to_string(),
                state,
                still: seen.then_some(still),
                seen,
                syscall: 1,
                syscall_name: call.to_string(),
                fd,
                awaits,
                awaits_any,
                lock_owner: if owned { other } else { 0 },
                partners: if still { vec![other] } else { vec![] },
                session_lock: if owned && still { other } else { 0 },
                ..WaitingThread::default()
            }
        });
    (vec(end, 0..8), vec(thread, 0..6)).prop_map(|(ends, threads)| Waiting { ends, threads, left_out: 0 })
}

/// Any capture.
pub fn capture() -> impl Strategy<Value = Capture> {
    let further = (proptest::option::of(uring()), proptest::option::of(log()));
    (main(), further).prop_map(|(capture, (uring, log))| Capture { uring, log, ..capture })
}

/// Without further evidence.
fn main() -> impl Strategy<Value = Capture> {
    let rung = select(vec![Rung::Btf, Rung::Tracepoint, Rung::Procfs]);
    let events = (vec(stall(), 0..40), vec(thread_stall(), 0..20));
    let services = prop_oneof![Just(Vec::new()), vec(service(), 1..4)];
    let records = (vec(flow(), 0..6), vec(thread(), 0..4), events, services);
    let counters = (proptest::option::of(counters()), proptest::option::of(waiting()));
    (records, ns(), rung, vec(counter(), 9), counters).prop_map(
        |((flows, threads, (flow_stalls, thread_stalls), services), window_ns, rung, n, (counters, waiting))| {
            let mut capture = empty_capture();
            capture.services = services;
            (capture.flows, capture.threads) = (flows, threads);
            (capture.flow_stalls, capture.thread_stalls) = (flow_stalls, thread_stalls);
            (capture.window_ns, capture.rung) = (window_ns, rung);
            (capture.counters, capture.waiting) = (counters, waiting);
            (capture.net.resets_sent, capture.net.closed, capture.net.opened) = (n[6], n[7], n[8]);
            (capture.probe.lost_events, capture.probe.events) = (n[0], n[1]);
            capture.samples = vec![CpuSample {
                tid: 101,
                user: true,
                syscall: NO_SYSCALL,
                syscall_name: String::new(),
                stack: Some(7),
                count: n[2],
            }];
            capture.cgroups = vec![CgroupCpu {
                path: "/a".to_string(),
                quota_us: Some(n[3]),
                period_us: 100_000,
                periods: n[4],
                throttled_periods: n[5],
                throttled_ns: n[5],
            }];
            capture
        },
    )
}

//! Reports made by hand: one of each kind, as fixtures of the formats. The figures are shapes, not measurements.
use parshall_core::critical_path::Index;
use parshall_core::judge::{Counted, Judged};
use parshall_evidence::*;

use super::further;

/// A form of a report, beside a capture whose it need not be.
pub fn formed<T>(form: impl Fn(&Judged<'_>, &Capture) -> T, report: &Report, capture: &Capture) -> T {
    let index = capture.timeline.as_ref().map(Index::new);
    form(&Judged { report: report.clone(), counted: Counted::default(), index }, capture)
}

/// All of them by name.
pub fn all() -> Vec<(&'static str, Report)> {
    vec![
        ("cause", cause()),
        ("thread-cause", thread_cause()),
        ("chain", chain()),
        ("tail", tail()),
        ("at-capacity", at_capacity()),
        ("healthy", healthy()),
        ("no-dominant-cause", no_dominant()),
        ("insufficient-evidence", insufficient()),
    ]
}

fn share(state: &str, label: &str, share: f64, wall_ms: f64) -> TimeShare {
    TimeShare { state: state.into(), label: label.into(), ms: wall_ms * share, share }
}

fn account(n: u64, wall_ms: f64, states: &[(&str, &str, f64)]) -> Account {
    let states = states.iter().map(|(id, label, s)| share(id, label, *s, wall_ms)).collect();
    Account { n, wall_ms, states, each: Vec::new() }
}

fn figure(figure: f64, unit: &str, what: &str) -> Figure {
    Figure { figure, unit: unit.into(), what: what.into(), ..Figure::default() }
}

fn call(syscall: &str, fd: FdKind, per_s: f64, on_cpu_us: f64, cpu_share: f64) -> CallReport {
    CallReport {
        syscall: syscall.into(),
        fd,
        per_s,
        on_cpu_us,
        off_cpu_us: 0.0,
        cpu_share,
        bytes: None,
        again_share: 0.0,
        error_share: 0.0,
    }
}

/// The drops of a host, as `--event skb:kfree_skb` counts them.
fn drops() -> EventReport {
    let caller = |value: &str, count: u64, stack: &[&str]| EventCaller {
        value: value.into(),
        count,
        per_s: count as f64 / 10.0,
        share: count as f64 / 5_000.0,
        stack: stack.iter().map(|frame| (*frame).to_owned()).collect(),
        ..EventCaller::default()
    };
    let of = |pid: u32, process: &str, thread: &str, caller: EventCaller| EventCaller {
        pid: Some(pid),
        process: process.into(),
        thread: thread.into(),
        ..caller
    };
    let received = ["tcp_v4_rcv [k]", "ip_protocol_deliver_rcu [k]", "ip_local_deliver_finish [k]", "ip_rcv [k]"];
    EventReport {
        event: "skb:kfree_skb".into(),
        count: 5_000,
        per_s: 500.0,
        of_subject: 0.3,
        in_irq: 0.6,
        lost: 12,
        without_stack: 3,
        callers: vec![
            EventCaller { in_irq: true, ..caller("SOCKET_RCVBUFF", 3_000, &received) },
            EventCaller {
                subject: true,
                ..of(811, "relay", "relay-#", caller("NO_SOCKET", 1_500, &["udp_queue_rcv_skb [k]", "sendto", "main"]))
            },
            of(77, "dhcp\u{1b}[2J", "dhcp\u{1b}[2J", caller("NOT_SPECIFIED", 400, &[])),
            caller("NOT_SPECIFIED", 88, &[]),
        ],
    }
}

/// `0 of 4,812 segments retransmitted`.
fn none_of(all: f64, unit: &str, what: &str) -> Figure {
    Figure { of: Some(all), ..figure(0.0, unit, what) }
}

fn ruled(cause: &str, first: Figure) -> RuledOut {
    let mut entry = RuledOut { cause: cause.into(), seen: first.figure > 0.0, first, ..RuledOut::default() };
    entry.why = parshall_core::report::why(&entry);
    entry
}

/// Time that was seen, and was too short.
fn short(cause: &str, first: Figure) -> RuledOut {
    let mut entry = ruled(cause, first);
    entry.because = Some("too short to make a request slow".into());
    entry.why = parshall_core::report::why(&entry);
    entry
}

/// A report about nothing.
pub fn empty() -> Report {
    Report {
        schema: VERDICT_SCHEMA.into(),
        subject: Subject::default(),
        origin: None,
        command: None,
        window_s: 0.0,
        rung: Rung::Procfs,
        blind: Vec::new(),
        verdict: Verdict {
            status: Status::InsufficientEvidence,
            cause: None,
            confidence: Confidence::Low,
            gaps: vec![],
            summary: String::new(),
        },
        service: None,
        services: Vec::new(),
        chain: None,
        findings: Vec::new(),
        ruled_out: Vec::new(),
        not_tested: Vec::new(),
        time: TimeAccount::default(),
        calls: Vec::new(),
        cpus: Vec::new(),
        events: Vec::new(),
        uring: None,
        log: None,
        probe: ProbeReport { observed_share: 1.0, ..ProbeReport::default() },
    }
}

fn nagle() -> Finding {
    Finding {
        cause: "nagle-delayed-ack".into(),
        title: "Small writes wait for a delayed ACK".into(),
        share: 0.986,
        share_of: ShareOf::FlowTime,
        lost_ms: 4903.1,
        lost_share: 0.998,
        tail: false,
        confidence: Confidence::High,
        gaps: vec![],
        summary: "127.0.0.1:56224 → 127.0.0.1:7000 sends 40 B, then 136 B. Nagle holds the 136 B until the 40 B are \
                  acknowledged; the peer has nothing to send yet, and its delayed-ACK timer (40 ms) sends that ACK."
            .into(),
        place: Place {
            pid: Some(4120),
            flow: Some("127.0.0.1:56224->127.0.0.1:7000".into()),
            flows: 12,
            ..Place::default()
        },
        chain: Vec::new(),
        gain: None,
        evidence: vec![
            Evidence {
                what: "bytes held by Nagle while an ACK was outstanding".into(),
                count: Some(223),
                p50_ms: Some(40.12),
                p99_ms: Some(43.9),
                ..Evidence::default()
            },
            Evidence {
                what: "delayed-ACK timers of the peer that fired".into(),
                count: Some(224),
                ..Evidence::default()
            },
            Evidence {
                what: "size of the write that was held".into(),
                value: Some(136.0),
                unit: Some("B".into()),
                ..Evidence::default()
            },
        ],
        fix: Fix {
            text: "Write both parts at once (writev or a buffer), or set TCP_NODELAY on the client's socket.".into(),
            command: Some("parshall try nodelay --port 7000".into()),
            peer: None,
        },
        scaled: false,
    }
}

fn origin(options: &str) -> Option<Origin> {
    Some(Origin {
        time: "2026-11-22T18:51:05.217Z".into(),
        host: "web1".into(),
        kernel: "6.18.5".into(),
        version: "0.1.0".into(),
        root: Some(true),
        command_line: format!("parshall {options}").split(' ').map(str::to_owned).collect(),
    })
}

/// One cause, at a flow.
pub fn cause() -> Report {
    let flows = [
        ("held-by-nagle", "held by Nagle", 0.921),
        ("peer-thinking", "peer thinking", 0.040),
        ("in-flight", "in flight", 0.023),
        ("nothing-to-send", "nothing to send", 0.016),
    ];
    Report {
        subject: Subject {
            pids: vec![4120],
            ports: vec![7000],
            netns: vec![4_026_531_840],
            observer_netns: 4_026_531_840,
            comms: vec!["echo_bench".into()],
        },
        origin: origin("attach --port 7000"),
        window_s: 5.0,
        rung: Rung::Btf,
        verdict: Verdict {
            status: Status::Cause,
            cause: Some("nagle-delayed-ack".into()),
            confidence: Confidence::High,
            gaps: vec![],
            summary: "Each request is written in two parts, and the second waits 40 ms for a delayed ACK; \
                      write it at once or set TCP_NODELAY."
                .into(),
        },
        findings: vec![nagle()],
        ruled_out: vec![
            ruled("packet-loss", none_of(4812.0, "segments", "retransmitted")),
            short("run-queue-latency", figure(0.021, "1", "of the requests' time waiting for a CPU")),
            ruled(
                "cork-held",
                figure(0.0, "1", "of the flows' time with a partial segment held by TCP_CORK or MSG_MORE"),
            ),
            ruled("peer-window-limited", figure(0.0, "1", "of the flows' time with the peer's window full")),
        ],
        time: TimeAccount {
            flows: account(12, 60_000.0, &flows),
            threads: account(2, 10_000.0, &[("idle", "idle", 0.89), ("cpu", "on CPU", 0.11)]),
        },
        probe: ProbeReport { cpu_ms: 45.0, observed_share: 1.0, events: 5_120, ..ProbeReport::default() },
        ..empty()
    }
}

/// The finding of [`thread_cause`].
fn small_buffer() -> Finding {
    let evidence = Evidence {
        what: "receives that returned exactly 8,192 B and left data unread".into(),
        count: Some(1_204_881),
        scaled: true,
        ..Evidence::default()
    };
    let stack = Evidence {
        what: "CPU samples in the kernel".into(),
        value: Some(0.87),
        unit: Some("1".into()),
        stack: [
            "copy_user_generic",
            "_copy_to_iter",
            "__skb_datagram_iter",
            "skb_copy_datagram_iter",
            "tcp_recvmsg_locked",
            "tcp_recvmsg",
            "inet_recvmsg",
            "sock_recvmsg",
            "__sys_recvfrom",
            "relay::copy",
        ]
        .map(String::from)
        .into(),
        ..Evidence::default()
    };
    Finding {
        cause: "small-copy-buffer".into(),
        title: "The relay copies with a small buffer".into(),
        share: 0.71,
        share_of: ShareOf::ThreadTime,
        lost_ms: 7_130.0,
        lost_share: 0.81,
        tail: false,
        confidence: Confidence::Medium,
        gaps: vec![],
        summary:
            "Thread 812 (relay) moves 8,192 B with each pair of recv and send, with more data waiting after each read."
                .into(),
        place: Place { pid: Some(811), tid: Some(812), ..Place::default() },
        chain: Vec::new(),
        gain: None,
        evidence: vec![evidence, stack],
        fix: Fix { text: "Copy with 64 to 256 KiB, or use splice.".into(), ..Fix::default() },
        scaled: true,
    }
}

/// One cause, at a thread, seen in slices, with a second one behind it.
pub fn thread_cause() -> Report {
    let top = small_buffer();
    let mut second = nagle();
    (second.share, second.lost_share) = (0.12, 0.12);
    let threads = [
        ("cpu-kernel", "on CPU in the kernel", 0.86),
        ("cpu-user", "on CPU in user code", 0.12),
        ("idle", "idle", 0.02),
    ];
    Report {
        subject: Subject { pids: vec![811, 812, 813, 814], ports: vec![5201, 5202], ..Subject::default() },
        origin: origin("attach --cgroup /system.slice/relay.service --for 10s --save /var/tmp/relay.json"),
        window_s: 10.0,
        rung: Rung::Btf,
        blind: vec![
            "This host has no hardware counters: cache misses and instructions per cycle are not known.".into(),
        ],
        verdict: Verdict {
            status: Status::Cause,
            cause: Some("small-copy-buffer".into()),
            confidence: Confidence::Medium,
            gaps: vec![],
            summary: "The relay spends its time in system calls of 8 KiB each; give it a larger buffer.".into(),
        },
        findings: vec![top, second],
        ruled_out: vec![ruled("packet-loss", none_of(912_004.0, "segments", "retransmitted"))],
        time: TimeAccount {
            flows: account(
                2,
                20_000.0,
                &[("rx-waiting", "waiting for the local reader", 0.97), ("in-flight", "in flight", 0.03)],
            ),
            threads: account(1, 10_000.0, &threads),
        },
        calls: vec![
            CallReport { bytes: Some(1_024.0), again_share: 0.25, ..call("read", FdKind::Tcp, 118_432.0, 4.1, 0.52) },
            CallReport { bytes: Some(1_024.0), error_share: 0.0001, ..call("write", FdKind::Tcp, 88_824.0, 3.2, 0.31) },
            CallReport { off_cpu_us: 1_250.0, ..call("epoll_wait", FdKind::Anon, 790.5, 1.4, 0.002) },
        ],
        cpus: vec![
            CpuReport {
                cpu: 0,
                user: 0.12,
                system: 0.41,
                softirq: 0.27,
                idle: 0.2,
                packets_per_s: 91_204.0,
                squeezed: 12,
                ..CpuReport::default()
            },
            CpuReport { cpu: 1, user: 0.02, system: 0.01, idle: 0.96, stolen: 0.01, ..CpuReport::default() },
        ],
        events: vec![drops(), EventReport { event: "major-faults".into(), ..EventReport::default() }],
        uring: Some(further::uring_report()),
        log: Some(further::log()),
        probe: ProbeReport {
            cpu_ms: 480.0,
            observed_share: 0.048,
            events: 412_008,
            lost_events: 12,
            missed_events: 0,
            ..ProbeReport::default()
        },
        ..empty()
    }
}

fn hop(process: &str, pids: &[u32], of: u64, share: f64, waits_on: &str, text: &str) -> ChainHop {
    ChainHop {
        process: process.into(),
        pid: pids[0],
        pids: pids.into(),
        thread: process.into(),
        tid: pids[0],
        threads: pids.len() as u64,
        of,
        waits_on: waits_on.into(),
        text: text.into(),
        share,
        stack: Vec::new(),
    }
}

/// A wait that was followed through three processes, thread by thread.
fn lock_hops() -> Vec<ChainHop> {
    let mut hops = vec![
        hop("nginx", &[812], 1, 0.99, "gunicorn", "waits for a reply from 127.0.0.1:8000"),
        hop("gunicorn", &[901, 902], 2, 0.97, "postgres", "waits for a reply from 127.0.0.1:5432"),
        hop(
            "postgres",
            &[950, 951],
            8,
            0.96,
            "postgres",
            "waits in futex (LockAcquire) for a lock, always woken by postgres 940",
        ),
        hop("postgres", &[940], 8, 0.96, "client", "sleeps in recvfrom: its client 127.0.0.1:51234 sends nothing"),
    ];
    hops[3].stack = [
        "schedule [k]",
        "unix_stream_read_generic [k]",
        "__x64_sys_recvfrom [k]",
        "do_syscall_64 [k]",
        "entry_SYSCALL_64_after_hwframe [k]",
        "recv",
        "secure_read",
        "std::vector<int, std::allocator<int> >::push_back",
        "PostgresMain",
    ]
    .map(String::from)
    .into();
    hops
}

/// The finding of [`chain`].
fn lock() -> Finding {
    Finding {
        cause: "lock-contention".into(),
        title: "Requests wait for a lock".into(),
        share: 0.96,
        share_of: ShareOf::RequestTime,
        lost_ms: 382.0,
        lost_share: 0.97,
        tail: false,
        summary: "postgres 950 waits for a lock; postgres 940 holds it and sleeps in recvfrom: \
                  its client 127.0.0.1:51234 sends nothing."
            .into(),
        place: Place { pid: Some(940), tid: Some(940), requests: 205, ..Place::default() },
        chain: lock_hops(),
        gain: None,
        evidence: vec![Evidence {
            what: "requests waiting for a lock".into(),
            count: Some(205),
            mean_ms: Some(382.0),
            max_ms: Some(412.0),
            ..Evidence::default()
        }],
        fix: Fix {
            text: "postgres 940 holds the lock while its client sends nothing: end its transaction sooner. What it does there: \
                   SELECT * FROM pg_stat_activity WHERE pid = 940."
                .into(),
            command: None,
            peer: Some(PeerCommand { command: "parshall attach --pid 940".into(), host: None }),
        },
        ..nagle()
    }
}

/// A wait that was followed through three processes.
pub fn chain() -> Report {
    let finding = lock();
    let leaf = ChainLeaf {
        process: "postgres".into(),
        pid: 940,
        thread: "postgres".into(),
        tid: 940,
        cause: "lock-contention".into(),
        seen: true,
    };
    let service = ServiceReport {
        port: 80,
        address: "127.0.0.1:80".into(),
        transport: "tcp".into(),
        process: "nginx".into(),
        pids: vec![812],
        requests_per_s: 41.0,
        p50_ms: Some(398.0),
        p99_ms: Some(412.0),
        mean_ms: Some(398.4),
        scaled: false,
        outstanding: 16.3,
        time: RequestTime {
            unread: 0.01,
            incomplete: 0.02,
            working: 0.97,
            work: vec![
                share("reply", "waiting for another service", 0.96, 81_500.0),
                share("on-cpu", "on a CPU", 0.01, 81_500.0),
            ],
            ..RequestTime::default()
        },
        ..ServiceReport::default()
    };
    let inner = ServiceReport { port: 5432, process: "postgres".into(), followed: true, ..service.clone() };
    Report {
        subject: Subject { pids: vec![812], ports: vec![80], comms: vec!["nginx".into()], ..Subject::default() },
        verdict: Verdict {
            status: Status::Cause,
            cause: Some("lock-contention".into()),
            confidence: Confidence::High,
            gaps: vec![],
            summary: finding.summary.clone(),
        },
        service: Some(service.clone()),
        services: vec![service, inner],
        chain: Some(Chain { hops: lock_hops(), leaf }),
        findings: vec![finding],
        ruled_out: vec![
            ruled("blocking-disk-io", figure(0.0, "1", "of the requests' time waiting for the disk")),
            ruled("timer-wait", figure(0.0, "1", "of the requests' time waiting for a timer")),
            ruled("user-cpu-bound", figure(0.38, "1", "of the busiest thread's time on a CPU")),
            ruled("packet-loss", none_of(4812.0, "segments", "retransmitted")),
        ],
        ..cause()
    }
}

/// The waits of the slowest requests.
fn finding_of_the_tail(summary: &str, hop: &ChainHop) -> Finding {
    Finding {
        cause: "user-cpu-bound".into(),
        title: "The application computes".into(),
        share: 0.94,
        share_of: ShareOf::RequestTime,
        lost_ms: 98.1,
        lost_share: 0.99,
        tail: true,
        scaled: false,
        confidence: Confidence::High,
        gaps: vec![],
        summary: summary.into(),
        place: Place { pid: Some(77), tid: Some(77), requests: 119, ..Place::default() },
        chain: vec![hop.clone()],
        gain: None,
        evidence: vec![Evidence {
            what: "slowest requests, their whole time".into(),
            count: Some(119),
            mean_ms: Some(104.2),
            ..Evidence::default()
        }],
        fix: Fix {
            text: "Spend less CPU per request, or spread the work over more threads, as far as there are CPUs.".into(),
            ..Fix::default()
        },
    }
}

/// A service whose slowest requests are told apart.
fn service_with_a_tail() -> ServiceReport {
    let slowest = TailReport {
        from_ms: 15.0,
        requests: 119,
        share: 0.042,
        mean_ms: 104.2,
        notable: true,
        time: vec![share("computing", "computing", 0.94, 67_400.0), share("work", "work", 0.06, 67_400.0)],
        behind: "another request, from 127.0.0.1:49750 (redis-cli 5120)".into(),
        cause: Some("user-cpu-bound".into()),
    };
    ServiceReport {
        port: 6379,
        address: "127.0.0.1:6379".into(),
        transport: "tcp".into(),
        process: "redis-server".into(),
        pids: vec![77],
        requests_per_s: 3051.0,
        p50_ms: Some(0.092),
        p99_ms: Some(206.0),
        mean_ms: Some(4.5),
        scaled: true,
        outstanding: 13.7,
        time: RequestTime {
            unread: 0.93,
            working: 0.07,
            work: vec![share("on-cpu", "on a CPU", 0.07, 67_400.0)],
            ..RequestTime::default()
        },
        tail: Some(slowest),
        ..ServiceReport::default()
    }
}

/// The typical request is fast, and the slowest ones wait behind another client's.
pub fn tail() -> Report {
    let summary = "The slowest 4.2 % of the requests (from 15.0 ms; the typical one takes 92 µs) wait behind another request, which \
                   comes from 127.0.0.1:49750 (redis-cli 5120): redis-server 77 is on a CPU for a request, or for those before it, for \
                   98.1 ms. Most of it in keysCommand.";
    let hop = ChainHop {
        process: "redis-server".into(),
        pid: 77,
        thread: "redis-server".into(),
        tid: 77,
        threads: 1,
        of: 1,
        waits_on: "cpu".into(),
        text: "does not read yet: it runs on a CPU".into(),
        share: 0.94,
        ..ChainHop::default()
    };
    let finding = finding_of_the_tail(summary, &hop);
    let service = service_with_a_tail();
    let leaf = ChainLeaf {
        process: "redis-server".into(),
        pid: 77,
        thread: "redis-server".into(),
        tid: 77,
        cause: "user-cpu-bound".into(),
        seen: true,
    };
    Report {
        subject: Subject {
            pids: vec![77],
            ports: vec![6379],
            comms: vec!["redis-server".into()],
            ..Subject::default()
        },
        window_s: 5.0,
        rung: Rung::Btf,
        verdict: Verdict {
            status: Status::Cause,
            cause: Some("user-cpu-bound".into()),
            confidence: Confidence::High,
            gaps: vec![],
            summary: summary.into(),
        },
        service: Some(service.clone()),
        services: vec![service],
        chain: Some(Chain { hops: vec![hop], leaf }),
        findings: vec![finding],
        ruled_out: vec![ruled("run-queue-latency", figure(0.03, "1", "of the requests' time run queue"))],
        probe: ProbeReport { cpu_ms: 61.0, observed_share: 0.184, events: 160_001, ..ProbeReport::default() },
        ..empty()
    }
}

/// Nothing is slow, and a thread is full; a second service is idle.
pub fn at_capacity() -> Report {
    let service = ServiceReport {
        port: 6379,
        address: "127.0.0.1:6379".into(),
        transport: "tcp".into(),
        process: "redis-server".into(),
        pids: vec![77],
        requests_per_s: 82_410.0,
        p50_ms: None,
        p99_ms: None,
        mean_ms: Some(0.51),
        scaled: true,
        outstanding: 46.0,
        time: RequestTime { unread: 0.97, working: 0.03, ..RequestTime::default() },
        ..ServiceReport::default()
    };
    let idle = ServiceReport {
        port: 7000,
        process: "echo".into(),
        pids: vec![78],
        requests_per_s: 0.0,
        unanswered: 2,
        unanswered_longest_ms: 4_800.0,
        ..service.clone()
    };
    Report {
        verdict: Verdict {
            status: Status::AtCapacity,
            cause: None,
            confidence: Confidence::High,
            gaps: vec![],
            summary: "At 82,410 requests/s (p50 510 µs) nothing is slow, and thread 77 (redis-server) is full: on a CPU for 97 % \
                      of the time. Another thread or process that serves is the next step."
                .into(),
        },
        service: Some(service.clone()),
        services: vec![service, idle],
        command: None,
        ..healthy()
    }
}

/// Nothing is wrong.
pub fn healthy() -> Report {
    Report {
        subject: Subject {
            pids: vec![77],
            ports: vec![6379],
            comms: vec!["redis-server".into()],
            ..Subject::default()
        },
        origin: origin("run --for 5s -o report.txt --"),
        command: Some(StartedCommand { pid: 77, name: "redis-server".into(), end: CommandEnd::Running }),
        window_s: 5.0,
        rung: Rung::Btf,
        verdict: Verdict {
            status: Status::Healthy,
            cause: None,
            confidence: Confidence::High,
            gaps: vec![],
            summary: "50 flows answered 41,210 requests and lost 0.4 % of their time; nothing here needs a change."
                .into(),
        },
        ruled_out: vec![
            ruled("packet-loss", none_of(82_420.0, "segments", "retransmitted")),
            ruled("cpu-throttled", none_of(50.0, "quota periods", "throttled")),
        ],
        time: TimeAccount {
            flows: account(
                50,
                250_000.0,
                &[
                    ("idle", "nothing to send", 0.97),
                    ("in-flight", "in flight", 0.026),
                    ("cwnd", "cwnd-limited", 0.0002),
                    ("rx", "waiting for the local reader", 0.0038),
                ],
            ),
            threads: account(5, 25_000.0, &[("idle", "idle", 0.91), ("cpu", "on CPU", 0.09)]),
        },
        probe: ProbeReport { cpu_ms: 61.0, observed_share: 1.0, events: 160_001, ..ProbeReport::default() },
        ..empty()
    }
}

/// Time is lost to several things.
pub fn no_dominant() -> Report {
    let mut first = nagle();
    (first.lost_share, first.share) = (0.24, 0.14);
    let second = Finding {
        cause: "run-queue-latency".into(),
        title: "Threads wait for a CPU".into(),
        lost_share: 0.22,
        tail: false,
        share: 0.12,
        summary: "4 threads of pid 4120 were ready to run and waited, p99 12.4 ms.".into(),
        fix: Fix {
            text: "Give the service more CPU, or run less beside it.".into(),
            command: None,
            peer: Some(PeerCommand { command: "parshall attach --port 7000".into(), host: Some("10.0.0.2".into()) }),
        },
        ..nagle()
    };
    let states = [
        ("a", "in flight", 0.31),
        ("b", "waiting for the local reader", 0.22),
        ("c", "held by Nagle", 0.14),
        ("d", "peer thinking", 0.12),
        ("e", "nothing to send", 0.08),
        ("f", "cwnd-limited", 0.05),
        ("g", "corked", 0.04),
        ("h", "loss recovery", 0.03),
        ("i", "paced", 0.01),
    ];
    Report {
        window_s: 0.5,
        rung: Rung::Tracepoint,
        blind: vec!["The rung tracepoint samples the flows; stalls shorter than 20 ms are not seen.".into()],
        verdict: Verdict {
            status: Status::NoDominantCause,
            cause: None,
            confidence: Confidence::Medium,
            gaps: vec![],
            summary: "A third of the time is lost, and no single cause owns 30 % of it; the two largest are listed."
                .into(),
        },
        findings: vec![first, second],
        not_tested: vec![NotTested {
            cause: "small-copy-buffer".into(),
            why: "no probe saw the calls of the threads".into(),
        }],
        time: TimeAccount { flows: account(1, 500.0, &states), threads: account(4, 2_000.0, &[("idle", "idle", 1.0)]) },
        probe: ProbeReport { cpu_ms: 4.0, observed_share: 1.0, untracked: 3, ..ProbeReport::default() },
        ..empty()
    }
}

/// Too little was seen.
pub fn insufficient() -> Report {
    Report {
        subject: Subject { pids: vec![9], ..Subject::default() },
        origin: origin("run --"),
        command: Some(StartedCommand { pid: 9, name: "curl".into(), end: CommandEnd::Exited { exit_status: 7 } }),
        window_s: 5.0,
        blind: vec![
            "Without BPF nothing is known of single stalls.".into(),
            "Sockets of other users' processes cannot be told apart without root.".into(),
        ],
        verdict: Verdict {
            status: Status::InsufficientEvidence,
            cause: None,
            confidence: Confidence::Low,
            gaps: vec![],
            summary:
                "No flow of the subject moved data within 5.0 s; observe it while it is slow, or for longer (--for 1m)."
                    .into(),
        },
        ..empty()
    }
}

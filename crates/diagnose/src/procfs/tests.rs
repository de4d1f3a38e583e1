//! The whole rung against real sockets and threads on loopback; no privilege needed. Shares are coarse on purpose.
use std::time::{Duration, Instant};

use parshall_evidence::{Capture, FdKind, FlowState, OffCpu, Role, Rung, ThreadRecord};

use crate::subject::{Select, Within};
use crate::testkit::child::{self, Running};
use crate::testkit::session::{self, Never};
use crate::window::Stop;
use parshall_testkit::skip;

fn observed(child: &Running, ms: u64) -> Capture {
    let mut session = session::open(&Select::Pids(vec![child.pid()]), Some(Rung::Procfs));
    let capture = session::window(&mut session, ms, &Never);
    ledgers_sum_up(&capture);
    capture
}

fn ledgers_sum_up(capture: &Capture) {
    for flow in &capture.flows {
        assert_eq!(flow.cells.iter().map(|cell| cell.ns).sum::<u64>(), flow.observed_ns);
        assert_eq!(flow.observed_ns, flow.end_ns - flow.begin_ns);
        assert!(flow.end_ns <= capture.window_ns);
    }
    for thread in &capture.threads {
        let off: u64 = thread.off_cpu.iter().map(|cell| cell.ns).sum();
        assert_eq!(thread.on_cpu_ns + off, thread.observed_ns);
        assert_eq!(thread.observed_ns, thread.end_ns - thread.begin_ns);
    }
}

/// Share of the flow time in a state.
fn share(capture: &Capture, role: Role, state: FlowState) -> f64 {
    let flow = capture.flows.iter().find(|flow| flow.role == role).expect("both ends are the child's");
    let ns: u64 = flow.cells.iter().filter(|cell| cell.state == state).map(|cell| cell.ns).sum();
    ns as f64 / flow.observed_ns as f64
}

fn thread<'a>(capture: &'a Capture, name: &str) -> &'a ThreadRecord {
    capture.threads.iter().find(|thread| thread.comm == name).expect("the child names its threads")
}

fn off_share(thread: &ThreadRecord, why: OffCpu, call: &str) -> f64 {
    let ns: u64 = thread.off_cpu.iter().filter(|c| c.why == why && c.syscall_name == call).map(|c| c.ns).sum();
    ns as f64 / thread.observed_ns as f64
}

#[test]
fn write_write_read_is_held_by_nagle() {
    let child = child::start("nagle");
    // A hold is a stall when two samples fall into its 40 ms: on a busy host few do.
    let capture = observed(&child, 4000);
    assert_eq!(capture.flows.len(), 2, "{:?}", capture.flows);
    let held = share(&capture, Role::Client, FlowState::Nagle);
    assert!(held > 0.6, "held {held}: {:?}", capture.flows);
    assert!(share(&capture, Role::Server, FlowState::Nagle) < 0.2);
    let stalls: Vec<_> = capture.flow_stalls.iter().filter(|stall| stall.state == FlowState::Nagle).collect();
    assert!(!stalls.is_empty(), "{capture:#?}");
    assert!(stalls.iter().all(|stall| stall.unsent_bytes == 136 && stall.packets_out == 1), "{stalls:?}");
    let client = capture.flows.iter().find(|flow| flow.role == Role::Client).expect("checked above");
    assert!(client.last.bytes_acked > client.first.bytes_acked);
    assert_eq!(client.pid, child.pid());
}

#[test]
fn a_slow_reader_shows_on_both_ends() {
    let child = child::start("slow-reader");
    let capture = observed(&child, 1000);
    let unread = share(&capture, Role::Server, FlowState::RxWaiting);
    assert!(unread > 0.8, "unread {unread}: {:?}", capture.flows);
    let window = share(&capture, Role::Client, FlowState::PeerWindow);
    assert!(window > 0.5, "window {window}: {:?}", capture.flows);
}

#[test]
fn threads_by_what_they_do() {
    let child = child::start("threads");
    let capture = observed(&child, 1000);
    let spins = thread(&capture, "spins");
    let waits: u64 = spins.off_cpu.iter().filter(|c| c.why != OffCpu::Blocked).map(|c| c.ns).sum();
    assert!((spins.on_cpu_ns + waits) as f64 > 0.9 * spins.observed_ns as f64, "{spins:?}");
    let pipes = thread(&capture, "pipes");
    if capture.blind.iter().any(|sentence| sentence.contains("guessed")) {
        return skip("what sleeping threads wait for, by /proc", "/proc/PID/syscall cannot be read");
    }
    assert!(off_share(pipes, OffCpu::Blocked, "read") > 0.95, "{pipes:?}");
    assert!(pipes.off_cpu.iter().any(|cell| cell.fd == FdKind::Pipe));
    let naps = thread(&capture, "naps");
    // The rest of its time it waits for a CPU, where the host is busy.
    let blocked = naps.off_cpu.iter().filter(|cell| cell.why == OffCpu::Blocked);
    let (naps_ns, blocked_ns) = blocked.fold((0, 0), |(naps, all), cell| {
        (naps + if cell.syscall_name == "clock_nanosleep" { cell.ns } else { 0 }, all + cell.ns)
    });
    assert!(naps_ns > 0 && naps_ns as f64 > 0.95 * blocked_ns as f64, "{naps:?}");
    let udp = |thread: &&ThreadRecord| thread.off_cpu.iter().any(|cell| cell.fd == FdKind::Udp);
    assert!(capture.threads.iter().any(|thread| udp(&thread)), "{:?}", capture.threads);
}

#[test]
fn an_exit_ends_the_window_early() {
    let mut child = child::start("idle");
    let mut session = session::open(&Select::Pids(vec![child.pid()]), Some(Rung::Procfs));
    let ender = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(300));
        child.end();
    });
    let capture = session::window(&mut session, 30_000, &Never);
    ender.join().expect("it only sleeps");
    assert!(capture.window_ns < 10_000_000_000);
    ledgers_sum_up(&capture);
    assert!(!capture.threads.is_empty());
}

/// The user stops it a moment after this time.
struct After(Instant);

impl Stop for After {
    fn requested(&self) -> bool {
        Instant::now() > self.0
    }

    fn subject_gone(&self) -> bool {
        false
    }
}

#[test]
fn the_user_may_stop_it() {
    let child = child::start("idle");
    let mut session = session::open(&Select::Ports(vec![child.port], Within::Own), Some(Rung::Procfs));
    let stop = After(Instant::now() + Duration::from_millis(200));
    let capture = session::window(&mut session, 30_000, &stop);
    assert!(capture.window_ns < 10_000_000_000);
    assert_eq!(capture.flows.len(), 2);
    ledgers_sum_up(&capture);
}

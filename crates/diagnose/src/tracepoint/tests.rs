//! The whole rung against a real child. Needs root and tracefs; says so when it is skipped.
use parshall_evidence::{Capture, FdKind, FlowState, OffCpu, Rung, ThreadRecord};

use crate::subject::Select;
use crate::testkit::child::{self, Running};
use crate::testkit::session::{self, Never};
use parshall_testkit::skip;

/// None when this host does not allow it.
fn observed(child: &Running, ms: u64) -> Option<Capture> {
    let _turn = session::turn();
    let mut session = session::open(&Select::Pids(vec![child.pid()]), Some(Rung::Tracepoint));
    let capture = session::window(&mut session, ms, &Never);
    if capture.rung != Rung::Tracepoint {
        skip("the tracepoint rung on a real process", &capture.blind.join("; "));
        return None;
    }
    Some(capture)
}

fn thread<'a>(capture: &'a Capture, name: &str) -> &'a ThreadRecord {
    capture.threads.iter().find(|thread| thread.comm == name).expect("the child names its threads")
}

/// The share of the time that a thread was in a call and off the CPU. On a busy host it waits for a CPU at the end of each sleep.
fn off_share(thread: &ThreadRecord, call: &str) -> f64 {
    let ns: u64 = thread.off_cpu.iter().filter(|c| c.syscall_name == call).map(|c| c.ns).sum();
    ns as f64 / thread.observed_ns as f64
}

#[test]
fn threads_sum_up_to_the_wall_time() {
    let child = child::start("threads");
    let Some(capture) = observed(&child, 1000) else { return };
    assert!(capture.threads.len() >= 4, "{:?}", capture.threads);
    for thread in &capture.threads {
        let off: u64 = thread.off_cpu.iter().map(|cell| cell.ns).sum();
        assert_eq!(thread.on_cpu_ns + off, thread.observed_ns);
        let wall =
            (thread.end_ns - thread.begin_ns) as f64 * capture.slices.observed_ns as f64 / capture.window_ns as f64;
        let error = (thread.observed_ns as f64 - wall).abs() / wall;
        assert!(error < 0.01, "{error}: {thread:?} {:?}", capture.slices);
    }
    let pipes = thread(&capture, "pipes");
    assert!(off_share(pipes, "read") > 0.95, "{pipes:?}");
    assert!(pipes.off_cpu.iter().any(|cell| cell.fd == FdKind::Pipe), "{pipes:?}");
    let naps = thread(&capture, "naps");
    assert!(off_share(naps, "clock_nanosleep") > 0.6, "{naps:?}");
    let calls = naps.syscalls.iter().find(|call| call.name == "clock_nanosleep").expect("it naps");
    assert!(calls.count > 5 && calls.off_cpu_ns > calls.on_cpu_ns, "{calls:?}");
    let spins = thread(&capture, "spins");
    let waits: u64 = spins.off_cpu.iter().filter(|c| c.why != OffCpu::Blocked).map(|c| c.ns).sum();
    assert!((spins.on_cpu_ns + waits) as f64 > 0.97 * spins.observed_ns as f64, "{spins:?}");
    // How many depends on the CPU time that it gets.
    assert!(spins.samples_user > 0 || spins.on_cpu_ns < 100_000_000, "{spins:?}");
    let nap = capture.thread_stalls.iter().filter(|stall| stall.tid == naps.tid && stall.why == OffCpu::Blocked);
    let stacks: Vec<_> = nap.filter_map(|stall| stall.stack).collect();
    assert!(stacks.len() > 3, "naps of 3 ms are reported with their stacks");
    let whole = |stack: &&u32| {
        let frames = &capture.stacks[**stack as usize].frames;
        frames.iter().any(|f| f.kernel) && frames.iter().any(|f| !f.kernel)
    };
    assert!(stacks.iter().any(|stack| whole(&stack)), "{:?}", capture.stacks);
}

#[test]
fn flows_are_sampled_and_calls_counted() {
    let child = child::start("nagle");
    let Some(capture) = observed(&child, 1000) else { return };
    assert_eq!(capture.flows.len(), 2, "{:?}", capture.flows);
    let held: u64 =
        capture.flows.iter().flat_map(|f| &f.cells).filter(|c| c.state == FlowState::Nagle).map(|c| c.ns).sum();
    assert!(held as f64 > 0.6 * capture.window_ns as f64, "{:?}", capture.flows);
    let calls: Vec<_> = capture.threads.iter().flat_map(|t| &t.syscalls).filter(|c| c.fd == FdKind::Tcp).collect();
    let bytes = |name: &str| calls.iter().filter(|c| c.name == name).map(|c| c.bytes).sum::<u64>();
    // About 20 rounds a second, of which a busy host shows those of the slices.
    let rounds = (8.0 * capture.slices.observed_ns as f64 / capture.window_ns as f64) as u64;
    assert!(bytes("sendto") + bytes("write") >= rounds * (40 + 136), "{rounds}: {calls:?}");
    assert!(bytes("recvfrom") + bytes("read") >= rounds * 100, "{rounds}: {calls:?}");
}

#[test]
fn everything_is_detached_when_it_is_over() {
    let held = || {
        let links = std::fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
        let links = links.filter_map(|entry| std::fs::read_link(entry.path()).ok());
        links.filter(|link| ["bpf", "perf_event"].iter().any(|kind| link.to_string_lossy().contains(kind))).count()
    };
    let child = child::start("idle");
    if observed(&child, 200).is_none() {
        return;
    }
    let _turn = session::turn();
    assert_eq!(held(), 0);
}

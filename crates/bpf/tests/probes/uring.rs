//! Requests to io_uring: what became of each, by opcode, and what waits are for.
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixDatagram;
use std::sync::MutexGuard;
use std::time::Duration;

use parshall_bpf::clock::monotonic_ns;
use parshall_bpf::diagnose::Observed;
use parshall_bpf::diagnose::uring::{Cell, Request, Seen, Uring, opcode_name};
use parshall_sys::uring::{Completion, Ring, Sizes};
use parshall_testkit::{root, skip};

use super::probed::alone;

const SIZES: Sizes = Sizes { requests: 8, completions: 64, groups: 1, buffers: 4, buffer_bytes: 4096 };
const WINDOW_NS: u64 = 5_000_000_000;

/// The turn to hold programs, a ring and the programs; None where they cannot be had, which is reported.
fn opened(what: &str) -> Option<(MutexGuard<'static, ()>, Ring, Uring)> {
    if !root(what) {
        return None;
    }
    let turn = alone();
    let Ok(ring) = Ring::open(SIZES) else {
        skip(what, "io_uring is not permitted here, or older than Linux 6.1");
        return None;
    };
    Some((turn, ring, Uring::load(true).unwrap()))
}

fn own() -> Observed {
    Observed { pids: vec![std::process::id()], all: false }
}

fn until_all(ring: &mut Ring) -> Vec<Completion> {
    let mut seen = Vec::new();
    ring.enter(Some(Duration::from_millis(50))).unwrap();
    ring.reap(&mut seen);
    seen
}

/// The kernel may still cancel what the thread of a test before has requested.
fn own_tid() -> u32 {
    rustix::thread::gettid().as_raw_pid() as u32
}

fn cell<'s>(seen: &'s Seen, opcode: &str) -> &'s Cell {
    let found = seen.cells.iter().find(|cell| cell.tid == own_tid() && opcode_name(cell.opcode) == opcode);
    found.unwrap_or_else(|| panic!("no {opcode} in {:?}", seen.cells))
}

/// Receives `messages`, and cancels the receive or leaves it outstanding.
fn receives(ring: &mut Ring, messages: usize, cancels: bool) {
    let (a, b) = UnixDatagram::pair().unwrap();
    let request = ring.recv_messages(b.as_raw_fd(), 0, 17);
    // Nothing has come: it waits until its time is over.
    assert!(until_all(ring).is_empty());
    let mut held = Vec::new();
    for _ in 0..messages {
        a.send(b"message").unwrap();
        held.extend(until_all(ring).into_iter().filter_map(|done| done.chunk));
        ring.recycle(held.drain(..));
        ring.publish();
    }
    if cancels {
        ring.cancel(request);
        assert_eq!(until_all(ring).first().map(|done| done.result), Some(-libc::ECANCELED));
    }
    std::mem::forget((a, b));
}

#[test]
fn completions_count_by_opcode_and_error() {
    let Some((_turn, mut ring, mut uring)) = opened("requests to io_uring by opcode") else { return };
    let before = monotonic_ns();
    uring.begin(&own(), WINDOW_NS).unwrap();
    receives(&mut ring, 3, true);
    uring.stop();
    receives(&mut ring, 1, true);
    let (seen, took_ns) = uring.end();
    let receive = cell(&seen, "recv");
    assert_eq!(
        (receive.tgid, receive.counts.submitted, receive.counts.completed),
        (std::process::id(), 1, 4),
        "{seen:?}"
    );
    assert_eq!((receive.counts.timed, receive.outstanding), (1, 0));
    assert_eq!(receive.errors, [(libc::ECANCELED, 1)]);
    assert!(receive.counts.polls >= 1 && receive.counts.longest_ns >= 40_000_000, "{receive:?}");
    assert_eq!(cell(&seen, "async_cancel").counts.submitted, 1);
    let of_receives = |request: &&Request| request.tid == own_tid() && opcode_name(request.opcode) == "recv";
    let request = seen.requests.iter().find(of_receives).unwrap();
    assert!(request.begin >= before && request.end.is_some_and(|end| end <= monotonic_ns()), "{request:?}");
    assert_eq!((request.res, request.polled, request.worker), (-libc::ECANCELED, true, false));
    assert_eq!((seen.left_out, seen.lost, seen.absent.len()), (0, 0, 0));
    assert!(took_ns > 0);
}

#[test]
fn a_wait_has_what_is_outstanding_and_so_has_the_end() {
    let Some((_turn, mut ring, mut uring)) = opened("waits in io_uring_enter") else { return };
    for window in 0..2 {
        uring.begin(&own(), WINDOW_NS).unwrap();
        receives(&mut ring, window, false);
        let (seen, _) = uring.end();
        let receive = cell(&seen, "recv");
        assert_eq!((receive.outstanding, receive.counts.timed), (1, 0), "window {window}: {receive:?}");
        assert_eq!(receive.counts.completed, window as u64, "those of requests from before are none of this window");
        assert_eq!(seen.requests.iter().filter(|request| request.tid == own_tid() && request.end.is_none()).count(), 1);
        let waits: Vec<_> = seen.waits.iter().filter(|waits| waits.tid == own_tid()).collect();
        let names: Vec<String> = waits[0].opcodes.iter().map(|opcode| opcode_name(*opcode)).collect();
        // A message that has come before is not waited for.
        assert_eq!((names, waits[0].count), (vec!["recv".to_owned()], 1), "{waits:?}");
    }
}

#[test]
fn who_is_not_observed_is_not_followed() {
    let Some((_turn, mut ring, mut uring)) = opened("io_uring of another process") else { return };
    uring.begin(&Observed { pids: vec![1], all: false }, WINDOW_NS).unwrap();
    receives(&mut ring, 2, true);
    let (seen, _) = uring.end();
    assert!(seen.cells.iter().all(|cell| cell.tgid != std::process::id()), "{:?}", seen.cells);
    assert!(seen.waits.is_empty() && seen.requests.is_empty());
}

#[test]
fn a_busy_ring_has_records_of_the_whole_window() {
    let Some((_turn, mut ring, mut uring)) = opened("many requests to io_uring") else { return };
    // Of an hour: few in each tick.
    uring.begin(&own(), 3_600_000_000_000).unwrap();
    let (a, b) = UnixDatagram::pair().unwrap();
    b.set_nonblocking(true).unwrap();
    for _ in 0..250 {
        for _ in 0..SIZES.requests {
            ring.send_buffer(a.as_raw_fd(), vec![1; 10], 3);
        }
        let mut left = SIZES.requests as usize;
        while left > 0 {
            left -= until_all(&mut ring).len();
        }
        while b.recv(&mut [0; 10]).is_ok() {}
    }
    let (seen, _) = uring.end();
    let sends = cell(&seen, "send");
    assert_eq!((sends.counts.completed, sends.counts.timed), (2_000, 2_000));
    let recorded = seen.requests.iter().filter(|request| request.tid == own_tid()).count() as u64;
    assert!(recorded > 0 && seen.left_out > 0 && recorded + seen.left_out == 2_000, "{recorded} and {}", seen.left_out);
}

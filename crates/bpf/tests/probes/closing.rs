//! Connections that are closed with something left to send.
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use parshall_bpf::diagnose::lifecycle::FlowDump;
use parshall_bpf::diagnose::{Config, Event, Probes};
use parshall_evidence::FlowState;
use socket2::{SockFilter, SockRef};

use crate::probed::{Talker, alone, end_with_parent, ready};

/// For so long, a client does not read.
const AWAY: Duration = Duration::from_millis(200);
/// For so long, nothing reaches a client that reads again. The kernel mostly retransmits earlier.
const LOST: Duration = Duration::from_millis(400);
const CLOSED_MIN: usize = 3;
const SNDBUF: usize = 16_384;

/// The place of `tcpi_unacked` in `struct tcp_info` (linux/tcp.h).
const UNACKED: std::ops::Range<usize> = 24..28;

/// The instruction of a socket's filter that drops each packet: return 0 (linux/filter.h).
const DROP: SockFilter = SockFilter::new(0x06, 0, 0, 0);

/// Segments under way.
fn unacked(socket: &TcpStream) -> u32 {
    let info = parshall_sys::tcp_info::tcp_info(socket.as_raw_fd()).unwrap();
    u32::from_ne_bytes(info[UNACKED].try_into().unwrap())
}

/// Fills the buffer until the client's window is shut: all that was sent has been acknowledged, and the buffer has no room for more.
fn shut_window(server: &mut TcpStream) {
    // What is left fits into the window when that opens.
    SockRef::from(&*server).set_send_buffer_size(SNDBUF).unwrap();
    server.set_nonblocking(true).unwrap();
    loop {
        let arrived = unacked(server) == 0;
        let wrote = std::iter::from_fn(|| server.write(&[7; 4096]).ok()).count();
        if arrived && wrote == 0 {
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A server closes each connection when its buffer is full, and the client takes what is left later. Where `TALK` is `lost`, what the
/// server then sends does not arrive at first.
#[test]
#[ignore = "not a test: the body of the child process"]
fn closes_early() {
    let Ok(role) = std::env::var("TALK") else {
        return;
    };
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    end_with_parent();
    println!("talking");
    loop {
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut server, _) = listener.accept().unwrap();
        shut_window(&mut server);
        drop(server);
        std::thread::sleep(AWAY);
        if role == "lost" {
            SockRef::from(&client).attach_filter(&[DROP]).unwrap();
            client.set_nonblocking(true).unwrap();
            while client.read(&mut [0; 65_536]).is_ok() {}
            std::thread::sleep(LOST);
            SockRef::from(&client).detach_filter().unwrap();
            client.set_nonblocking(false).unwrap();
        }
        client.read_to_end(&mut Vec::new()).unwrap();
    }
}

/// `CLOSED_MIN` connections that `closes_early` closed and that `counts` holds for.
fn closed_connections(role: &str, as_older: bool, counts: impl Fn(&FlowDump) -> bool) -> Vec<FlowDump> {
    let talker = Talker::start_as("closing::closes_early", role);
    let mut probes = Probes::load(&Config { as_older, ..talker.config(64) }).unwrap();
    probes.attach_always().unwrap();
    probes.begin_slice().unwrap();
    let (mut closed, mut events) = (Vec::new(), Vec::new());
    let give_up = Instant::now() + Duration::from_secs(60);
    // The first one may have been closed before the slice began.
    while closed.len() < CLOSED_MIN + 1 {
        assert!(Instant::now() < give_up, "older {as_older}: {} connections", closed.len());
        std::thread::sleep(Duration::from_millis(10));
        while probes.drain(&mut events) {}
        // Of those that were seen from their begin on.
        closed.extend(events.drain(..).filter_map(|event| match event {
            Event::FlowEnd(flow) if flow.calls().sends > 2 && flow.calls().send_bytes > 65_536 => Some(*flow),
            _ => None,
        }));
        closed.retain(&counts);
    }
    closed.split_off(1)
}

/// The time of a flow in some states.
fn time_in(flow: &FlowDump, states: &[FlowState]) -> Duration {
    Duration::from_nanos(flow.cells().iter().filter(|cell| states.contains(&cell.state)).map(|cell| cell.ns).sum())
}

#[test]
fn what_is_left_to_send_is_accounted_for() {
    if !ready("connections that are closed early") {
        return;
    }
    let _alone = alone();
    for as_older in [false, true] {
        for flow in closed_connections("late", as_older, |_| true) {
            let held = time_in(&flow, &[FlowState::PeerWindow]);
            assert!(held >= AWAY, "older {as_older}: {held:?}");
        }
    }
}

/// The retransmission is the first event after the close. Until then the window counts as shut, as it was last seen.
#[test]
fn a_retransmission_leaves_the_time_before_it_as_it_was() {
    if !ready("retransmissions of connections that are closed early") {
        return;
    }
    let _alone = alone();
    for as_older in [false, true] {
        // On a busy host the kernel may retransmit when packets arrive again: then the first one is the only one.
        let while_lost = |flow: &FlowDump| flow.snap.total_retrans >= 2;
        for flow in closed_connections("lost", as_older, while_lost) {
            let held = time_in(&flow, &[FlowState::PeerWindow]);
            let sent = time_in(&flow, &[FlowState::InFlight, FlowState::Loss, FlowState::Recovery]);
            assert!(held >= AWAY && sent >= LOST / 4, "older {as_older}: {held:?} and {sent:?}");
        }
    }
}

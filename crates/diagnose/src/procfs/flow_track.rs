//! Turns the samples of one flow over the window into cells and stalls. No I/O.
//!
//! If two successive samples differ, the time between them is split in the middle. A run is a series of samples with the same
//! state and the same byte counters of the socket. A run of at least two samples that is long enough is a stall.
use std::collections::BTreeMap;
use std::net::SocketAddr;

use parshall_core::sock_diag::SocketId;
use parshall_evidence::{
    FlowCalls, FlowCell, FlowRecord, FlowStall, FlowState, Release, Role, STALL_MIN_NS, TcpSnapshot,
};
use parshall_host::tcp_diag::TcpSocket;

use super::flow_state::{self, Context, NONAGLE_UNKNOWN};

/// A flow that is being observed.
#[derive(Debug, Clone)]
pub struct Track {
    /// The identity of the socket in SOCK_DIAG.
    pub id: SocketId,
    /// Inode of the socket; 0 until it is accepted.
    pub inode: u64,
    /// Inode of its network namespace.
    pub netns: u64,
    /// Pid of its owner, 0 if unknown.
    pub pid: u32,
    /// Its descriptor in that process, -1 if unknown.
    pub fd: i32,
    role: Role,
    local: SocketAddr,
    remote: SocketAddr,
    begin_ns: u64,
    seen_ns: u64,
    ended: bool,
    run: Run,
    cells: BTreeMap<(FlowState, Release), (u64, u64)>,
    first: TcpSnapshot,
    last: TcpSnapshot,
    nonagle: u8,
    userlocks: u8,
}

#[derive(Debug, Clone)]
struct Run {
    state: FlowState,
    progress: Progress,
    begin_ns: u64,
    samples: u32,
}

/// Byte counters and queue lengths, which do not change during a stall.
type Progress = (u64, u64, u32, u32, u32);

fn progress(socket: &TcpSocket) -> Progress {
    let r = &socket.record;
    (r.bytes_acked, r.bytes_received, r.notsent_bytes, r.rqueue_bytes, r.wqueue_bytes)
}

impl Track {
    /// Starts with the first sample, at `at_ns`. The flow counts as existing since `begin_ns`, and one that was there before the window
    /// (0) has done before it what the sample shows.
    pub fn new(socket: &TcpSocket, netns: u64, owner: (u32, i32), role: Role, begin_ns: u64, at_ns: u64) -> Self {
        let context = Context { nonagle: NONAGLE_UNKNOWN, role, sndbuf_limited: false };
        let last = flow_state::snapshot(socket, at_ns);
        let opened = TcpSnapshot { at_ns, mss: last.mss, nonagle: last.nonagle, ..TcpSnapshot::default() };
        Self {
            id: socket.id(),
            inode: u64::from(socket.record.inode),
            netns,
            pid: owner.0,
            fd: owner.1,
            role,
            local: socket.local(),
            remote: socket.remote(),
            begin_ns,
            seen_ns: at_ns,
            ended: false,
            run: Run {
                state: flow_state::classify(socket, &context),
                progress: progress(socket),
                begin_ns,
                samples: 1,
            },
            cells: BTreeMap::new(),
            first: if begin_ns == 0 { last } else { opened },
            last,
            nonagle: NONAGLE_UNKNOWN,
            userlocks: 0,
        }
    }

    /// The time of the last sample that had the socket.
    pub fn seen_ns(&self) -> u64 {
        self.seen_ns
    }

    /// Sets options that were read from the socket itself: TCP_NODELAY and TCP_CORK (`nonagle`), and fixed buffer sizes
    /// (`userlocks`).
    pub fn set_options(&mut self, nonagle: u8, userlocks: u8) {
        if self.nonagle == NONAGLE_UNKNOWN {
            self.first.nonagle = nonagle;
            self.first.userlocks = userlocks;
        }
        (self.nonagle, self.userlocks) = (nonagle, userlocks);
    }

    /// Adds a sample.
    pub fn update(&mut self, socket: &TcpSocket, at_ns: u64, stalls: &mut Vec<FlowStall>) {
        let sndbuf_limited = socket.record.sndbuf_limited_us > self.last.sndbuf_limited_us;
        let state = flow_state::classify(socket, &Context { nonagle: self.nonagle, role: self.role, sndbuf_limited });
        let progress = progress(socket);
        if socket.record.inode != 0 {
            self.inode = u64::from(socket.record.inode);
        }
        if state == self.run.state && progress == self.run.progress {
            self.run.samples += 1;
        } else {
            let boundary = self.seen_ns + (at_ns - self.seen_ns) / 2;
            self.close_run(boundary, Release::Sampled, stalls);
            self.run = Run { state, progress, begin_ns: boundary, samples: 1 };
        }
        self.seen_ns = at_ns;
        self.last = flow_state::snapshot(socket, at_ns);
    }

    /// Ends the flow, whose socket was missing in the sample at `at_ns`. One sample by itself tells a moment, and not what the time around
    /// it was spent on.
    pub fn gone(&mut self, at_ns: u64, stalls: &mut Vec<FlowStall>) {
        if self.last.at_ns == self.first.at_ns {
            self.run.state = FlowState::Other;
        }
        let boundary = self.seen_ns + at_ns.saturating_sub(self.seen_ns) / 2;
        self.close_run(boundary, Release::Close, stalls);
        self.seen_ns = boundary;
        self.ended = true;
    }

    fn close_run(&mut self, end_ns: u64, release: Release, stalls: &mut Vec<FlowStall>) {
        let ns = end_ns.saturating_sub(self.run.begin_ns);
        let cell = self.cells.entry((self.run.state, release)).or_default();
        cell.0 += ns;
        cell.1 += 1;
        if self.run.samples >= 2 && ns >= STALL_MIN_NS {
            stalls.push(FlowStall {
                flow: self.id.cookie,
                begin_ns: self.run.begin_ns,
                ns,
                state: self.run.state,
                release,
                tid: 0,
                unsent_bytes: self.last.unsent_bytes,
                packets_out: self.last.packets_out,
                unread_bytes: self.last.unread_bytes,
                snd_wnd: self.last.snd_wnd,
                cwnd: self.last.cwnd,
            });
        }
    }

    /// Closes the ledger at the end of the window, `end_ns`.
    pub fn finish(mut self, end_ns: u64, stalls: &mut Vec<FlowStall>) -> FlowRecord {
        if !self.ended {
            self.close_run(end_ns.max(self.seen_ns), Release::Cut, stalls);
            self.seen_ns = end_ns.max(self.seen_ns);
        }
        (self.last.nonagle, self.last.userlocks) = (self.nonagle, self.userlocks);
        let cell = |((state, release), (ns, count))| FlowCell { state, release, ns, count };
        FlowRecord {
            id: self.id.cookie,
            local: self.local,
            remote: self.remote,
            netns: self.netns,
            pid: self.pid,
            last_tid: 0,
            role: self.role,
            begin_ns: self.begin_ns,
            end_ns: self.seen_ns,
            observed_ns: self.seen_ns.saturating_sub(self.begin_ns),
            cells: self.cells.into_iter().map(cell).collect(),
            calls: FlowCalls::default(),
            first: self.first,
            last: self.last,
            merged: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::procfs::flow_state::tests::socket;

    const MS: u64 = 1_000_000;

    fn unread(bytes: u32) -> TcpSocket {
        socket(|r| r.rqueue_bytes = bytes)
    }

    fn sum(record: &FlowRecord) -> u64 {
        record.cells.iter().map(|cell| cell.ns).sum()
    }

    #[test]
    fn runs_become_cells_and_stalls_that_sum_to_the_window() {
        let mut stalls = Vec::new();
        let mut track = Track::new(&unread(0), 1, (5, 3), Role::Server, 0, 0);
        for (at, bytes) in [(5, 0), (10, 8), (15, 8), (20, 8), (25, 9), (30, 0)] {
            track.update(&unread(bytes), at * MS, &mut stalls);
        }
        let record = track.finish(40 * MS, &mut stalls);
        assert_eq!(record.observed_ns, 40 * MS);
        assert_eq!(sum(&record), 40 * MS);
        // 7.5 ms idle, 15 ms with 8 bytes, 5 ms with 9 (one sample: no stall), 12.5 ms idle (one sample).
        let brief: Vec<_> = stalls.iter().map(|s| (s.state, s.begin_ns, s.ns, s.unread_bytes)).collect();
        assert_eq!(
            brief,
            [(FlowState::IdleAfterRecv, 0, 15 * MS / 2, 0), (FlowState::RxWaiting, 15 * MS / 2, 15 * MS, 8),]
        );
    }

    #[test]
    fn a_closed_flow_ends_in_the_middle_between_two_samples() {
        let mut stalls = Vec::new();
        let mut track = Track::new(&unread(0), 1, (5, 3), Role::Client, 10 * MS, 10 * MS);
        track.update(&unread(0), 20 * MS, &mut stalls);
        track.gone(30 * MS, &mut stalls);
        assert!(track.ended);
        let record = track.finish(99 * MS, &mut stalls);
        assert_eq!((record.begin_ns, record.end_ns, record.observed_ns), (10 * MS, 25 * MS, 15 * MS));
        assert_eq!(sum(&record), record.observed_ns);
        assert_eq!(record.cells[0].release, Release::Close);
    }

    #[test]
    fn a_flow_that_one_sample_saw_has_done_all_that_it_shows_if_it_was_opened_in_the_window() {
        let received = socket(|r| r.bytes_received = 300);
        for (begin_ns, expected) in [(0, 0), (10 * MS, 300)] {
            let mut track = Track::new(&received, 1, (5, 3), Role::Server, begin_ns, 10 * MS);
            track.gone(20 * MS, &mut Vec::new());
            let record = track.finish(99 * MS, &mut Vec::new());
            assert_eq!(record.received_bytes(), expected);
            let states: Vec<FlowState> = record.cells.iter().map(|cell| cell.state).collect();
            assert_eq!(states, [FlowState::Other], "what a moment shows is not what the time was spent on");
        }
    }

    #[test]
    fn options_reach_both_snapshots() {
        let mut stalls = Vec::new();
        let mut track = Track::new(&unread(0), 1, (5, 3), Role::Client, 0, 0);
        track.set_options(0, 2);
        track.update(&unread(0), MS, &mut stalls);
        track.set_options(1, 2);
        let record = track.finish(2 * MS, &mut stalls);
        assert_eq!((record.first.nonagle, record.last.nonagle, record.last.userlocks), (0, 1, 2));
    }
}

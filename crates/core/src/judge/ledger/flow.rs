//! The flow ledger: a flow's wall time, split into states that exclude each other.
use std::collections::BTreeMap;

use parshall_evidence::{FlowRecord, FlowStall, FlowState, Release, STALL_MIN_NS};

use super::flow_rules::{Context, remainder};
pub use super::flow_state::State;
use crate::stats::ratio;

/// One interval, or many short ones of the same kind, in one state.
#[derive(Debug, Clone, PartialEq)]
pub struct Interval {
    /// The state.
    pub state: State,
    /// The event that ended it.
    pub release: Release,
    /// Time in this state, scaled to the wall time of the flow.
    pub ns: f64,
    /// How many intervals (in the observed time).
    pub count: u64,
    /// Begin and length on the clock of the capture, when it travelled as a stall of its own.
    pub span: Option<(u64, u64)>,
    /// It (or the mean of many) lasted at least [`STALL_MIN_NS`].
    pub long: bool,
    /// The thread that ended it, 0 when unknown.
    pub tid: u32,
    /// Index of the stall in the capture.
    pub stall: Option<usize>,
}

impl Interval {
    /// Length of one interval in nanoseconds of the clock, the mean when it stands for many.
    pub fn each_ns(&self, scale: f64) -> f64 {
        match self.span {
            Some((_, ns)) => ns as f64,
            None => ratio(self.ns, scale * self.count.max(1) as f64),
        }
    }
}

/// One flow's account.
#[derive(Debug, Clone, PartialEq)]
pub struct FlowLedger {
    /// Wall time of the flow.
    pub wall_ns: f64,
    /// Time by state, in the order of [`State::ALL`]; sums to `wall_ns`.
    pub ns: [f64; State::N],
    /// The pieces of it.
    pub intervals: Vec<Interval>,
    /// Factor from observed to wall time.
    pub scale: f64,
    /// Only part of the wall time was observed, and the account was scaled.
    pub scaled: bool,
    /// The rules' view of the flow.
    pub context: Context,
}

impl FlowLedger {
    /// Builds the account of `flow`; `stalls` are its own, with their index in the capture.
    pub fn new(flow: &FlowRecord, stalls: &[(usize, &FlowStall)]) -> FlowLedger {
        let own: Vec<&FlowStall> = stalls.iter().map(|(_, s)| *s).collect();
        let context = Context::new(flow, &own);
        let wall_ns = flow.wall_ns() as f64;
        let cells_ns: f64 = flow.cells.iter().map(|c| c.ns as f64).sum();
        let observed = cells_ns.max(flow.observed_ns as f64);
        let scale = ratio(wall_ns, observed);
        let mut ledger = FlowLedger {
            wall_ns,
            ns: [0.0; State::N],
            intervals: Vec::new(),
            scale,
            scaled: observed > 0.0 && scale > 1.01,
            context,
        };
        let mut by_cell: BTreeMap<(FlowState, Release), Vec<(usize, &FlowStall)>> = BTreeMap::new();
        for &(index, stall) in stalls {
            by_cell.entry((stall.state, stall.release)).or_default().push((index, stall));
        }
        for cell in &flow.cells {
            // A second cell of the same kind would count them twice.
            let own = by_cell.remove(&(cell.state, cell.release)).unwrap_or_default();
            ledger.add_cell(flow, cell, &own);
        }
        ledger.add_unseen(flow, if observed > 0.0 { (observed - cells_ns) * scale } else { wall_ns });
        ledger
    }

    /// Time in a state.
    pub fn of(&self, state: State) -> f64 {
        self.ns[state as usize]
    }

    fn add_cell(&mut self, flow: &FlowRecord, cell: &parshall_evidence::FlowCell, own: &[(usize, &FlowStall)]) {
        let long: f64 = own.iter().map(|(_, s)| s.ns as f64).sum();
        // Stalls are contained in their cell; if they claim more, the cell is right.
        let fit = if long > cell.ns as f64 { ratio(cell.ns as f64, long) } else { 1.0 };
        let mut seen = 0;
        for (index, stall) in own {
            seen += 1;
            for (state, ns) in self.context.split(cell.state, cell.release, stall.ns as f64, 1) {
                self.push(Interval {
                    state,
                    release: cell.release,
                    ns: ns * fit * self.scale,
                    count: 1,
                    span: Some((stall.begin_ns, stall.ns)),
                    long: stall.ns >= STALL_MIN_NS,
                    tid: stall.tid,
                    stall: Some(*index),
                });
            }
        }
        let (rest, count) = remainder(flow, cell, long, seen);
        // Stalls that were lost, or that sampling was too slow to see, show in the mean of what is left.
        let is_long = rest / count.max(1) as f64 >= STALL_MIN_NS as f64;
        for (state, ns) in self.context.split(cell.state, cell.release, rest, count) {
            self.push(Interval {
                state,
                release: cell.release,
                ns: ns * self.scale,
                count,
                span: None,
                long: is_long,
                tid: 0,
                stall: None,
            });
        }
    }

    fn push(&mut self, interval: Interval) {
        if interval.ns > 0.0 {
            self.ns[interval.state as usize] += interval.ns;
            self.intervals.push(interval);
        }
    }

    /// Time that no cell accounts for: idle if the kernel's own figures stood still, else unknown.
    fn add_unseen(&mut self, flow: &FlowRecord, ns: f64) {
        let state = if moved(flow) { State::Other } else { State::NothingToSend };
        if ns > 0.0 {
            self.ns[state as usize] += ns;
        }
    }
}

/// The kernel's figures say that the flow moved data in the window.
pub fn moved(flow: &FlowRecord) -> bool {
    let (first, last) = (&flow.first, &flow.last);
    last.bytes_acked > first.bytes_acked
        || last.bytes_received > first.bytes_received
        || last.data_segs_out > first.data_segs_out
        || flow.calls.sends > 0
        || flow.calls.recvs > 0
}

#[cfg(test)]
mod tests {
    use parshall_evidence::{FlowState, Role};
    use proptest::prelude::*;

    use super::*;
    use crate::testkit::{FlowBuilder, MS, arb};

    fn ledger(flow: &FlowBuilder) -> FlowLedger {
        let stalls: Vec<(usize, &FlowStall)> = flow.stalls.iter().enumerate().collect();
        FlowLedger::new(&flow.record, &stalls)
    }

    #[test]
    fn a_long_ack_beyond_the_round_trip_is_not_in_flight() {
        let f = FlowBuilder::new(1, Role::Server).stall(0, 40 * MS, FlowState::InFlight, Release::RxAckDelayed).fill();
        let l = ledger(&f);
        assert_eq!(l.of(State::InFlight), 1e6);
        assert_eq!(l.of(State::AckDelayed), 39e6);
    }

    #[test]
    fn a_hold_interrupted_by_the_application_belongs_to_what_ends_it() {
        let f = FlowBuilder::new(1, Role::Client)
            .stall(0, 40 * MS, FlowState::Nagle, Release::RxAckDelayed)
            .stall(50 * MS, 10 * MS, FlowState::Nagle, Release::AppSend)
            .fill();
        let l = ledger(&f);
        assert_eq!(l.of(State::HeldByNagleDelayedAck), 50e6);
        assert_eq!(l.of(State::HeldByNagle), 0.0);
    }

    #[test]
    fn a_pause_that_a_slice_cut_is_that_of_who_sends_at_times_of_its_own() {
        // It sends every 50 ms and reads a reply of 1 ms now and then.
        let paced = |flow: FlowBuilder| {
            let flow = flow
                .cell(FlowState::IdleAfterSend, Release::AppSend, 400 * MS, 8)
                .cell(FlowState::IdleAfterSend, Release::RxData, 8 * MS, 8)
                .cell(FlowState::IdleAfterSend, Release::Cut, 200 * MS, 5)
                .talks(8, 64);
            ledger(&flow.fill()).of(State::PeerThinking)
        };
        assert_eq!(paced(FlowBuilder::new(1, Role::Client)), 8e6);
        // One that waits for replies still does when a slice ends.
        let waits = FlowBuilder::new(1, Role::Client)
            .cell(FlowState::IdleAfterSend, Release::AppSend, 4 * MS, 20)
            .cell(FlowState::IdleAfterSend, Release::RxData, 400 * MS, 20)
            .cell(FlowState::IdleAfterSend, Release::Cut, 200 * MS, 5)
            .talks(20, 64);
        assert_eq!(ledger(&waits.fill()).of(State::PeerThinking), 600e6);
        let never_answered =
            FlowBuilder::new(1, Role::Client).cell(FlowState::IdleAfterSend, Release::Cut, 900 * MS, 1).talks(1, 64);
        assert_eq!(ledger(&never_answered.fill()).of(State::PeerThinking), 900e6);
    }

    #[test]
    fn a_remote_delayed_ack_is_told_by_its_length() {
        let held = |ms, rtt_us| {
            let mut f =
                FlowBuilder::new(1, Role::Client).remote_host().stall(0, ms * MS, FlowState::Nagle, Release::RxAck);
            f.record.last.min_rtt_us = rtt_us;
            ledger(&f.fill()).of(State::HeldByNagleDelayedAck)
        };
        assert_eq!(held(41, 200), 41e6);
        assert_eq!(held(41, 20_000), 0.0);
        assert_eq!(held(12, 200), 0.0);
    }

    #[test]
    fn an_unobserved_flow_is_idle_only_if_nothing_moved() {
        let mut f = FlowBuilder::new(1, Role::Client);
        f.record.observed_ns = 0;
        assert_eq!(ledger(&f).of(State::NothingToSend), 1e9);
        f.record.last.bytes_acked = 10;
        assert_eq!(ledger(&f).of(State::Other), 1e9);
    }

    #[test]
    fn lost_stalls_show_in_the_mean() {
        let f = FlowBuilder::new(1, Role::Client).cell(FlowState::PeerWindow, Release::RxAck, 500 * MS, 5).fill();
        assert!(ledger(&f).intervals.iter().any(|i| i.state == State::PeerWindowLimited && i.long));
    }

    #[test]
    fn a_sample_is_not_a_stall() {
        let f = FlowBuilder::new(1, Role::Client)
            .cell(FlowState::PeerWindow, Release::Sampled, 500 * MS, 100)
            .streams(10_000, 1448)
            .fill();
        assert!(!ledger(&f).intervals.iter().any(|i| i.state == State::PeerWindowLimited && i.long));
    }

    proptest! {
        #[test]
        fn sums_to_the_wall_time(capture in arb::capture()) {
            for flow in &capture.flows {
                let stalls: Vec<(usize, &FlowStall)> =
                    capture.flow_stalls.iter().enumerate().filter(|(_, s)| s.flow == flow.id).collect();
                let l = FlowLedger::new(flow, &stalls);
                let sum: f64 = l.ns.iter().sum();
                prop_assert!((sum - l.wall_ns).abs() <= 0.01 * l.wall_ns, "{sum} of {}", l.wall_ns);
                prop_assert!(l.ns.iter().all(|ns| *ns >= 0.0));
            }
        }

        #[test]
        fn scaling_keeps_the_shares(capture in arb::capture(), factor in 2u64..40) {
            for flow in &capture.flows {
                let mut full = flow.clone();
                let cells = full.cells.iter().fold(0u64, |n, c| n.saturating_add(c.ns)).min(1 << 50);
                if cells == 0 || full.cells.iter().any(|c| c.ns > cells) {
                    continue;
                }
                (full.begin_ns, full.end_ns, full.observed_ns) = (0, cells, cells);
                let mut sliced = full.clone();
                sliced.end_ns = cells.saturating_mul(factor);
                let (a, b) = (FlowLedger::new(&full, &[]), FlowLedger::new(&sliced, &[]));
                for s in State::ALL {
                    prop_assert!((ratio(a.of(s), a.wall_ns) - ratio(b.of(s), b.wall_ns)).abs() < 1e-6);
                }
            }
        }
    }
}

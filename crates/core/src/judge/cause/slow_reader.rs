//! A local reader that does not keep up: data of a stream waits in the receive queue while its reader sleeps or works
//! on something else, and the window shuts.
//!
//! Look-alikes: a reader at work on what it read (user-cpu-bound), out of quota (cpu-throttled), copying in small
//! pieces (small-copy-buffer), or a small receive buffer with a reader that empties it at once. A client that pauses between two
//! pieces of a reply, as what plays a stream does, takes it as fast as it wants to, unless it is what the user asked
//! about, or requests of others wait meanwhile.

use super::base::{Candidate, Cause, Outcome, denied, main_sleep, main_thread, place_of, stalls, thread_name, who};
use crate::judge::confidence::Gap;
use crate::judge::denial::{Denial, share};
use crate::judge::facts::{Blame, Facts, Part};
use crate::judge::ledger::flow::State;
use crate::judge::record;
use crate::judge::words;
use crate::stats::{quantile, ratio};
use crate::units;
use crate::wait::Wait;

/// The entry in the list.
pub const CAUSE: Cause = Cause {
    id: "slow-reader",
    title: "The local reader does not keep up",
    test,
    symptom: |facts| facts.share_in(&[State::ReaderWaiting]).min(facts.raw_share(ASLEEP)),
    testable: record::flows,
};

/// Time in which a reader was asleep.
const ASLEEP: &[Blame] = &[Blame::ReaderBlocked, Blame::ReaderPauses];

fn take(part: &Part) -> bool {
    ASLEEP.contains(&part.blame)
}

fn test(facts: &Facts<'_>) -> Outcome {
    let lost = facts.lost(take);
    let Some(worst) = lost.worst() else { return why_not(facts) };
    let tid = main_thread(facts, take);
    let sleep = main_sleep(facts, take);
    let doing = match &sleep {
        Some((call, wait, share)) => format!("{} in {call} ({})", doing(*wait), units::percent(*share)),
        None => "not reading".to_string(),
    };
    let reader = if tid != 0 { thread_name(facts, tid) } else { "the reader".to_string() };
    let summary = format!(
        "{}: received data waits {} at a time while {reader} is {doing}.",
        who(facts, &lost),
        units::duration(lost.p50_ns)
    );
    let unread = unread(facts, worst);
    let mut evidence = vec![stalls("waits of received data for the local reader", &lost)];
    if let Some(bytes) = quantile(&unread, 0.5) {
        evidence.push(words::valued("unread bytes, median", bytes, "B"));
    }
    let shut = shut_share(facts, worst);
    if let Some(shut) = shut {
        evidence.push(words::valued("time in which the other end found the window full", shut, "1"));
    }
    if let Some((call, _, share)) = &sleep {
        evidence.push(words::valued(format!("of the waits, reader in {call}"), *share, "1"));
    }
    let mut place = place_of(facts, &lost);
    place.tid = (tid != 0).then_some(tid);
    let fix = "Read earlier or in another thread: what this thread waits for does not belong between two reads.";
    let mut candidate = Candidate::new(lost, place, summary, evidence, fix);
    if sleep.is_none() {
        candidate.gaps.push(match tid {
            0 => Gap::Guessed("whose thread it is was not seen"),
            _ => Gap::Inferred("what the thread waits for was not seen"),
        });
    }
    candidate.holds()
}

fn doing(wait: Wait) -> &'static str {
    match wait {
        Wait::Sleep => "asleep",
        Wait::Futex => "waiting for another thread",
        Wait::File => "waiting for the disk",
        Wait::SocketReceive | Wait::SocketSend | Wait::Connect | Wait::Accept => "waiting for another socket",
        Wait::Multiplex => "waiting for other events",
        Wait::Pipe => "waiting for a pipe",
        Wait::PageFault | Wait::Other => "blocked",
    }
}

fn unread(facts: &Facts<'_>, flow: usize) -> Vec<f64> {
    facts
        .parts
        .iter()
        .filter(|p| p.flow == flow && take(p))
        .filter_map(|p| p.stall.and_then(|i| facts.capture.flow_stalls.get(i)))
        .map(|s| f64::from(s.unread_bytes))
        .collect()
}

fn shut_share(facts: &Facts<'_>, flow: usize) -> Option<f64> {
    let other = &facts.flows[facts.flows[flow].pair?].ledger;
    Some(ratio(other.of(State::PeerWindowLimited), other.wall_ns))
}

fn why_not(facts: &Facts<'_>) -> Outcome {
    if let Some(why) = facts.no_account_of_flows() {
        return Outcome::Untested(why);
    }
    let asleep = facts.raw_share(ASLEEP);
    let why = match 2.0 * facts.raw_share(&[Blame::ReaderPauses]) > asleep {
        true => "its client pauses by a timer, and takes what it wants",
        false => "counted at the connection that it waited for",
    };
    let denial =
        Denial::of(share(facts.share_in(&[State::ReaderWaiting]), "of the flows' time with received data unread"))
            .and(share(asleep, "of the flows' time with the reader of a stream asleep"));
    denied(if asleep > 0.0 { denial.because(why) } else { denial })
}

#[cfg(test)]
mod tests {
    use parshall_evidence::timeline::{OffCpu, Timeline, Waker};
    use parshall_evidence::{Capture, FdKind, FlowCalls, FlowState, HopKind, Release, Role, Rung};

    use crate::testkit::service::{Hops, ServiceBuilder};
    use crate::testkit::timeline::{Script, off};
    use crate::testkit::{FlowBuilder, MS, ThreadBuilder, capture, verdict_of};

    fn reader() -> FlowBuilder {
        FlowBuilder::new(1, Role::Server)
            .every(10 * MS, 0, 9 * MS, FlowState::RxWaiting, Release::AppRecv)
            .drains(100, 65_536)
    }

    #[test]
    fn asleep_with_data_waiting() {
        let thread = ThreadBuilder::new(101).sleeps(10 * MS, 0, 9 * MS, "clock_nanosleep", FdKind::None);
        let report = crate::judge::judge(&capture(vec![reader()], vec![thread]));
        assert_eq!(report.verdict.cause.as_deref(), Some("slow-reader"));
        assert!(report.verdict.summary.contains("asleep in clock_nanosleep"), "{}", report.verdict.summary);
        assert_eq!(report.findings[0].place.tid, Some(101));
    }

    #[test]
    fn at_work_on_what_it_read_is_user_cpu() {
        let thread = ThreadBuilder::new(101).samples(95, 5);
        assert_eq!(verdict_of(&capture(vec![reader()], vec![thread])), "user-cpu-bound");
    }

    #[test]
    fn out_of_quota_is_throttled() {
        let thread = ThreadBuilder::new(101).throttled(10 * MS, 0, 9 * MS);
        assert_eq!(verdict_of(&capture(vec![reader()], vec![thread])), "cpu-throttled");
    }

    /// Figures of a node service that is sent data by itself and pauses 20 ms after each chunk. Of each two pauses the one
    /// before the read that empties the buffer was recorded as idle.
    #[test]
    fn half_of_a_shut_window_is_seen_unread() {
        const CYCLE_NS: u64 = 40_959_475;
        const PAUSE_NS: u64 = 20_461_000;
        let sender = FlowBuilder::new(1, Role::Unknown)
            .every(CYCLE_NS, 0, CYCLE_NS, FlowState::PeerWindow, Release::RxAck)
            .streams(68, 65_536);
        let reader = FlowBuilder::new(2, Role::Server)
            .to(&sender)
            .every(CYCLE_NS, 0, PAUSE_NS, FlowState::RxWaiting, Release::AppRecv)
            .every(CYCLE_NS, PAUSE_NS, CYCLE_NS - PAUSE_NS, FlowState::IdleAfterRecv, Release::RxData)
            .drains(48, 47_616);
        let thread = ThreadBuilder::new(101).sleeps(PAUSE_NS, 0, 20_058_000, "epoll_pwait", FdKind::Anon);
        let report = crate::judge::judge(&capture(vec![sender, reader], vec![thread]));
        let causes: Vec<&str> = report.findings.iter().map(|f| f.cause.as_str()).collect();
        assert_eq!(causes, ["slow-reader"], "{report:#?}");
    }

    /// A service sends a reply that its client, on this host, reads a piece of every 10 ms: it is in `call` meanwhile.
    fn client_that_reads_in_pieces(call: &str, fd: FdKind) -> Capture {
        let sender = FlowBuilder::new(1, Role::Server)
            .every(10 * MS, 0, 10 * MS, FlowState::PeerWindow, Release::RxAck)
            .streams(1000, 16_384);
        let reader = FlowBuilder::new(2, Role::Client)
            .to(&sender)
            .owner(200, 201)
            .every(10 * MS, 0, 9 * MS, FlowState::RxWaiting, Release::AppRecv)
            .drains(1000, 16_384);
        let thread = ThreadBuilder::new(201).of(200).sleeps(10 * MS, 0, 9 * MS, call, fd);
        capture(vec![sender, reader], vec![thread])
    }

    #[test]
    fn a_client_that_pauses_between_two_pieces_wants_no_more() {
        let mut pauses = client_that_reads_in_pieces("clock_nanosleep", FdKind::None);
        assert_eq!(verdict_of(&pauses), "healthy");
        let report = crate::judge::judge(&pauses);
        let summary = &report.verdict.summary;
        assert!(summary.ends_with("which sleep between two reads."), "{summary}");
        let denied = report.ruled_out.iter().find(|entry| entry.cause == "slow-reader").expect("it is ruled out");
        assert!(denied.seen && denied.why.contains("its client pauses by a timer"), "{denied:?}");
        // It is the client that the user asked about.
        let mut own = pauses.clone();
        (own.subject.pids, own.timeline) = (vec![200], Some(Timeline::default()));
        assert_eq!(verdict_of(&own), "slow-reader");
        // It cannot read before it has written what it read.
        assert_eq!(verdict_of(&client_that_reads_in_pieces("fsync", FdKind::File)), "slow-reader");
        // A room that sends to its members in turn waits for the one that pauses: the others' messages are late.
        let room = Hops::new().thread(100, 101, "room").on(HopKind::Network, "");
        pauses.services = vec![ServiceBuilder::new(8765).requests(5, 500.0).part(room, 0.7).cpu(0.01).build()];
        let found = crate::judge::judge(&pauses).findings;
        assert!(found.iter().any(|found| found.cause == "slow-reader"), "{found:#?}");
    }

    #[test]
    fn a_client_whose_events_are_timers_pauses_too() {
        let mut capture = client_that_reads_in_pieces("epoll_wait", FdKind::Anon);
        let mut woken_by = |waker| {
            let sleep = |n: u64| OffCpu {
                syscall: 232,
                waker,
                ..off(201, n * 10 * MS, n * 10 * MS + 9 * MS, n * 10 * MS + 9 * MS)
            };
            let script = (0..100).fold(Script::new(), |script, n| script.off(sleep(n)));
            capture.timeline = Some(Timeline { asked_ports: vec![7000], ..script.timeline });
            verdict_of(&capture)
        };
        assert_eq!(woken_by(Waker::HardIrq), "healthy");
        // It has others to serve, and comes back to this one late.
        assert_eq!(woken_by(Waker::SoftIrq), "slow-reader");
    }

    #[test]
    fn a_client_that_does_not_run_at_all_is_no_concern_of_the_service() {
        let mut capture = client_that_reads_in_pieces("", FdKind::None);
        capture.threads.clear();
        capture.flows[1].calls = FlowCalls::default();
        assert_eq!(verdict_of(&capture), "healthy");
        // Where threads are only sampled, it may have run.
        capture.rung = Rung::Tracepoint;
        assert_eq!(verdict_of(&capture), "slow-reader");
    }

    #[test]
    fn a_small_buffer_emptied_at_once_is_healthy() {
        let flow = FlowBuilder::new(1, Role::Server)
            .cell(FlowState::RxWaiting, Release::AppRecv, 300 * MS, 30_000)
            .drains(30_000, 4096);
        let thread = ThreadBuilder::new(101).samples(10, 90);
        assert_eq!(verdict_of(&capture(vec![flow], vec![thread])), "healthy");
    }
}

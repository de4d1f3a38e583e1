//! Pieces of a stream that a process receives at one connection, keeps, and passes on together at even times: a timer lets them go, and
//! nothing that arrives. What is passed on when the last piece of it has come waits for that piece, and for no timer.
use std::collections::BTreeMap;

use parshall_evidence::timeline::{Op, SocketCall, Timeline};
use parshall_evidence::{FlowId, Release};

use super::part::{Blame, Part};
use super::prepared::Facts;
use crate::judge::ledger::flow::State;
use crate::stats::quantile;

/// Sends that show even times.
const SENDS_MIN: usize = 6;
/// Of the sends, those that must carry what was received since the one before.
const ALIKE_MIN: f64 = 0.8;
/// A send may have more bytes than what it passes on: a frame around each piece, or around all.
const FRAMED: f64 = 1.5;
const FRAME_BYTES: u64 = 64;
/// The spread of the times between sends, p10 to p90, in medians.
const UNEVEN_MAX: f64 = 0.25;
/// The last piece before a send, median: one that lets it go is sent sooner.
const LAST_MIN_NS: f64 = 1e6;
/// The first piece before a send, median.
const HELD_MIN_NS: f64 = 10e6;

/// What a send passed on.
struct Batch {
    /// When the first and the last piece were received.
    first_ns: u64,
    last_ns: u64,
    sent_ns: u64,
    tid: u32,
}

/// The time in which the flows of the subject had something to send that their process kept.
pub fn parts(facts: &Facts<'_>) -> Vec<Part> {
    let Some(timeline) = facts.capture.timeline.as_ref() else { return Vec::new() };
    let mut sources = sources(timeline);
    let mut parts = Vec::new();
    for (index, flow) in facts.flows.iter().enumerate() {
        for batch in held_by_timer(timeline, flow.rec.id, &mut sources) {
            let ns = batch.sent_ns - batch.first_ns;
            parts.push(Part {
                flow: index,
                blame: Blame::HeldBack,
                state: State::NothingToSend,
                ns: ns as f64 * flow.ledger.scale,
                count: 1,
                each_ns: ns as f64,
                release: Release::AppSend,
                tid: batch.tid,
                span: Some((batch.first_ns, ns)),
                stall: None,
                off: None,
                supply: true,
            });
        }
    }
    parts
}

fn only(timeline: &Timeline, id: FlowId, op: Op) -> Option<&Vec<SocketCall>> {
    timeline.calls.get(&id).filter(|calls| calls.iter().all(|call| call.op == op))
}

/// The connections to others on which a process only receives, by process.
fn sources(timeline: &Timeline) -> BTreeMap<u32, Vec<FlowId>> {
    let mut sources: BTreeMap<u32, Vec<FlowId>> = BTreeMap::new();
    for (id, socket) in timeline.sockets.iter().filter(|(_, socket)| !socket.serves && !socket.udp) {
        if only(timeline, *id, Op::Receive).is_some() {
            sources.entry(socket.pid).or_default().push(*id);
        }
    }
    sources
}

/// The batches in which a served connection got what its process received elsewhere; none unless a timer let them go. The connection that
/// they came from is no source of another one then.
fn held_by_timer(timeline: &Timeline, to: FlowId, sources: &mut BTreeMap<u32, Vec<FlowId>>) -> Vec<Batch> {
    let served = timeline.sockets.get(&to).filter(|socket| socket.serves && !socket.udp);
    let sends = only(timeline, to, Op::Send).filter(|sends| sends.len() >= SENDS_MIN);
    let Some((own, sends)) = served.zip(sends) else { return Vec::new() };
    let Some(sources) = sources.get_mut(&own.pid) else { return Vec::new() };
    let of = |from: &FlowId| batches(timeline, sends, timeline.calls.get(from)?).filter(|batches| by_timer(batches));
    let Some((at, found)) = sources.iter().enumerate().find_map(|(at, from)| Some((at, of(from)?))) else {
        return Vec::new();
    };
    sources.remove(at);
    found
}

/// What each send passed on, if that is what was received since the one before.
fn batches(timeline: &Timeline, sends: &[SocketCall], receives: &[SocketCall]) -> Option<Vec<Batch>> {
    let mut found = Vec::new();
    let mut compared = 0;
    for pair in sends.windows(2) {
        if !timeline.slices.iter().any(|slice| slice.0 <= pair[0].at_ns && pair[1].at_ns <= slice.1) {
            continue;
        }
        compared += 1;
        let after = |at_ns: u64| receives.partition_point(|call| call.at_ns <= at_ns);
        let pieces = &receives[after(pair[0].at_ns)..after(pair[1].at_ns)];
        let bytes = pieces.iter().map(|call| u64::from(call.bytes)).sum::<u64>();
        let sent = u64::from(pair[1].bytes);
        let carries = sent >= bytes && sent as f64 <= bytes as f64 * FRAMED + FRAME_BYTES as f64;
        if let [first, .., last] = pieces
            && carries
        {
            let (first_ns, last_ns) = (first.at_ns, last.at_ns);
            found.push(Batch { first_ns, last_ns, sent_ns: pair[1].at_ns, tid: pair[1].tid });
        }
    }
    let enough = found.len() + 1 >= SENDS_MIN && found.len() as f64 >= ALIKE_MIN * f64::from(compared);
    enough.then_some(found)
}

fn by_timer(batches: &[Batch]) -> bool {
    let median = |of: fn(&Batch) -> u64| {
        let held: Vec<f64> = batches.iter().map(|batch| (batch.sent_ns - of(batch)) as f64).collect();
        quantile(&held, 0.5).unwrap_or(0.0)
    };
    let apart: Vec<f64> = batches.windows(2).map(|pair| (pair[1].sent_ns - pair[0].sent_ns) as f64).collect();
    let of = |q: f64| quantile(&apart, q).unwrap_or(0.0);
    let even = of(0.9) - of(0.1) <= UNEVEN_MAX * of(0.5);
    even && median(|batch| batch.last_ns) >= LAST_MIN_NS && median(|batch| batch.first_ns) >= HELD_MIN_NS
}

#[cfg(test)]
mod tests {
    use parshall_evidence::Role;

    use crate::testkit::timeline::{Script, client_socket, served_socket};
    use crate::testkit::{FlowBuilder, MS, capture};

    /// A process receives a piece of a stream every 30 ms, and sends what it has at these times.
    fn proxy(sends_ms: impl Iterator<Item = u64>) -> (Option<String>, String) {
        let mut script = Script::new().socket(1, served_socket(8080), 101).socket(2, client_socket(8000), 101);
        let received: Vec<u64> = (1..95).map(|n| n * 30).collect();
        let sent: Vec<u64> = sends_ms.collect();
        for &at in &received {
            script = script.receives(101, 2, at * MS, at * MS);
        }
        let mut before = 0;
        for &at in &sent {
            script = script.sends(101, 1, at * MS + MS / 2);
            let pieces = received.iter().filter(|ms| (before..=at).contains(*ms)).count();
            script.timeline.calls.get_mut(&1).unwrap().last_mut().unwrap().bytes = 100 * pieces as u32;
            before = at + 1;
        }
        script.timeline.slices = vec![(0, 3_000 * MS)];
        let flow = FlowBuilder::new(1, Role::Server).owner(100, 101).streams(sent.len() as u64, 700);
        let mut capture = capture(vec![flow], vec![]);
        capture.timeline = Some(script.timeline);
        let report = crate::judge::judge(&capture);
        (report.verdict.cause, report.verdict.summary)
    }

    #[test]
    fn pieces_that_are_passed_on_at_even_times_wait_for_a_timer() {
        let (cause, summary) = proxy((1..14).map(|n| n * 211));
        assert_eq!(cause.as_deref(), Some("timer-wait"), "{summary}");
        assert!(summary.contains("passes it on every 211 ms"), "{summary}");
    }

    #[test]
    fn pieces_that_are_passed_on_at_once_or_when_enough_have_come_do_not() {
        assert_eq!(proxy((1..90).map(|n| n * 30)).0, None);
        // Each time when the seventh has come.
        assert_eq!(proxy((1..14).map(|n| n * 210)).0, None);
        // When somebody asks for them, at times of their own.
        assert_eq!(proxy([95, 155, 491, 611, 1_001, 1_100, 1_705, 2_111, 2_195, 2_711].into_iter()).0, None);
    }
}

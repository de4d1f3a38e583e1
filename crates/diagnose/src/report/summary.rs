//! The events of a capture as a list in the order of time: what a person writes together from strace, tcpdump and ss. The longest waits are
//! marked, and where there are too many events the list has those around them.
use std::collections::BTreeSet;
use std::fmt::Write;

use parshall_core::judge::Judged;
use parshall_core::report::{Detail, Page};
use parshall_core::sorting::{IntoOrdered as _, StableSort as _};
use parshall_core::trace::{Kind, Of, Trace};
use parshall_core::units::{bytes, count, plural};
use parshall_evidence::Capture;
use parshall_evidence::timeline::Op;
use parshall_host::output::{clean, columns};

/// Waits of each kind that are marked at most.
const MARKED: usize = 5;
/// A list with more events has only those around the marked waits.
const EVENTS_MAX: usize = 400;
/// Events on either side of the begin and of the end of a marked wait.
const AROUND: usize = 10;
/// Columns of a lane; longer names make their line longer.
const LANE: usize = 44;
/// Columns of a time.
const TIME: usize = 12;

/// Something that happened.
struct Event {
    at_ns: u64,
    /// None for a moment.
    ns: Option<u64>,
    lane: String,
    what: String,
    kind: Kind,
    is_wait: bool,
}

/// The list.
pub fn summary(judged: &Judged<'_>, capture: &Capture) -> String {
    let page = Page::new(&judged.report, Detail::Short);
    let mut out = String::new();
    line(&mut out, &page.head.join(" · "));
    line(&mut out, [page.verdict.title.0, page.verdict.headline.as_str()].join(" ").trim_end());
    out.push('\n');
    let mut events = spans(&Trace::whole(capture, judged.index.as_ref()));
    events.extend(calls(capture));
    if events.is_empty() {
        line(&mut out, "No events were seen: this rung sees none, or nothing happened in the observed time.");
        return out;
    }
    events.stable_sort_by(|a, b| (a.at_ns, a.kind, &a.lane, &a.what).cmp(&(b.at_ns, b.kind, &b.lane, &b.what)));
    let marked = marked(&events);
    let shown = shown(&events, &marked);
    let found = plural(events.len() as u64, "event", "events");
    let listed = if shown.len() < events.len() {
        format!(
            "{found}; {} are listed: those around the longest waits, which have a > in front",
            count(shown.len() as u64)
        )
    } else {
        format!("{found}; the longest waits have a > in front")
    };
    line(&mut out, &listed);
    line(&mut out, &format!("  {:>TIME$}  {:<LANE$}  {:>TIME$}  what", "at (ms)", "lane", "for (ms)"));
    let mut next = 0;
    for at in shown {
        skipped(&mut out, at - next);
        next = at + 1;
        let event = &events[at];
        let mark = if marked.contains(&at) { '>' } else { ' ' };
        let lane = clean(&event.lane);
        let pad = " ".repeat(LANE.saturating_sub(columns(&lane)));
        let length = event.ns.map_or_else(String::new, ms);
        let text = format!("{mark} {:>TIME$}  {lane}{pad}  {length:>TIME$}  {}", ms(event.at_ns), clean(&event.what));
        line(&mut out, text.trim_end());
    }
    skipped(&mut out, events.len() - next);
    out
}

fn line(out: &mut String, text: &str) {
    writeln!(out, "{}", clean(text)).expect("a string takes any text");
}

fn skipped(out: &mut String, events: usize) {
    if events > 0 {
        line(out, &format!("  {:>TIME$}  {} left out", "…", plural(events as u64, "event", "events")));
    }
}

/// Milliseconds with microseconds behind the point.
fn ms(ns: u64) -> String {
    format!("{}.{:03}", ns / 1_000_000, ns / 1_000 % 1_000)
}

fn spans(trace: &Trace) -> Vec<Event> {
    let mut events = Vec::new();
    for lane in &trace.lanes {
        let name = match lane.of {
            Of::Connection(_) => format!("{} from {}", lane.group, lane.name),
            Of::Thread(_) => format!("{} · {}", lane.group, lane.name),
            Of::Socket(_) => lane.name.clone(),
            Of::Uring(_) => format!("{} · io_uring {}", lane.group, lane.name),
            Of::Log(_) => format!("{} · {}", lane.group, lane.name),
        };
        for span in &lane.spans {
            let text = trace.text(span);
            let what =
                if text.is_empty() { span.state.label().to_owned() } else { format!("{}: {text}", span.state.label()) };
            events.push(Event {
                at_ns: span.begin_ns,
                ns: (lane.kind != Kind::Log).then(|| span.ns()),
                lane: name.clone(),
                what,
                kind: lane.kind,
                is_wait: span.state.is_wait(),
            });
        }
    }
    events
}

/// The socket calls of threads, with the bytes that they moved.
fn calls(capture: &Capture) -> Vec<Event> {
    let Some(timeline) = &capture.timeline else { return Vec::new() };
    let event = |call: &parshall_evidence::timeline::SocketCall| {
        let names = timeline.names.get(&call.tid);
        let (process, pid) = names.map_or(("process", 0), |names| (names.process.as_str(), names.pid));
        let thread = names.map_or("thread", |names| names.thread.as_str());
        let socket = timeline.sockets.get(&call.socket);
        let other = socket.map_or_else(|| format!("socket {}", call.socket), |socket| socket.remote.to_string());
        let moved = bytes(f64::from(call.bytes));
        let what = match call.op {
            Op::Receive => format!("receives {moved} from {other}, {} ms after they came", late(call)),
            Op::Send => format!("sends {moved} to {other}"),
            Op::Accept => format!("accepts {other}, {} ms after it was established", late(call)),
        };
        let lane = format!("{process} {pid} · {thread} {}", call.tid);
        Event { at_ns: call.at_ns, ns: None, lane, what, kind: Kind::Thread, is_wait: false }
    };
    timeline.calls.values().flatten().map(event).collect()
}

fn late(call: &parshall_evidence::timeline::SocketCall) -> String {
    ms(call.at_ns.saturating_sub(call.since_ns))
}

/// The longest waits of requests, of threads and of sockets. Requests to io_uring are not waits by themselves: who waits for them is a
/// thread.
fn marked(events: &[Event]) -> BTreeSet<usize> {
    let mut marked = BTreeSet::new();
    for kind in [Kind::Requests, Kind::Thread, Kind::Socket] {
        let waits = (0..events.len()).filter(|at| events[*at].kind == kind && events[*at].is_wait);
        let mut waits: Vec<usize> = waits.collect();
        waits.stable_sort_by_key(|at| (std::cmp::Reverse(events[*at].ns), *at));
        marked.extend(waits.into_iter().take(MARKED));
    }
    marked
}

/// Those that are listed.
fn shown(events: &[Event], marked: &BTreeSet<usize>) -> BTreeSet<usize> {
    if events.len() <= EVENTS_MAX {
        return (0..events.len()).into_set();
    }
    let mut shown = BTreeSet::new();
    for at in marked {
        let end_ns = events[*at].at_ns.saturating_add(events[*at].ns.unwrap_or(0));
        for middle in [*at, events.partition_point(|event| event.at_ns < end_ns)] {
            shown.extend(middle.saturating_sub(AROUND)..(middle + AROUND).min(events.len()));
        }
    }
    shown.extend(marked);
    // Without any wait: the first ones.
    if shown.is_empty() { (0..EVENTS_MAX).into_set() } else { shown }
}

#[cfg(test)]
mod tests {
    use parshall_core::testkit::empty_capture;
    use parshall_core::testkit::timeline::{Script, off, served_socket};

    use super::*;
    use crate::testkit::reports::{self, formed};

    #[test]
    fn many_events_are_cut_to_those_around_the_longest_waits() {
        let mut script = Script::new().socket(1, served_socket(7000), 101);
        for i in 0..2_000 {
            script = script.off(off(101, i * 400, i * 400 + 100, i * 400 + 100));
        }
        let script = script.off(off(102, 300_000, 700_000, 700_000));
        let capture = Capture { timeline: Some(script.timeline), window_ns: 1_000_000, ..empty_capture() };
        let text = formed(summary, &reports::all()[0].1, &capture);
        assert!(text.lines().count() < EVENTS_MAX, "{text}");
        let longest =
            text.lines().find(|line| line.starts_with('>') && line.contains(" 0.400  ")).expect("it is marked");
        assert!(longest.contains("p100 100 · t102 102") && longest.contains("sleeps in futex"), "{longest}");
        let listed = text.lines().filter(|line| line.contains("sleeps in futex")).count();
        let left = text.lines().filter_map(|line| line.trim().strip_prefix("…  ")?.split(' ').next());
        let left: usize = left.map(|n| n.replace(',', "").parse::<usize>().unwrap()).sum();
        assert_eq!(listed + left, 2_001);
    }

    #[test]
    fn a_case_without_events_says_so() {
        let text = formed(summary, &reports::empty(), &empty_capture());
        assert!(text.ends_with("nothing happened in the observed time.\n"), "{text}");
    }
}

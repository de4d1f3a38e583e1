//! The callers of the kernel events that the user asked for.
use std::collections::BTreeMap;

use parshall_evidence::{Capture, EventCaller, EventCell, EventCounts, EventReport};

use crate::sorting::StableSort as _;
use crate::stats::ratio;
use crate::text::without_numbers;

/// Callers of an event in a report.
const CALLERS_MAX: usize = 64;
/// Frames of a stack in a report.
const FRAMES_MAX: usize = 32;

/// The key that tells callers apart. Stacks by their functions: the same path through other instructions is the same to a reader.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Key<'c> {
    in_irq: bool,
    pid: u32,
    process: &'c str,
    thread: String,
    value: &'c str,
    stack: Vec<String>,
}

/// The events that were asked for, in the order in which they were named.
pub fn events(capture: &Capture) -> Vec<EventReport> {
    capture.events.iter().map(|event| report(capture, event)).collect()
}

fn report(capture: &Capture, event: &EventCounts) -> EventReport {
    let window_s = capture.window_ns as f64 / 1e9;
    let is_subject = |pid: u32| pid != 0 && capture.subject.pids.contains(&pid);
    let (mut sums, mut count, mut of_subject, mut in_irq) = (BTreeMap::<Key<'_>, u64>::new(), event.lost, 0_u64, 0_u64);
    for cell in &event.cells {
        count = count.saturating_add(cell.count);
        let part = if cell.in_irq { Some(&mut in_irq) } else { is_subject(cell.pid).then_some(&mut of_subject) };
        part.into_iter().for_each(|part| *part = part.saturating_add(cell.count));
        let sum = sums.entry(key(capture, cell)).or_default();
        *sum = sum.saturating_add(cell.count);
    }
    let share = |n: u64| ratio(n as f64, count as f64);
    let mut callers: Vec<EventCaller> = sums
        .into_iter()
        .map(|(key, n)| EventCaller {
            pid: (key.pid != 0).then_some(key.pid),
            process: key.process.to_owned(),
            thread: key.thread,
            subject: is_subject(key.pid),
            in_irq: key.in_irq,
            value: key.value.to_owned(),
            count: n,
            per_s: ratio(n as f64, window_s),
            share: share(n),
            stack: key.stack,
        })
        .collect();
    // Those of the rest of a busy host come after what may be the service's. Of equally frequent ones the order is that of the keys.
    callers.stable_sort_by_key(|caller| (!caller.subject && !caller.in_irq, std::cmp::Reverse(caller.count)));
    callers.truncate(CALLERS_MAX);
    EventReport {
        event: event.event.clone(),
        count,
        per_s: ratio(count as f64, window_s),
        of_subject: share(of_subject),
        in_irq: share(in_irq),
        lost: event.lost,
        without_stack: event.without_stack,
        callers,
    }
}

fn key<'c>(capture: &'c Capture, cell: &'c EventCell) -> Key<'c> {
    let frames = cell.stack.and_then(|stack| capture.stacks.get(stack as usize)).into_iter();
    let frames = frames.flat_map(|stack| &stack.frames).take(FRAMES_MAX);
    let stack = frames.map(|f| if f.kernel { format!("{} [k]", f.name) } else { f.name.clone() }).collect();
    let of_nobody = cell.in_irq || cell.pid == 0;
    Key {
        in_irq: cell.in_irq,
        pid: if of_nobody { 0 } else { cell.pid },
        process: if of_nobody { "" } else { &cell.process },
        thread: if of_nobody { String::new() } else { without_numbers(&cell.thread) },
        value: &cell.value,
        stack,
    }
}

#[cfg(test)]
mod tests {
    use parshall_evidence::{Frame, Stack};

    use super::*;
    use crate::testkit::empty_capture;

    fn cell(pid: u32, thread: &str, stack: Option<u32>, count: u64) -> EventCell {
        let (thread, process) = (thread.to_owned(), "echo".to_owned());
        EventCell { pid, tid: pid + 1, process, thread, stack, count, ..EventCell::default() }
    }

    fn counted(cells: Vec<EventCell>, lost: u64) -> EventReport {
        let frame = |name: &str, kernel| Frame { name: name.to_owned(), module: String::new(), kernel };
        let mut capture = empty_capture();
        capture.window_ns = 2_000_000_000;
        capture.stacks = vec![
            Stack { frames: vec![frame("tcp_drop", true), frame("main", false)] },
            Stack { frames: vec![frame("tcp_drop", true), frame("main", false)] },
            Stack { frames: vec![frame("udp_queue", true)] },
        ];
        capture.events = vec![EventCounts { event: "skb:kfree_skb".to_owned(), cells, lost, without_stack: 0 }];
        events(&capture).remove(0)
    }

    #[test]
    fn threads_and_stacks_that_read_the_same_are_one_caller() {
        let other = EventCell { process: "curl".to_owned(), ..cell(7, "curl", Some(2), 5_000) };
        let report = counted(
            vec![
                cell(100, "worker-1", Some(0), 40),
                cell(100, "worker-2", Some(1), 20),
                other,
                cell(100, "main", None, 5),
            ],
            30,
        );
        assert_eq!((report.count, report.per_s, report.lost), (5_095, 2_547.5, 30));
        assert_eq!((report.of_subject, report.in_irq), (65.0 / 5_095.0, 0.0));
        // Fewer than those of curl, which is not the subject.
        let workers = &report.callers[0];
        assert_eq!((workers.pid, workers.thread.as_str(), workers.count), (Some(100), "worker-#", 60));
        assert_eq!((workers.share, workers.per_s, workers.subject), (60.0 / 5_095.0, 30.0, true));
        assert_eq!(workers.stack, ["tcp_drop [k]", "main"]);
        let curl = report.callers.last().expect("a caller");
        assert_eq!((curl.process.as_str(), curl.subject, report.callers.len()), ("curl", false, 3));
    }

    #[test]
    fn what_an_interrupt_did_is_nobodys() {
        let in_irq =
            |pid, value: &str| EventCell { in_irq: true, value: value.to_owned(), ..cell(pid, "echo", Some(2), 10) };
        let idle = EventCell { process: String::new(), ..cell(0, "swapper/1", None, 10) };
        let report = counted(vec![in_irq(100, "A"), in_irq(7, "A"), in_irq(0, "B"), idle], 0);
        assert_eq!((report.of_subject, report.in_irq), (0.0, 0.75));
        assert_eq!(report.callers.len(), 3);
        let first = &report.callers[0];
        assert_eq!((first.pid, first.process.as_str(), first.value.as_str(), first.count), (None, "", "A", 20));
        assert!(report.callers.iter().all(|caller| caller.pid.is_none() && !caller.subject));
    }

    #[test]
    fn an_event_that_never_happened_is_reported_so() {
        let report = counted(Vec::new(), 0);
        assert_eq!((report.count, report.per_s, report.of_subject), (0, 0.0, 0.0));
        assert!(report.callers.is_empty());
    }
}

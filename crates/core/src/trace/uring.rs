//! Lanes of requests to io_uring, by the thread that submitted them and their opcode; and what was outstanding when a thread waited.
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap};

use parshall_evidence::{Capture, Uring, UringRequest};

use super::lane::{Draft, Of, Span, Texts};
use super::state::State;
use crate::sorting::StableSort as _;
use crate::units::or;

/// By process, thread and opcode.
pub fn lanes(capture: &Capture, texts: &mut Texts) -> Vec<Draft> {
    let Some(uring) = &capture.uring else { return Vec::new() };
    let names: HashMap<u32, (u32, &str, &str)> =
        uring.cells.iter().map(|cell| (cell.tid, (cell.pid, cell.process.as_str(), cell.thread.as_str()))).collect();
    let mut by_lane: BTreeMap<(u32, u32, &str), Vec<&UringRequest>> = BTreeMap::new();
    for request in &uring.requests {
        let pid = names.get(&request.tid).map_or(0, |(pid, ..)| *pid);
        by_lane.entry((pid, request.tid, &request.opcode)).or_default().push(request);
    }
    let lane = |((pid, tid, opcode), mut requests): ((u32, u32, &str), Vec<&UringRequest>)| {
        // A case that was changed by hand may have any order.
        requests.stable_sort_by_key(|request| request.begin_ns);
        let (_, process, thread) = names.get(&tid).copied().unwrap_or_default();
        Draft {
            of: Of::Uring(tid),
            group: format!("{} {pid}", or(process, "process")),
            name: format!("{} of {} {tid}", or(opcode, "request"), or(thread, "thread")),
            spans: requests.into_iter().map(|request| (span(request, capture.window_ns, texts), 0)).collect(),
        }
    };
    by_lane.into_iter().map(lane).collect()
}

fn span(request: &UringRequest, window_ns: u64, texts: &mut Texts) -> Span {
    let state = match request.end_ns {
        None => State::UringOpen,
        Some(_) if request.result < 0 => State::UringFailed,
        Some(_) => State::UringDone,
    };
    let result = match request.end_ns {
        Some(_) if request.result >= 0 => format!("result {}", request.result),
        Some(_) => or(&request.error, &format!("error {}", request.result.unsigned_abs())),
        None => String::new(),
    };
    let on_the_way = [
        (request.polled, "waited for its descriptor"),
        (request.worker, "in a worker thread"),
        (request.failed_link, "ended those linked to it"),
    ];
    let parts = on_the_way.into_iter().filter(|(is, _)| *is).map(|(_, what)| what);
    let text: Vec<&str> = std::iter::once(result.as_str()).chain(parts).filter(|part| !part.is_empty()).collect();
    Span {
        begin_ns: request.begin_ns,
        end_ns: request.end_ns.unwrap_or(window_ns).max(request.begin_ns),
        state,
        text: texts.id(text.join(" · ")),
        ended_by: None,
        stack: None,
    }
}

/// The outstanding requests of threads to io_uring, as far as they are known.
pub struct Outstanding<'c> {
    threads: HashMap<u32, Thread<'c>>,
}

/// Those of one thread.
enum Thread<'c> {
    /// All of its requests are known.
    Requests(Sweep<'c>),
    /// Only that it was the same in all of its waits.
    Always(&'c [String]),
}

/// Requests that began, in the order of their begin, and those of them that have not ended.
#[derive(Default)]
struct Sweep<'c> {
    /// The last one first.
    later: Vec<&'c UringRequest>,
    ends: BinaryHeap<Reverse<(u64, &'c str)>>,
    open: BTreeMap<&'c str, u64>,
}

impl<'c> Outstanding<'c> {
    /// Of a capture.
    pub fn new(capture: &'c Capture) -> Outstanding<'c> {
        let mut threads = HashMap::new();
        match &capture.uring {
            None => {}
            Some(uring) if uring.left_out == 0 && uring.not_followed == 0 => {
                for request in &uring.requests {
                    let thread = threads.entry(request.tid).or_insert_with(|| Thread::Requests(Sweep::default()));
                    if let Thread::Requests(sweep) = thread {
                        sweep.later.push(request);
                    }
                }
                for thread in threads.values_mut() {
                    if let Thread::Requests(sweep) = thread {
                        sweep.later.stable_sort_by_key(|request| Reverse(request.begin_ns));
                    }
                }
            }
            Some(uring) => threads = always(uring),
        }
        Outstanding { threads }
    }

    /// In words: `2 recv, 1 timeout outstanding`; empty where nothing is known. Times of a thread must not run backwards.
    pub fn text(&mut self, tid: u32, at_ns: u64) -> String {
        let of_opcodes: Vec<String> = match self.threads.get_mut(&tid) {
            None => Vec::new(),
            Some(Thread::Always(opcodes)) => opcodes.to_vec(),
            Some(Thread::Requests(sweep)) => {
                sweep.advance(at_ns);
                sweep.open.iter().map(|(opcode, n)| format!("{n} {}", or(opcode, "of unknown opcode"))).collect()
            }
        };
        if of_opcodes.is_empty() { String::new() } else { format!("{} outstanding", of_opcodes.join(", ")) }
    }
}

/// Threads with the same opcodes in all of their waits.
fn always(uring: &Uring) -> HashMap<u32, Thread<'_>> {
    let mut sets: HashMap<u32, Option<&[String]>> = HashMap::new();
    for waits in &uring.waits {
        let same = Some(waits.outstanding.as_slice());
        sets.entry(waits.tid).and_modify(|known| *known = known.filter(|_| *known == same)).or_insert(same);
    }
    let known = sets.into_iter().filter_map(|(tid, set)| Some((tid, Thread::Always(set?))));
    known.collect()
}

impl<'c> Sweep<'c> {
    fn advance(&mut self, at_ns: u64) {
        while let Some(request) = self.later.pop_if(|request| request.begin_ns <= at_ns) {
            self.ends.push(Reverse((request.end_ns.unwrap_or(u64::MAX), request.opcode.as_str())));
            *self.open.entry(&request.opcode).or_default() += 1;
        }
        while let Some(Reverse((end_ns, opcode))) = self.ends.peek().copied()
            && end_ns <= at_ns
        {
            self.ends.pop();
            if let Some(n) = self.open.get_mut(opcode) {
                *n -= 1;
            }
            self.open.retain(|_, n| *n > 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use parshall_evidence::UringWaits;

    use super::*;
    use crate::testkit::empty_capture;

    fn request(opcode: &str, begin_ns: u64, end_ns: Option<u64>, result: i32) -> UringRequest {
        UringRequest { begin_ns, end_ns, tid: 8, opcode: opcode.to_owned(), result, ..UringRequest::default() }
    }

    fn capture(requests: Vec<UringRequest>, left_out: u64) -> Capture {
        let wait = |outstanding: &[&str]| UringWaits {
            tid: 8,
            outstanding: outstanding.iter().map(|opcode| (*opcode).to_owned()).collect(),
            ..UringWaits::default()
        };
        let waits = vec![wait(&["recv", "timeout"]), wait(&["recv", "timeout"])];
        Capture { uring: Some(Uring { requests, left_out, waits, ..Uring::default() }), ..empty_capture() }
    }

    #[test]
    fn a_wait_names_what_is_outstanding_when_it_begins() {
        let requests = vec![
            request("recv", 10, Some(50), 5),
            request("recv", 20, None, 0),
            request("timeout", 20, Some(30), -62),
            request("send", 60, Some(70), 1),
        ];
        let capture = capture(requests, 0);
        let mut outstanding = Outstanding::new(&capture);
        assert_eq!(outstanding.text(8, 5), "");
        assert_eq!(outstanding.text(8, 25), "2 recv, 1 timeout outstanding");
        assert_eq!(outstanding.text(8, 30), "2 recv outstanding", "one that ends at that moment is not");
        assert_eq!(outstanding.text(8, 65), "1 recv, 1 send outstanding");
        assert_eq!(outstanding.text(9, 65), "", "another thread");
    }

    #[test]
    fn where_requests_are_left_out_only_what_is_always_so_is_said() {
        let mut capture = capture(vec![request("recv", 10, Some(50), 5)], 3);
        assert_eq!(Outstanding::new(&capture).text(8, 25), "recv, timeout outstanding");
        capture.uring.as_mut().unwrap().waits[1].outstanding.pop();
        assert_eq!(Outstanding::new(&capture).text(8, 25), "");
    }

    #[test]
    fn requests_have_their_result_and_what_happened_on_their_way() {
        let polled = UringRequest { polled: true, worker: true, ..request("recv", 10, Some(50), 5) };
        let failed = UringRequest { error: "ENOBUFS".to_owned(), ..request("recv", 60, Some(61), -105) };
        let capture = capture(vec![failed, polled, request("accept", 5, None, 0)], 0);
        let mut texts = Texts::new();
        let lanes = lanes(&capture, &mut texts);
        let shown: Vec<_> = lanes
            .iter()
            .flat_map(|lane| {
                lane.spans.iter().map(|(span, _)| (lane.name.as_str(), span.state, span.text, span.end_ns))
            })
            .map(|(name, state, text, end)| (name, state.id(), texts.all[text as usize].as_str(), end))
            .collect();
        assert_eq!(
            shown,
            [
                ("accept of thread 8", "uring-open", "", capture.window_ns),
                ("recv of thread 8", "uring-done", "result 5 · waited for its descriptor · in a worker thread", 50),
                ("recv of thread 8", "uring-failed", "ENOBUFS", 61),
            ]
        );
    }
}

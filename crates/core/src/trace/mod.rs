//! A capture as it is drawn: lanes of requests, threads, sockets, requests to io_uring and log lines on one axis of time.
//!
//! Nothing is concluded here. A trace for a page has at most [`SPANS_MAX`] spans, whatever the capture: short ones that follow each other become one
//! ([`State::Many`]), and lanes beyond [`LANES_MAX`] are counted.
mod lane;
mod limit;
mod log;
mod marks;
mod requests;
mod sockets;
mod state;
#[cfg(test)]
mod tests;
mod threads;
mod uring;

use std::collections::HashMap;

use parshall_evidence::Capture;

use crate::critical_path::Index;

pub use lane::{Lane, Of, Span, Trace};
pub use marks::{Mark, Marker};
pub use state::{Kind, State, Tone};

use lane::{Draft, Texts};

/// Lanes of a trace for a page, of all kinds together.
pub const LANES_MAX: usize = 1_000;
/// Spans of a trace for a page, of all lanes together.
pub const SPANS_MAX: usize = 40_000;

impl Trace {
    /// The trace of a capture. One without single events, of a rung that does not see them, has the stalls of sockets and threads.
    /// `index` is that of its timeline.
    pub fn new(capture: &Capture, index: Option<&Index<'_>>) -> Trace {
        Trace::limited(capture, index, LANES_MAX, SPANS_MAX)
    }

    /// The same with every lane and span, for formats that need not be small.
    pub fn whole(capture: &Capture, index: Option<&Index<'_>>) -> Trace {
        Trace::limited(capture, index, usize::MAX, usize::MAX)
    }

    fn limited(capture: &Capture, index: Option<&Index<'_>>, lanes_max: usize, spans_max: usize) -> Trace {
        let mut texts = Texts::new();
        let mut lanes = index.map_or_else(Vec::new, |index| requests::lanes(index, &mut texts));
        lanes.extend(threads::lanes(capture, &mut texts));
        lanes.extend(sockets::lanes(capture, &mut texts));
        lanes.extend(uring::lanes(capture, &mut texts));
        lanes.extend(log::lanes(capture, &mut texts));
        number_names(&mut lanes);
        let left_out = limit::lanes(&mut lanes, lanes_max);
        let opens_at = opens_at(&lanes, capture.window_ns);
        let thread = |(at, lane): (usize, &Draft)| match lane.of {
            Of::Thread(tid) => Some((tid, at as u32)),
            Of::Connection(_) | Of::Socket(_) | Of::Uring(_) | Of::Log(_) => None,
        };
        let threads = lanes.iter().enumerate().filter_map(thread).collect();
        let mut lanes: Vec<Lane> = lanes.into_iter().map(|lane| lane.placed(&threads)).collect();
        let whole_from_ns = limit::spans(&mut lanes, spans_max);
        let timeline = capture.timeline.as_ref();
        Trace {
            window_ns: capture.window_ns,
            slices: timeline.map_or_else(Vec::new, |timeline| timeline.slices.clone()),
            lanes,
            texts: texts.all,
            opens_at,
            reduced: timeline.is_some_and(|timeline| timeline.left_out > 0),
            left_out,
            whole_from_ns,
        }
    }
}

/// Lanes of one name get numbers: a client may have opened two connections from one port, one after the other.
fn number_names(lanes: &mut [Draft]) {
    let mut seen: HashMap<(Kind, String, String), u32> = HashMap::new();
    for lane in lanes {
        let count = seen.entry((lane.of.kind(), lane.group.clone(), lane.name.clone())).or_default();
        *count += 1;
        if *count > 1 {
            lane.name = format!("{} ({count})", lane.name);
        }
    }
}

/// The longest wait of the first kind of lane that has one, with a quarter of its length on either side.
fn opens_at(lanes: &[Draft], window_ns: u64) -> (u64, u64) {
    let longest = |kind: Kind| {
        let spans = lanes.iter().filter(|lane| lane.of.kind() == kind).flat_map(|lane| &lane.spans);
        let waits = spans.filter(|(span, _)| span.state.is_wait()).map(|(span, _)| (span.begin_ns, span.end_ns));
        waits.max_by_key(|(begin, end)| (end.saturating_sub(*begin), std::cmp::Reverse(*begin)))
    };
    let found = longest(Kind::Requests).or_else(|| longest(Kind::Socket)).or_else(|| longest(Kind::Thread));
    let Some((begin, end)) = found else { return (0, window_ns) };
    let margin = (end - begin) / 4;
    (begin.saturating_sub(margin), end.saturating_add(margin).min(window_ns.max(end)))
}

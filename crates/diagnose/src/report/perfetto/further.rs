//! Tracks of requests to io_uring and of log lines.
use std::collections::BTreeMap;

use parshall_core::trace::{Lane, Of, Trace};

use super::lanes::named;
use super::writer::{Event, Kind, Writer};

/// Numbers of tracks: what they are of, and its own number.
const GROUPS: u64 = 8 << 56;
const URING: u64 = 9 << 56;
const LOGS: u64 = 10 << 56;

/// The rank of the tracks that come last but for those of sockets.
const LATE: u64 = 0x7fff_fff0;

/// Requests to io_uring by process. Those of a lane that overlap have a track each.
pub fn uring(trace: &Trace, writer: &mut Writer<'_>) {
    let mut groups: BTreeMap<&str, u64> = BTreeMap::new();
    let mut tracks = 0;
    for lane in lanes(trace, |of| matches!(of, Of::Uring(_))) {
        let rank = groups.len() as u64;
        let group = *groups.entry(&lane.group).or_insert_with(|| {
            writer.track(&named(GROUPS | rank, None, &format!("io_uring of {}", lane.group), LATE));
            GROUPS | rank
        });
        let mut rows: Vec<(u64, u64)> = Vec::new();
        for span in &lane.spans {
            let at = rows.iter().position(|(free_ns, _)| *free_ns <= span.begin_ns).unwrap_or_else(|| {
                let track = URING | tracks;
                tracks += 1;
                writer.track(&named(track, Some(group), &lane.name, tracks));
                rows.push((0, track));
                rows.len() - 1
            });
            // A slice of no length would hide the next one.
            let end_ns = span.end_ns.max(span.begin_ns.saturating_add(1));
            rows[at].0 = end_ns;
            let begin = Event::new(Kind::Begin, rows[at].1, span.begin_ns, span.state.label());
            writer.push(begin.note("result", trace.text(span)));
            writer.push(Event::new(Kind::End, rows[at].1, end_ns, ""));
        }
    }
}

/// Log lines as moments, a track for each process and where they went.
pub fn log(trace: &Trace, writer: &mut Writer<'_>) {
    for (number, lane) in (0..).zip(lanes(trace, |of| matches!(of, Of::Log(_)))) {
        let track = LOGS | number;
        writer.track(&named(track, None, &format!("{} of {}", lane.name, lane.group), LATE));
        for span in &lane.spans {
            writer.push(Event::new(Kind::Instant, track, span.begin_ns, trace.text(span)));
        }
    }
}

fn lanes(trace: &Trace, wanted: impl Fn(Of) -> bool) -> impl Iterator<Item = &Lane> {
    trace.lanes.iter().filter(move |lane| wanted(lane.of))
}

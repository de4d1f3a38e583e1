//! The trace as data of a page: JSON in columns, compressed by zlib (RFC 1950), in base64. `page.js` reads it.
use std::collections::HashMap;
use std::io::Write;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use flate2::Compression;
use flate2::write::ZlibEncoder;
use parshall_core::report::simplified;
use parshall_core::trace::{Lane, Mark, State, Trace};
use parshall_evidence::Capture;
use serde::Serialize;

use super::clean::clean;
use super::figures::Figures;

/// Times are in units of this many nanoseconds.
const UNIT_NS: u64 = 100;

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Data {
    unit_ns: u64,
    window: u64,
    slices: Vec<(u64, u64)>,
    opens_at: (u64, u64),
    reduced: bool,
    left_out: u64,
    whole_from: u64,
    /// Id, label and tone.
    states: Vec<(&'static str, &'static str, &'static str)>,
    texts: Vec<String>,
    /// Names of functions.
    names: Vec<String>,
    /// Stacks, innermost frame first, of indexes into `names`.
    stacks: Vec<Vec<u32>>,
    lanes: Vec<LaneData>,
    /// CPU samples of the whole window: name of the thread, stack, count.
    samples: Vec<(String, u32, u64)>,
    /// Anchor of the events, title and anchor of the rule of each figure, and its events: index into `marks`.
    figures: Vec<(String, String, String, u32)>,
    /// Events: for each lane its number, its first span and the distance from each span to the next.
    marks: Vec<Vec<Vec<u32>>>,
}

/// A column for each field of the spans.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct LaneData {
    /// The number of its `Kind`.
    kind: u8,
    group: String,
    name: String,
    /// From the begin of the span before.
    begins: Vec<u64>,
    lengths: Vec<u64>,
    states: Vec<u32>,
    texts: Vec<u32>,
    /// The lane of the thread that ended it and one, 0 for none.
    ended_by: Vec<u32>,
    /// Index into the stacks of the page and one, 0 for none.
    stacks: Vec<u32>,
}

/// The text of the script element. Base64 has no `<`.
pub fn packed(trace: &Trace, figures: &Figures<'_>, capture: &Capture) -> anyhow::Result<String> {
    let mut encoder = ZlibEncoder::new(Vec::new(), Compression::default());
    serde_json::to_writer(&mut encoder, &data(trace, figures, capture))?;
    encoder.flush()?;
    Ok(STANDARD.encode(encoder.finish()?))
}

fn data(trace: &Trace, figures: &Figures<'_>, capture: &Capture) -> Data {
    let opens_at = figures.opens_at(trace).unwrap_or(trace.opens_at);
    let states = State::all();
    let numbers: HashMap<State, u32> = states.iter().copied().zip(0..).collect();
    let mut stacks = Stacks::new(capture);
    let lanes = trace.lanes.iter().map(|lane| lane_data(lane, &numbers, &mut stacks)).collect();
    let samples = samples(capture, &mut stacks);
    // Several figures may have the same events.
    let mut marks: Vec<&[Mark]> = Vec::new();
    let figures = figures.all.iter().map(|figure| {
        let at = marks.iter().position(|known| *known == figure.marks).unwrap_or_else(|| {
            marks.push(&figure.marks);
            marks.len() - 1
        });
        (figure.id.clone(), figure.title.clone(), figure.rule.clone(), at as u32)
    });
    let figures = figures.collect();
    Data {
        unit_ns: UNIT_NS,
        window: trace.window_ns / UNIT_NS,
        slices: trace.slices.iter().map(|(begin, end)| (begin / UNIT_NS, end / UNIT_NS)).collect(),
        opens_at: (opens_at.0 / UNIT_NS, opens_at.1 / UNIT_NS),
        reduced: trace.reduced,
        left_out: trace.left_out,
        whole_from: trace.whole_from_ns / UNIT_NS,
        states: states.iter().map(|state| (state.id(), state.label(), state.tone().id())).collect(),
        texts: trace.texts.iter().map(|text| clean(text)).collect(),
        names: stacks.names,
        stacks: stacks.all,
        lanes,
        samples,
        figures,
        marks: marks.into_iter().map(|marks| marks.iter().map(columns).collect()).collect(),
    }
}

fn columns(mark: &Mark) -> Vec<u32> {
    let mut before = 0;
    let distances = mark.spans.iter().map(|span| span - std::mem::replace(&mut before, *span));
    std::iter::once(mark.lane).chain(distances).collect()
}

fn lane_data(lane: &Lane, numbers: &HashMap<State, u32>, stacks: &mut Stacks<'_>) -> LaneData {
    let spans = || lane.spans.iter();
    let mut before = 0;
    let begins = spans().map(|span| {
        let begin = (span.begin_ns / UNIT_NS).max(before);
        let delta = begin - before;
        before = begin;
        delta
    });
    LaneData {
        kind: lane.kind as u8,
        group: clean(&lane.group),
        name: clean(&lane.name),
        begins: begins.collect(),
        lengths: spans()
            .map(|span| span.end_ns / UNIT_NS - (span.begin_ns / UNIT_NS).min(span.end_ns / UNIT_NS))
            .collect(),
        states: spans().map(|span| numbers.get(&span.state).copied().unwrap_or(0)).collect(),
        texts: spans().map(|span| span.text).collect(),
        ended_by: spans().map(|span| span.ended_by.map_or(0, |lane| lane + 1)).collect(),
        stacks: spans().map(|span| span.stack.map_or(0, |stack| stacks.id(stack) + 1)).collect(),
    }
}

fn samples(capture: &Capture, stacks: &mut Stacks<'_>) -> Vec<(String, u32, u64)> {
    let names: HashMap<u32, &str> = capture.threads.iter().map(|thread| (thread.tid, thread.comm.as_str())).collect();
    let named = |tid: u32| clean(&format!("{} {tid}", names.get(&tid).copied().unwrap_or("thread")));
    let with_stack = capture.samples.iter().filter_map(|sample| Some((sample, sample.stack?)));
    with_stack.map(|(sample, stack)| (named(sample.tid), stacks.id(stack), sample.count)).collect()
}

/// The stacks that a page refers to.
struct Stacks<'c> {
    capture: &'c Capture,
    known: HashMap<u32, u32>,
    known_names: HashMap<String, u32>,
    names: Vec<String>,
    all: Vec<Vec<u32>>,
}

impl<'c> Stacks<'c> {
    fn new(capture: &'c Capture) -> Stacks<'c> {
        Stacks { capture, known: HashMap::new(), known_names: HashMap::new(), names: Vec::new(), all: Vec::new() }
    }

    /// The number of a stack of the capture in the page.
    fn id(&mut self, stack: u32) -> u32 {
        if let Some(id) = self.known.get(&stack) {
            return *id;
        }
        let frames = self.capture.stacks.get(stack as usize).map_or(&[][..], |stack| &stack.frames);
        let frames: Vec<u32> = frames
            .iter()
            .map(|frame| (frame.kernel, clean(&simplified(&frame.name))))
            .map(|(kernel, name)| {
                let name = if kernel { format!("{name} [kernel]") } else { name };
                let next = self.names.len() as u32;
                *self.known_names.entry(name).or_insert_with_key(|name| {
                    self.names.push(name.clone());
                    next
                })
            })
            .collect();
        let id = self.all.len() as u32;
        self.all.push(frames);
        self.known.insert(stack, id);
        id
    }
}

//! Traces of captures made by hand and of any: read back field by field, they hold together.
use std::collections::{BTreeMap, BTreeSet};

use parshall_core::testkit::timeline::{Script, client_socket, off, served_socket};
use parshall_core::testkit::{MS, empty_capture};
use parshall_evidence::timeline::{OffCpu, Waker};
use parshall_evidence::{Capture, Frame, Stack};

use super::*;
use crate::testkit::captures::exchange;
use crate::testkit::golden::golden;
use crate::testkit::reports::{self, formed};

/// A field of a message: a number, or bytes.
#[derive(Debug, Clone, PartialEq)]
enum Field {
    Number(u64),
    Bytes(Vec<u8>),
}

/// The fields of a message by their numbers.
type Fields = BTreeMap<u32, Vec<Field>>;

fn varint(bytes: &mut &[u8]) -> u64 {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (first, rest) = bytes.split_first().expect("a byte");
        *bytes = rest;
        value |= u64::from(first & 0x7f) << shift;
        if first & 0x80 == 0 {
            return value;
        }
    }
    panic!("too long");
}

fn fields(mut bytes: &[u8]) -> Fields {
    let mut found = Fields::new();
    while !bytes.is_empty() {
        let key = varint(&mut bytes);
        let field = match key & 7 {
            0 => Field::Number(varint(&mut bytes)),
            1 => {
                let (value, rest) = bytes.split_at(8);
                bytes = rest;
                Field::Number(u64::from_le_bytes(value.try_into().unwrap()))
            }
            2 => {
                let length = varint(&mut bytes) as usize;
                let (value, rest) = bytes.split_at(length);
                bytes = rest;
                Field::Bytes(value.to_vec())
            }
            other => panic!("wire type {other}"),
        };
        found.entry((key >> 3) as u32).or_default().push(field);
    }
    found
}

fn number(of: &Fields, field: u32) -> Option<u64> {
    of.get(&field).map(|all| match all.as_slice() {
        [Field::Number(value)] => *value,
        other => panic!("{field}: {other:?}"),
    })
}

fn numbers(of: &Fields, field: u32) -> Vec<u64> {
    let all = of.get(&field).into_iter().flatten();
    all.map(|value| if let Field::Number(value) = value { *value } else { panic!("{field}: {value:?}") }).collect()
}

fn messages(of: &Fields, field: u32) -> Vec<Fields> {
    let all = of.get(&field).into_iter().flatten();
    all.map(|value| if let Field::Bytes(bytes) = value { fields(bytes) } else { panic!("{field}: {value:?}") })
        .collect()
}

fn text(of: &Fields, field: u32) -> String {
    match of.get(&field).map(Vec::as_slice) {
        Some([Field::Bytes(bytes)]) => String::from_utf8(bytes.clone()).expect("UTF-8"),
        other => panic!("{field}: {other:?}"),
    }
}

/// The contents of a file, as a reader sees them.
#[derive(Default)]
pub struct Read {
    /// Names of tracks by their numbers.
    tracks: BTreeMap<u64, String>,
    /// Slices: track, begin, end, name.
    slices: Vec<(u64, u64, u64, String)>,
    /// Instants: track, time, name.
    instants: Vec<(u64, u64, String)>,
    /// Notes of slices and instants.
    pub notes: Vec<(String, String)>,
    /// The ids of arrows that begin or go on, and of those that end.
    flows: Vec<u64>,
    ends: Vec<u64>,
    /// Names of functions by callstack, outermost first.
    stacks: BTreeMap<u64, Vec<String>>,
    samples: u64,
    /// By CPU: time, and from whom to whom.
    switches: BTreeMap<u64, Vec<(u64, u64, u64, u64)>>,
    /// Time, waker and who is woken.
    wakings: Vec<(u64, u64, u64)>,
}

/// A reader of packets, with the interned strings and the open slices.
#[derive(Default)]
struct Reader {
    read: Read,
    names: BTreeMap<u64, String>,
    notes: BTreeMap<u64, String>,
    functions: BTreeMap<u64, String>,
    paths: BTreeSet<u64>,
    mappings: BTreeSet<u64>,
    frames: BTreeMap<u64, u64>,
    open: BTreeMap<u64, Vec<(u64, String)>>,
    last: BTreeMap<u64, u64>,
}

/// Reads a file, and checks what holds of every one.
pub fn read(bytes: &[u8]) -> Read {
    let mut reader = Reader::default();
    for packet in messages(&fields(bytes), 1) {
        assert!(number(&packet, 10).is_some_and(|sequence| sequence > 0), "{packet:?}");
        messages(&packet, 12).iter().for_each(|interned| reader.interned(interned));
        messages(&packet, 60).iter().for_each(|track| reader.track(track));
        let ns = number(&packet, 8);
        messages(&packet, 11).iter().for_each(|event| reader.event(ns.unwrap(), event));
        for sample in messages(&packet, 66) {
            assert!(reader.read.stacks.contains_key(&number(&sample, 4).unwrap()));
            reader.read.samples += 1;
        }
        messages(&packet, 1).iter().for_each(|bundle| reader.scheduler(bundle));
    }
    reader.finished()
}

impl Reader {
    fn interned(&mut self, interned: &Fields) {
        for name in messages(interned, 2) {
            assert_eq!(self.names.insert(number(&name, 1).unwrap(), text(&name, 2)), None, "given once");
        }
        for name in messages(interned, 3) {
            assert_eq!(self.notes.insert(number(&name, 1).unwrap(), text(&name, 2)), None, "given once");
        }
        for name in messages(interned, 5) {
            self.functions.insert(number(&name, 1).unwrap(), text(&name, 2));
        }
        self.paths.extend(messages(interned, 17).iter().map(|path| number(path, 1).unwrap()));
        for mapping in messages(interned, 19) {
            assert!(self.paths.contains(&number(&mapping, 7).unwrap()));
            self.mappings.insert(number(&mapping, 1).unwrap());
        }
        for frame in messages(interned, 6) {
            assert!(self.mappings.contains(&number(&frame, 3).unwrap()));
            self.frames.insert(number(&frame, 1).unwrap(), number(&frame, 2).unwrap());
        }
        for stack in messages(interned, 7) {
            let names = numbers(&stack, 2).iter().map(|frame| self.functions[&self.frames[frame]].clone()).collect();
            self.read.stacks.insert(number(&stack, 1).unwrap(), names);
        }
    }

    fn track(&mut self, track: &Fields) {
        let thread = messages(track, 4).iter().map(|thread| text(thread, 5)).next();
        let process = messages(track, 3).iter().map(|process| text(process, 6)).next();
        let name = thread.or(process).unwrap_or_else(|| text(track, 2));
        if let Some(parent) = number(track, 5) {
            assert!(self.read.tracks.contains_key(&parent), "its parent came before it");
        }
        assert_eq!(self.read.tracks.insert(number(track, 1).unwrap(), name), None, "described once");
    }

    fn event(&mut self, ns: u64, event: &Fields) {
        let track = number(event, 11).unwrap();
        assert!(self.read.tracks.contains_key(&track), "an event of a track that is there");
        let before = self.last.insert(track, ns).unwrap_or(0);
        assert!(before <= ns, "times of a track rise");
        self.read.flows.extend(numbers(event, 47));
        self.read.ends.extend(numbers(event, 48));
        for note in messages(event, 4) {
            self.read.notes.push((self.notes[&number(&note, 1).unwrap()].clone(), text(&note, 6)));
        }
        if let Some(stack) = number(event, 56) {
            assert!(self.read.stacks.contains_key(&stack));
        }
        let name = || self.names[&number(event, 10).unwrap()].clone();
        match number(event, 9).unwrap() {
            1 => self.open.entry(track).or_default().push((ns, name())),
            2 => {
                let (begin, name) = self.open.get_mut(&track).and_then(Vec::pop).expect("what ends has begun");
                self.read.slices.push((track, begin, ns, name));
            }
            3 => self.read.instants.push((track, ns, name())),
            other => panic!("type {other}"),
        }
    }

    fn scheduler(&mut self, bundle: &Fields) {
        let cpu = number(bundle, 1).unwrap();
        for event in messages(bundle, 2) {
            let ns = number(&event, 1).unwrap();
            for switch in messages(&event, 4) {
                let (from, to) = (number(&switch, 2).unwrap(), number(&switch, 6).unwrap());
                let all = self.read.switches.entry(cpu).or_default();
                let (at, _, running, _) = all.last().copied().unwrap_or_default();
                assert!(at <= ns && running == from, "who leaves a CPU was on it: {all:?} {ns} {from}");
                all.push((ns, from, to, number(&switch, 4).unwrap()));
            }
            let woken = messages(&event, 20);
            self.read.wakings.extend(woken.iter().map(|w| (ns, number(&event, 2).unwrap(), number(w, 2).unwrap())));
        }
    }

    fn finished(self) -> Read {
        let read = self.read;
        assert!(self.open.values().all(Vec::is_empty), "every slice ends: {:?}", self.open);
        // Nobody runs on two CPUs at a time.
        let mut runs: Vec<(u64, u64, u64)> = Vec::new();
        for switches in read.switches.values() {
            for pair in switches.windows(2).filter(|pair| pair[0].2 != 0) {
                runs.push((pair[0].2, pair[0].0, pair[1].0));
            }
        }
        runs.sort_unstable();
        assert!(runs.windows(2).all(|pair| pair[0].0 != pair[1].0 || pair[0].2 <= pair[1].1), "{runs:?}");
        let begun: BTreeSet<&u64> = read.flows.iter().collect();
        assert!(read.ends.iter().all(|flow| begun.contains(flow)), "what ends has begun");
        read
    }
}

#[test]
fn a_request_its_threads_and_the_arrows_between_them() {
    let read = read(&formed(perfetto, &reports::all()[0].1, &exchange()));
    let of = |name: &str| -> Vec<(u64, u64, &str)> {
        let track = read.tracks.iter().find(|(_, found)| *found == name).map(|(track, _)| *track).expect("a track");
        let mut all: Vec<(u64, u64, &str)> =
            read.slices.iter().filter(|slice| slice.0 == track).map(|s| (s.1, s.2, s.3.as_str())).collect();
        all.extend(read.instants.iter().filter(|i| i.0 == track).map(|i| (i.1, i.1, i.2.as_str())));
        all.sort_unstable();
        all
    };
    assert_eq!(
        of("127.0.0.1:50000"),
        [(100_000, 200_000, "unread in the socket"), (100_000, 800_000, "request"), (200_000, 800_000, "worked on")]
    );
    assert_eq!(
        of("worker"),
        [
            (200_000, 200_000, "reads a request"),
            (200_000, 200_000, "receives"),
            (300_000, 700_000, "sleeps in futex"),
            (700_000, 700_000, "woken by t102 102"),
            (700_000, 750_000, "waits for a CPU"),
            (800_000, 800_000, "replies"),
            (800_000, 800_000, "sends"),
        ]
    );
    assert_eq!(of("t201"), [(90_000, 90_000, "asks"), (90_000, 90_000, "sends")]);
    assert!(of("t102").contains(&(700_000, 700_000, "wakes worker 101")));
    // The arrow of the request begins at who asks, leads over the request and its reader to the reply; the other one is the wake-up.
    assert_eq!((read.flows.len(), read.ends.len()), (4, 2));
    assert_eq!(read.stacks.values().next().unwrap(), &["main", "lock", "futex"]);
    assert_eq!(read.samples, 3);
    assert!(read.slices.iter().any(|slice| (slice.2 - slice.1, slice.3.as_str()) == (40 * MS, "held by Nagle")));
}

#[test]
fn threads_run_between_their_times_off_the_cpu() {
    let read = read(&formed(perfetto, &reports::all()[0].1, &exchange()));
    let mut of_worker: Vec<(u64, u64, u64, u64)> =
        read.switches.values().flatten().filter(|s| s.1 == 101 || s.2 == 101).copied().collect();
    of_worker.sort_unstable();
    let seen: Vec<(u64, bool, u64)> =
        of_worker.iter().map(|s| (s.0, s.2 == 101, if s.1 == 101 { s.3 } else { 0 })).collect();
    // It runs from the begin of the slice, sleeps, and runs when it has got a CPU until it replies; of the rest nothing is known.
    assert_eq!(seen, [(0, true, 0), (300_000, false, 1), (750_000, true, 0), (800_000, false, 0x40)]);
    assert!(
        read.wakings.contains(&(700_000, 102, 101)) && read.wakings.contains(&(650_000, 0, 102)),
        "{:?}",
        read.wakings
    );
    // A case that left times out does not say when its threads ran.
    let mut reduced = exchange();
    reduced.timeline.as_mut().unwrap().left_out = 5;
    assert!(self::read(&formed(perfetto, &reports::all()[0].1, &reduced)).switches.is_empty());
}

#[test]
fn hostile_names_are_text_and_an_empty_case_is_a_trace() {
    let hostile = "<script>\u{1b}[2J\n;a b\u{202e}";
    let mut capture = exchange();
    let timeline = capture.timeline.as_mut().unwrap();
    timeline.names.values_mut().for_each(|names| (names.thread, names.process) = (hostile.into(), hostile.into()));
    capture.stacks[0].frames[0].name = hostile.to_owned();
    let found = read(&formed(perfetto, &reports::all()[0].1, &capture));
    let all =
        found.tracks.values().chain(found.stacks.values().flatten()).chain(found.notes.iter().map(|note| &note.1));
    assert!(all.clone().any(|name| name.contains("<script>?[2J?;a b?")));
    assert!(all.clone().all(|name| name.chars().all(parshall_core::text::is_printable)), "{:?}", found.tracks);
    let empty = read(&formed(perfetto, &reports::empty(), &empty_capture()));
    assert_eq!((empty.slices.len(), empty.switches.len()), (1, 0));
    assert!(empty.slices[0].3.starts_with("INSUFFICIENT EVIDENCE"));
}

#[test]
fn events_of_any_order_make_a_trace_that_holds_together() {
    // Numbers of a fixed sequence: times overlap, end before they begin, and go beyond the window.
    let mut seed = 7_u64;
    let mut next = |below: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) % below
    };
    for _ in 0..200 {
        let mut script =
            Script::new().socket(1, served_socket(7000), 101).socket(2, client_socket(7000), 201).pair(1, 2);
        for _ in 0..next(40) {
            let tid = [101, 102, 201, 202][next(4) as usize];
            let (begin, wake, end) = (next(1_200_000), next(1_200_000), next(1_200_000));
            script = match next(3) {
                0 => script.off(OffCpu {
                    waker: [Waker::Thread(102), Waker::SoftIrq, Waker::Unknown, Waker::Thread(999)][next(4) as usize],
                    stack: (next(2) == 0).then_some(next(3) as u32),
                    ..off(tid, begin, wake, end)
                }),
                1 => script.receives(tid, 1 + next(2), begin, wake),
                _ => script.sends(tid, 1 + next(2), begin),
            };
        }
        script.timeline.slices = vec![(0, 400_000), (500_000, 1_000_000)];
        let frame = Frame { name: "f".to_owned(), module: String::new(), kernel: true };
        let stacks = vec![Stack { frames: vec![frame] }, Stack::default()];
        let capture = Capture { timeline: Some(script.timeline), stacks, ..empty_capture() };
        read(&formed(perfetto, &reports::empty(), &capture));
    }
}

#[test]
fn the_report_is_in_the_notes_of_a_slice() {
    for (name, report) in reports::all() {
        let read = read(&formed(perfetto, &report, &empty_capture()));
        let page = Page::new(&report, Detail::Full);
        for row in page.time.iter().flat_map(|bars| &bars.rows) {
            let found = read.notes.iter().any(|(_, value)| *value == format!("{} {}", row.label, row.figure));
            assert!(found, "{name}: {row:?}");
        }
        assert!(page.verdict.sentences.iter().all(|sentence| read.notes.iter().any(|note| note.1 == clean(sentence))));
    }
}

#[test]
fn the_small_case() {
    let mut read = read(&formed(perfetto, &reports::all()[0].1, &exchange()));
    read.slices.sort();
    let mut lines = vec!["tracks".to_owned()];
    lines.extend(read.tracks.iter().map(|(track, name)| format!("  {track:#x} {name}")));
    lines.push("slices".to_owned());
    lines.extend(read.slices.iter().map(|(track, begin, end, name)| format!("  {track:#x} {begin} {end} {name}")));
    lines.push("instants".to_owned());
    lines.extend(read.instants.iter().map(|(track, ns, name)| format!("  {track:#x} {ns} {name}")));
    lines.push("switches".to_owned());
    for (cpu, switches) in &read.switches {
        lines
            .extend(switches.iter().map(|(ns, from, to, left)| format!("  cpu {cpu} {ns} {from} ({left:#x}) to {to}")));
    }
    lines.push("wakings".to_owned());
    lines.extend(read.wakings.iter().map(|(ns, waker, tid)| format!("  {ns} {waker} wakes {tid}")));
    lines.push(format!("arrows {:?} end {:?}", read.flows, read.ends));
    lines.push("notes".to_owned());
    lines.extend(read.notes.iter().map(|(name, value)| format!("  {name}: {value}")));
    golden("small-case.perfetto.txt", &(lines.join("\n") + "\n"));
}

//! Packets of a trace: tracks, events in the order of their times, and what they refer to by number (names, stacks).
//!
//! Field numbers are those of `protos/perfetto/trace` of Perfetto; `scripts/perfetto` reads files with its own definitions.
use std::collections::HashMap;

use parshall_core::report::simplified;
use parshall_core::sorting::StableSort as _;
use parshall_evidence::{Capture, Stack};
use parshall_host::output::clean;

use super::proto::Message;

/// The sequence of packets that tracks, events and samples belong to, and that of the scheduler's events.
const EVENTS: u64 = 1;
const SCHEDULER: u64 = 2;
/// `sequence_flags`: what was interned before is forgotten; this packet needs what was interned.
const CLEARED: u64 = 1;
const NEEDS: u64 = 2;

/// A thing on a track at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// A slice ends. First of those at one time, so that the next one does not begin within it.
    End,
    /// Something happens.
    Instant,
    /// A slice begins.
    Begin,
}

/// One event of a track.
#[derive(Debug, Clone)]
pub struct Event {
    /// When, in nanoseconds since the window began.
    pub ns: u64,
    /// What.
    pub kind: Kind,
    /// The track.
    pub track: u64,
    /// Its name; empty for an end.
    pub name: String,
    /// Names and values of what is known beside that.
    pub notes: Vec<(String, String)>,
    /// Index into the capture's stacks.
    pub stack: Option<u32>,
    /// The arrows that begin or go on here.
    pub flows: Vec<u64>,
    /// The arrows that end here.
    pub ends: Vec<u64>,
}

impl Event {
    /// With nothing beside its name.
    pub fn new(kind: Kind, track: u64, ns: u64, name: &str) -> Event {
        let name = name.to_owned();
        Event { ns, kind, track, name, notes: Vec::new(), stack: None, flows: Vec::new(), ends: Vec::new() }
    }

    /// With a note, unless it is empty.
    pub fn note(mut self, name: &str, value: &str) -> Event {
        if !value.is_empty() {
            self.notes.push((name.to_owned(), value.to_owned()));
        }
        self
    }
}

/// A file under construction.
pub struct Writer<'c> {
    capture: &'c Capture,
    out: Message,
    events: Vec<Event>,
    names: HashMap<String, u64>,
    note_names: HashMap<String, u64>,
    functions: HashMap<String, u64>,
    objects: HashMap<String, u64>,
    frames: HashMap<(u64, u64), u64>,
    stacks: HashMap<u32, u64>,
    /// Numbers that were given since the last packet.
    interned: Message,
    flows: u64,
}

/// The number of a name, and whether it is a new one. Numbers begin with 1.
fn number<K: std::hash::Hash + Eq>(known: &mut HashMap<K, u64>, key: K) -> (u64, bool) {
    let next = known.len() as u64 + 1;
    let id = *known.entry(key).or_insert(next);
    (id, id == next)
}

impl<'c> Writer<'c> {
    /// A file that begins with the kernel's release, by which readers tell the states of threads.
    pub fn new(capture: &'c Capture) -> Writer<'c> {
        let mut writer = Writer {
            capture,
            out: Message::default(),
            events: Vec::new(),
            names: HashMap::new(),
            note_names: HashMap::new(),
            functions: HashMap::new(),
            objects: HashMap::new(),
            frames: HashMap::new(),
            stacks: HashMap::new(),
            interned: Message::default(),
            flows: 0,
        };
        let mut utsname = Message::default();
        utsname.text(1, "Linux").text(3, &clean(&capture.host.kernel));
        let mut system = Message::default();
        system.message(1, &utsname).uint(8, u64::from(capture.host.cpus));
        let mut packet = Message::default();
        packet.message(45, &system).uint(10, EVENTS);
        writer.out.message(1, &packet);
        // Samples are counts of the software clock of a CPU.
        let mut timebase = Message::default();
        timebase.uint(4, 1);
        let mut samples = Message::default();
        samples.message(1, &timebase);
        let mut defaults = Message::default();
        defaults.message(12, &samples);
        let mut packet = Message::default();
        packet.message(59, &defaults).uint(13, CLEARED).uint(10, EVENTS);
        writer.out.message(1, &packet);
        writer
    }

    /// A track, as its descriptor says it.
    pub fn track(&mut self, descriptor: &Message) {
        let mut packet = Message::default();
        packet.message(60, descriptor).uint(13, NEEDS).uint(10, EVENTS);
        self.out.message(1, &packet);
    }

    /// An event, to be written with the others.
    pub fn push(&mut self, event: Event) {
        self.events.push(event);
    }

    /// The number of a new arrow.
    pub fn flow(&mut self) -> u64 {
        self.flows += 1;
        self.flows
    }

    /// A packet of the scheduler's events of one CPU.
    pub fn scheduler(&mut self, bundle: &Message) {
        let mut packet = Message::default();
        packet.message(1, bundle).uint(10, SCHEDULER);
        self.out.message(1, &packet);
    }

    /// A CPU sample.
    pub fn sample(&mut self, ns: u64, (pid, tid): (u32, u32), user: bool, stack: u32) {
        let mut sample = Message::default();
        sample.uint(2, u64::from(pid)).uint(3, u64::from(tid)).uint(5, if user { 2 } else { 1 });
        if let Some(id) = self.stack(stack) {
            sample.uint(4, id);
        }
        self.packet(ns, 66, &sample);
    }

    /// The bytes of the file, with the events in the order of their times.
    pub fn finish(mut self) -> Vec<u8> {
        let mut events = std::mem::take(&mut self.events);
        events.stable_sort_by_key(|event| (event.ns, event.kind));
        events.iter().for_each(|event| self.event(event));
        self.out.0
    }

    fn event(&mut self, event: &Event) {
        let mut message = Message::default();
        let kind = match event.kind {
            Kind::Begin => 1,
            Kind::End => 2,
            Kind::Instant => 3,
        };
        message.uint(9, kind).uint(11, event.track);
        if event.kind != Kind::End {
            let name = self.name(&event.name);
            message.uint(10, name);
        }
        for (name, value) in &event.notes {
            let mut note = Message::default();
            note.uint(1, self.note_name(name)).text(6, &clean(value));
            message.message(4, &note);
        }
        if let Some(id) = event.stack.and_then(|stack| self.stack(stack)) {
            message.uint(56, id);
        }
        event.flows.iter().for_each(|flow| {
            message.fixed(47, *flow);
        });
        event.ends.iter().for_each(|flow| {
            message.fixed(48, *flow);
        });
        self.packet(event.ns, 11, &message);
    }

    /// A packet with what was interned for it.
    fn packet(&mut self, ns: u64, field: u32, message: &Message) {
        let mut packet = Message::default();
        packet.uint(8, ns).message(field, message);
        let interned = std::mem::take(&mut self.interned);
        if !interned.0.is_empty() {
            packet.message(12, &interned);
        }
        packet.uint(13, NEEDS).uint(10, EVENTS);
        self.out.message(1, &packet);
    }

    fn name(&mut self, name: &str) -> u64 {
        let name = clean(name);
        let (id, is_new) = number(&mut self.names, name.clone());
        if is_new {
            self.interned.message(2, Message::default().uint(1, id).text(2, &name));
        }
        id
    }

    fn note_name(&mut self, name: &str) -> u64 {
        let name = clean(name);
        let (id, is_new) = number(&mut self.note_names, name.clone());
        if is_new {
            self.interned.message(3, Message::default().uint(1, id).text(2, &name));
        }
        id
    }

    /// None for a stack that the capture does not have, or that has no frames.
    fn stack(&mut self, stack: u32) -> Option<u64> {
        if let Some(id) = self.stacks.get(&stack) {
            return Some(*id);
        }
        let found: &Stack = self.capture.stacks.get(stack as usize).filter(|stack| !stack.frames.is_empty())?;
        let mut callstack = Message::default();
        let id = number(&mut self.stacks, stack).0;
        callstack.uint(1, id);
        // The outermost frame comes first.
        for frame in found.frames.iter().rev() {
            let name = clean(&simplified(&frame.name));
            let module = if frame.kernel { "[kernel]".to_owned() } else { clean(&frame.module) };
            callstack.uint(2, self.frame(&name, &module));
        }
        self.interned.message(7, &callstack);
        Some(id)
    }

    fn frame(&mut self, name: &str, module: &str) -> u64 {
        let (function, is_new) = number(&mut self.functions, name.to_owned());
        if is_new {
            self.interned.message(5, Message::default().uint(1, function).text(2, name));
        }
        let (object, is_new) = number(&mut self.objects, module.to_owned());
        if is_new {
            // The path of a mapping is interned by the same number.
            self.interned.message(17, Message::default().uint(1, object).text(2, module));
            self.interned.message(19, Message::default().uint(1, object).uint(7, object));
        }
        let (frame, is_new) = number(&mut self.frames, (function, object));
        if is_new {
            self.interned.message(6, Message::default().uint(1, frame).uint(2, function).uint(3, object));
        }
        frame
    }
}

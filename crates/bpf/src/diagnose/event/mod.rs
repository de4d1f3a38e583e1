//! Counts events of the kernel by name: loads `event.bpf.c`, attaches it for a window, and reads what it counted.
//!
//! The events of the whole host are counted, because what a packet dies of happens in whatever runs just then.
mod source;

use std::collections::HashMap;
use std::io;
use std::mem::MaybeUninit;

use libbpf_rs::skel::{OpenSkel, Skel, SkelBuilder};
use libbpf_rs::{Link, MapCore, MapFlags, OpenObject, ProgramMut};
use zerocopy::{FromBytes, Immutable, KnownLayout};

use super::loaded::{RunTime, attach_perf, empty, entries};
use super::sample;
use crate::bytes;
use crate::load::{or_refused, unsignalled};
use source::Kind;
pub use source::{NotFound, Source, find};

#[allow(warnings, clippy::undocumented_unsafe_blocks)]
mod skel {
    include!(concat!(env!("OUT_DIR"), "/event.skel.rs"));
}
use skel::{EventSkel, EventSkelBuilder};

/// Events of one observation (event.h).
pub const EVENTS_MAX: usize = 8;

/// Why an event cannot be counted.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kernel refused to load the programs.
    #[error("the kernel refused the probes of events: {0}")]
    Load(io::Error),
    /// The kernel refused to attach a program.
    #[error("the event {name} cannot be counted: {source}")]
    Attach {
        /// The event.
        name: String,
        /// The kernel's error.
        source: io::Error,
    },
}

/// `struct event_key`.
#[derive(Debug, Clone, Copy, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Key {
    value: u64,
    event: u32,
    tgid: u32,
    tid: u32,
    kernel_stack: i32,
    user_stack: i32,
    pad: u32,
}

/// `struct event_value`.
#[derive(Debug, Clone, Copy, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Value {
    count: u64,
    comm: [u8; 16],
}

/// `struct event_lost`.
#[derive(Debug, Clone, Copy, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Lost {
    events: u64,
    stacks: u64,
}

/// The counts of one event.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counted {
    /// By thread, value and stack, in no order.
    pub cells: Vec<Cell>,
    /// Events that are in no cell, because there were too many.
    pub lost: u64,
    /// Events whose stack was not kept, because there were too many.
    pub without_stack: u64,
}

/// Events with the same thread, value and stack.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cell {
    /// The process that ran; 0 where none did.
    pub tgid: u32,
    /// The thread; 0 for those of all threads that found no cell of their own.
    pub tid: u32,
    /// Its name when the first of these events happened.
    pub comm: String,
    /// The name of the value; empty for an event without one.
    pub value: String,
    /// Return addresses in the kernel, innermost first.
    pub kernel: Vec<u64>,
    /// Return addresses in the program.
    pub user: Vec<u64>,
    /// How many.
    pub count: u64,
}

/// Loaded programs that count events while they are attached.
pub struct Events {
    // Fields are dropped in this order: links before their programs.
    links: Vec<Link>,
    skel: EventSkel<'static>,
    sources: Vec<Source>,
    /// That of the programs in the present window.
    run_time: Option<RunTime>,
}

impl Events {
    /// Loads a program for each event; nothing is attached yet. Of more than [`EVENTS_MAX`] events the rest is not counted.
    pub fn load(mut sources: Vec<Source>) -> Result<Self, Error> {
        sources.truncate(EVENTS_MAX);
        let skel = or_refused(|| load_some(&sources)).map_err(Error::Load)?;
        Ok(Self { skel, sources, links: Vec::new(), run_time: None })
    }

    /// The events, in the order of what [`Events::end`] returns.
    pub fn sources(&self) -> &[Source] {
        &self.sources
    }

    /// Begins a window: empties the counts and attaches the programs, on these CPUs.
    pub fn begin(&mut self, cpus: &[u32]) -> Result<(), Error> {
        self.links.clear();
        empty(&self.skel.maps.cells);
        empty(&self.skel.maps.sums);
        empty(&self.skel.maps.kernel_stacks);
        empty(&self.skel.maps.user_stacks);
        let cpus_possible = self.lost(0).len();
        let zeroes = vec![vec![0; size_of::<Lost>()]; cpus_possible];
        for event in 0..EVENTS_MAX as u32 {
            // It fails only for a map of another size than that of `lost`.
            let _ = self.skel.maps.lost.update_percpu(&event.to_ne_bytes(), &zeroes, MapFlags::ANY);
        }
        self.run_time = Some(RunTime::begin(self.skel.object()));
        let mut links = Vec::new();
        for (at, source) in self.sources.iter().enumerate() {
            let attached = attach(&self.program(at), source, cpus);
            links.extend(attached.map_err(|error| Error::Attach { name: source.name.clone(), source: error })?);
        }
        self.links = links;
        self.set_active(true);
        Ok(())
    }

    /// Ends the window: no event is counted from now on.
    pub fn stop(&mut self) {
        self.set_active(false);
    }

    fn set_active(&mut self, active: bool) {
        if let Some(bss) = self.skel.maps.bss_data.as_deref_mut() {
            bss.active = active.into();
        }
    }

    /// Detaches the programs. Returns the counts of each event, and the nanoseconds that counting took.
    pub fn end(&mut self) -> (Vec<Counted>, u64) {
        self.stop();
        self.links.clear();
        let took_ns = self.run_time.take().map_or(0, |run_time| run_time.end(self.skel.object()));
        let mut counted: Vec<Counted> = (0..self.sources.len() as u32).map(|event| self.counted(event)).collect();
        let (mut kernel, mut user) = (HashMap::new(), HashMap::new());
        let sums = entries::<Key, Value>(&self.skel.maps.sums);
        for (key, value) in entries::<Key, Value>(&self.skel.maps.cells).into_iter().chain(sums) {
            let event = key.event as usize;
            let (Some(source), Some(counts)) = (self.sources.get(event), counted.get_mut(event)) else { continue };
            counts.cells.push(Cell {
                tgid: key.tgid,
                tid: key.tid,
                comm: bytes::comm(&value.comm),
                value: source.value_name(key.value),
                kernel: stack(&self.skel.maps.kernel_stacks, key.kernel_stack, &mut kernel),
                user: stack(&self.skel.maps.user_stacks, key.user_stack, &mut user),
                count: value.count,
            });
        }
        (counted, took_ns)
    }

    /// The losses of an event, without cells.
    fn counted(&self, event: u32) -> Counted {
        let per_cpu = self.lost(event);
        per_cpu.iter().filter_map(|bytes| bytes::read::<Lost>(bytes)).fold(Counted::default(), |sum, lost| Counted {
            cells: Vec::new(),
            lost: sum.lost.saturating_add(lost.events),
            without_stack: sum.without_stack.saturating_add(lost.stacks),
        })
    }

    /// `struct event_lost` of each CPU.
    fn lost(&self, event: u32) -> Vec<Vec<u8>> {
        self.skel.maps.lost.lookup_percpu(&event.to_ne_bytes(), MapFlags::ANY).ok().flatten().unwrap_or_default()
    }

    fn program(&self, at: usize) -> ProgramMut<'_> {
        let name = program_name(at, &self.sources[at]);
        let found = self.skel.object().progs_mut().find(|program| program.name() == name.as_str());
        found.expect("the object has a program for each event")
    }
}

/// The program of the event with this number.
fn program_name(at: usize, source: &Source) -> String {
    let of = if matches!(source.kind, Kind::Software(_)) { "software" } else { "tracepoint" };
    format!("on_{of}_{at}")
}

fn load_some(sources: &[Source]) -> Result<EventSkel<'static>, libbpf_rs::Error> {
    // Leaked, so that the skeleton needs no lifetime: a page for each load.
    let object: &'static mut MaybeUninit<OpenObject> = Box::leak(Box::new(MaybeUninit::uninit()));
    let mut open = EventSkelBuilder::default().open(object)?;
    let rodata = open.maps.rodata_data.as_deref_mut().expect("the object has read-only data");
    for (at, source) in sources.iter().enumerate() {
        if let Kind::Tracepoint(_, Some(named)) = &source.kind {
            (rodata.value_offset[at], rodata.value_size[at]) = (named.field.offset, named.field.size);
        }
    }
    let wanted: Vec<String> = sources.iter().enumerate().map(|(at, source)| program_name(at, source)).collect();
    for mut program in open.open_object_mut().progs_mut() {
        let is_wanted = wanted.iter().any(|name| program.name() == name.as_str());
        program.set_autoload(is_wanted);
    }
    unsignalled(|| open.load())
}

fn attach(program: &ProgramMut<'_>, source: &Source, cpus: &[u32]) -> io::Result<Vec<Link>> {
    match &source.kind {
        Kind::Tracepoint(id, _) => Ok(vec![attach_perf(program, sample::open_tracepoint(*id)?)?]),
        Kind::Software(counter) => {
            let opened = cpus.iter().map(|cpu| sample::open_software(*counter, cpu.cast_signed()));
            opened.map(|event| attach_perf(program, event?)).collect()
        }
    }
}

/// The addresses of a stack, which are read once.
fn stack(map: &impl MapCore, id: i32, known: &mut HashMap<i32, Vec<u64>>) -> Vec<u64> {
    if id < 0 {
        return Vec::new();
    }
    let read = || {
        let bytes = map.lookup(&id.to_ne_bytes(), MapFlags::ANY).ok().flatten().unwrap_or_default();
        let addresses = bytes.chunks_exact(8).filter_map(bytes::read::<u64>);
        addresses.take_while(|address| *address != 0).collect()
    };
    known.entry(id).or_insert_with(read).clone()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structures_are_those_of_the_programs() {
        // The skeleton has no types of entries of maps: event.h asserts the same sizes.
        assert_eq!((size_of::<Key>(), size_of::<Value>(), size_of::<Lost>()), (32, 24, 16));
    }
}

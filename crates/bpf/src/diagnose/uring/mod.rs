//! Follows requests to io_uring: loads `uring.bpf.c`, attaches it for a window, and reads what it counted.
//!
//! The tracepoints are of the whole host, and cost a process that uses no io_uring nothing: they are not on its way.
mod opcode;
mod point;

use std::collections::HashMap;
use std::io;
use std::mem::MaybeUninit;

use libbpf_rs::skel::{OpenSkel, Skel, SkelBuilder};
use libbpf_rs::{Link, OpenObject, ProgramMut};
use zerocopy::{FromBytes, Immutable, KnownLayout};

use super::classic::format::Format;
use super::classic::tracefs::Tracefs;
use super::loaded::{RunTime, drained, empty, entries};
use super::observed::{Observed, attach_to, tracepoint};
use crate::kernel_types::member_offset;
use crate::load::{or_refused, unsignalled};
pub use opcode::name as opcode_name;
use point::{POINTS, Points};

#[allow(warnings, clippy::undocumented_unsafe_blocks)]
mod skel {
    include!(concat!(env!("OUT_DIR"), "/uring.skel.rs"));
}
use skel::{UringSkel, UringSkelBuilder};

/// `OPCODE_UNKNOWN` of uring.h.
const OPCODE_UNKNOWN: u8 = 255;
/// Records of requests in a window, as far as their service is as busy all the time; the buffer holds twice as many.
const RECORDS_MAX: u64 = 20_000;
/// A window that may be longer usually ends before: it is that of a command.
const SHORTENED_NS: u64 = 60_000_000_000;
/// `TICK_SHIFT` of uring.h.
const TICK_NS: u64 = 1 << 27;

/// Why io_uring cannot be followed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Tracefs, which has the tracepoints, is not mounted, and this process may not mount it.
    #[error("tracefs is not mounted or cannot be read")]
    NoTracefs,
    /// The kernel has no tracepoint of io_uring.
    #[error("this kernel has no tracepoints of io_uring")]
    NoTracepoints,
    /// The kernel refused to load the programs.
    #[error("the kernel refused the probes of io_uring: {0}")]
    Load(io::Error),
    /// The kernel refused to attach a program.
    #[error("the kernel refused a probe of io_uring: {0}")]
    Attach(io::Error),
}

/// `struct request_key`.
#[derive(Debug, Clone, Copy, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
struct RequestKey {
    ctx: u64,
    id: u64,
}

/// `struct request_value`.
#[derive(Debug, Clone, Copy, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
struct RequestValue {
    begin: u64,
    tgid: u32,
    tid: u32,
    opcode: u8,
    flags: u8,
    pad: [u8; 6],
}

/// `struct uring_cell_key`.
#[derive(Debug, Clone, Copy, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
struct CellKey {
    tgid: u32,
    tid: u32,
    opcode: u32,
    error: i32,
}

/// `struct uring_cell`: counts of a thread's requests with an opcode.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Counts {
    /// Requests that it submitted.
    pub submitted: u64,
    /// Completions, of which a request may have several.
    pub completed: u64,
    /// Times that a request waited for its descriptor to become ready.
    pub polls: u64,
    /// Requests that a worker thread of the kernel took.
    pub workers: u64,
    /// Completions for which the ring had no place.
    pub overflowed: u64,
    /// Requests whose failure ended the requests that were linked to them.
    pub links: u64,
    /// Requests that were refused at once.
    pub rejected: u64,
    /// Requests that came to their end, of those whose submission was seen.
    pub timed: u64,
    /// Their time.
    pub ns: u64,
    /// The longest of these.
    pub longest_ns: u64,
}

/// `struct uring_wait_key`.
#[derive(Debug, Clone, Copy, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
struct WaitKey {
    tgid: u32,
    tid: u32,
    outstanding: [u64; 2],
}

/// `struct uring_record`.
#[derive(Debug, Clone, Copy, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Record {
    begin: u64,
    end: u64,
    tgid: u32,
    tid: u32,
    res: i32,
    opcode: u8,
    flags: u8,
    pad: [u8; 2],
}

/// The account of a thread's requests with an opcode.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Cell {
    /// The process.
    pub tgid: u32,
    /// The thread that submitted them.
    pub tid: u32,
    /// The opcode.
    pub opcode: u8,
    /// The counts.
    pub counts: Counts,
    /// Completions with an error: its number, above 0, and how many.
    pub errors: Vec<(i32, u64)>,
    /// Requests that were outstanding when the window ended, of those whose submission was seen.
    pub outstanding: u64,
}

/// A request of which the times are known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// When it was submitted, by the monotonic clock.
    pub begin: u64,
    /// When it completed for the last time; None when it was outstanding at the end.
    pub end: Option<u64>,
    /// The process.
    pub tgid: u32,
    /// The thread that submitted it.
    pub tid: u32,
    /// The opcode.
    pub opcode: u8,
    /// Its result.
    pub res: i32,
    /// It waited for its descriptor to become ready.
    pub polled: bool,
    /// A worker thread of the kernel took it.
    pub worker: bool,
    /// Its failure ended the requests that were linked to it.
    pub link_failed: bool,
}

/// Waits of a thread in io_uring_enter() with the same opcodes outstanding.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Waits {
    /// The process.
    pub tgid: u32,
    /// The thread.
    pub tid: u32,
    /// The opcodes of what the thread had submitted since the window began and was outstanding.
    pub opcodes: Vec<u8>,
    /// How many.
    pub count: u64,
}

/// The account of a window.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Seen {
    /// By thread and opcode, in their order.
    pub cells: Vec<Cell>,
    /// In the order of their submissions.
    pub requests: Vec<Request>,
    /// By thread, the most frequent first.
    pub waits: Vec<Waits>,
    /// Requests that are not in `requests`, because there were too many.
    pub left_out: u64,
    /// Events that were not counted, because there were too many different ones.
    pub lost: u64,
    /// Requests that were not followed, because there were too many: they are in no other figure.
    pub not_followed: u64,
    /// Events that this kernel does not show, a phrase each.
    pub absent: Vec<String>,
}

/// Loaded programs that follow requests while they are attached.
pub struct Uring {
    // Fields are dropped in this order: links before their programs.
    links: Vec<Link>,
    skel: UringSkel<'static>,
    points: Points,
    new_task: Option<Format>,
    /// That of the programs in the present window.
    run_time: Option<RunTime>,
}

impl Uring {
    /// Loads the programs; nothing is attached yet.
    pub fn load(follow_children: bool) -> Result<Self, Error> {
        let tracefs = Tracefs::open().ok_or(Error::NoTracefs)?;
        let points = Points::read(&tracefs.path());
        if points.formats.iter().take(2).any(Option::is_none) {
            return Err(Error::NoTracepoints);
        }
        let new_task = tracepoint(&tracefs.path(), "task", "task_newtask");
        let skel = or_refused(|| load(&points, new_task.as_ref(), follow_children)).map_err(Error::Load)?;
        Ok(Self { skel, points, new_task, links: Vec::new(), run_time: None })
    }

    /// Begins a window that lasts about `window_ns`: empties the counts and attaches the programs.
    pub fn begin(&mut self, observed: &Observed, window_ns: u64) -> Result<(), Error> {
        self.links.clear();
        let maps = &self.skel.maps;
        empty(&maps.requests);
        empty(&maps.named);
        empty(&maps.cells);
        empty(&maps.errors);
        empty(&maps.threads);
        empty(&maps.waits);
        drained(&maps.records, |_| {});
        observed.fill(&maps.observed);
        self.run_time = Some(RunTime::begin(self.skel.object()));
        self.links = self.attach().map_err(Error::Attach)?;
        if let Some(bss) = self.skel.maps.bss_data.as_deref_mut() {
            bss.records_per_tick = (RECORDS_MAX * TICK_NS / window_ns.clamp(TICK_NS, SHORTENED_NS)) as u32;
            (bss.left_out, bss.lost, bss.not_followed) = (0, 0, 0);
            bss.observe_all = observed.all.into();
            bss.own_tgid = std::process::id();
            bss.active = 1;
        }
        Ok(())
    }

    fn attach(&self) -> io::Result<Vec<Link>> {
        let at = POINTS
            .iter()
            .zip(&self.points.formats)
            .filter_map(|(point, format)| Some((point.program, format.as_ref()?)));
        let all = at.chain(self.new_task.as_ref().map(|format| ("on_new_task", format)));
        all.map(|(program, format)| attach_to(&self.program(program), format)).collect()
    }

    /// Ends the window: nothing counts from now on.
    pub fn stop(&mut self) {
        if let Some(bss) = self.skel.maps.bss_data.as_deref_mut() {
            bss.active = 0;
        }
    }

    /// Detaches the programs. Returns what was seen, and the nanoseconds that it took.
    pub fn end(&mut self) -> (Seen, u64) {
        self.stop();
        self.links.clear();
        let took_ns = self.run_time.take().map_or(0, |run_time| run_time.end(self.skel.object()));
        let maps = &self.skel.maps;
        let open = entries::<RequestKey, RequestValue>(&maps.requests);
        let mut requests: Vec<Request> = Vec::new();
        drained(&maps.records, |bytes| requests.extend(crate::bytes::read::<Record>(bytes).map(request)));
        let bss = maps.bss_data.as_deref();
        let room = (RECORDS_MAX as usize).saturating_sub(requests.len());
        let left_out = bss.map_or(0, |bss| bss.left_out) + open.len().saturating_sub(room) as u64;
        let mut cells = self.cells();
        for (_, value) in &open {
            let key = (value.tgid, value.tid, value.opcode);
            cells.entry(key).or_insert_with(|| cell(key)).outstanding += 1;
        }
        requests.extend(open.into_iter().take(room).map(|(_, value)| outstanding(value)));
        requests.sort_by_key(|request| (request.begin, request.tid, request.opcode));
        let mut cells: Vec<Cell> = cells.into_values().collect();
        cells.sort_by_key(|cell| (cell.tgid, cell.tid, cell.opcode));
        let waits = self.waits();
        let (lost, not_followed) = bss.map_or((0, 0), |bss| (bss.lost, bss.not_followed));
        (Seen { cells, requests, waits, left_out, lost, not_followed, absent: self.points.absent() }, took_ns)
    }

    fn cells(&self) -> HashMap<(u32, u32, u8), Cell> {
        let mut cells = HashMap::new();
        for (key, counts) in entries::<CellKey, Counts>(&self.skel.maps.cells) {
            let key = (key.tgid, key.tid, key.opcode as u8);
            cells.insert(key, Cell { counts, ..cell(key) });
        }
        for (key, count) in entries::<CellKey, u64>(&self.skel.maps.errors) {
            let of = (key.tgid, key.tid, key.opcode as u8);
            cells.entry(of).or_insert_with(|| cell(of)).errors.push((key.error.saturating_neg(), count));
        }
        cells.values_mut().for_each(|cell| cell.errors.sort_by_key(|(error, n)| (std::cmp::Reverse(*n), *error)));
        cells
    }

    fn waits(&self) -> Vec<Waits> {
        let all = entries::<WaitKey, u64>(&self.skel.maps.waits).into_iter();
        let mut waits: Vec<Waits> = all
            .map(|(key, count)| {
                let is_set = |at: &u8| key.outstanding[usize::from(at / 64)] >> (at % 64) & 1 == 1;
                Waits { tgid: key.tgid, tid: key.tid, opcodes: (0..128).filter(is_set).collect(), count }
            })
            .collect();
        waits.sort_by(|a, b| (a.tgid, a.tid, b.count, &a.opcodes).cmp(&(b.tgid, b.tid, a.count, &b.opcodes)));
        waits
    }

    fn program(&self, name: &str) -> ProgramMut<'_> {
        let found = self.skel.object().progs_mut().find(|program| program.name() == name);
        found.expect("the object has this program")
    }
}

fn cell((tgid, tid, opcode): (u32, u32, u8)) -> Cell {
    Cell { tgid, tid, opcode, ..Cell::default() }
}

fn outstanding(value: RequestValue) -> Request {
    let RequestValue { begin, tgid, tid, opcode, flags, .. } = value;
    let record = Record { begin, end: 0, tgid, tid, res: 0, opcode, flags, pad: [0; 2] };
    Request { end: None, ..request(record) }
}

/// With the bits of `enum uring_flag`.
fn request(record: Record) -> Request {
    Request {
        begin: record.begin,
        end: Some(record.end),
        tgid: record.tgid,
        tid: record.tid,
        opcode: record.opcode,
        res: record.res,
        polled: record.flags & 1 != 0,
        worker: record.flags & 2 != 0,
        link_failed: record.flags & 4 != 0,
    }
}

fn load(
    points: &Points,
    new_task: Option<&Format>,
    follow_children: bool,
) -> Result<UringSkel<'static>, libbpf_rs::Error> {
    // Leaked, so that the skeleton needs no lifetime: a page for each load.
    let object: &'static mut MaybeUninit<OpenObject> = Box::leak(Box::new(MaybeUninit::uninit()));
    let mut open = UringSkelBuilder::default().open(object)?;
    let rodata = open.maps.rodata_data.as_deref_mut().expect("the object has read-only data");
    rodata.fields = points.offsets();
    // Records of Linux 5.10 have the opcode of a submission alone, and a completion has it nowhere.
    rodata.request_opcode = member_offset("io_kiocb", "opcode").unwrap_or(0);
    rodata.follow_children = follow_children.into();
    let field = |name: &str| new_task.and_then(|format| format.field(name)).map(|field| field.offset);
    rodata.off_new_pid = field("pid").unwrap_or(rodata.off_new_pid);
    rodata.off_new_flags = field("clone_flags").unwrap_or(rodata.off_new_flags);
    let absent = POINTS.iter().zip(&points.formats).filter(|(_, format)| format.is_none());
    let absent: Vec<&str> = absent.map(|(point, _)| point.program).collect();
    for mut program in open.open_object_mut().progs_mut() {
        let is_wanted = !absent.iter().any(|name| program.name() == *name);
        program.set_autoload(is_wanted);
    }
    unsignalled(|| open.load())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structures_are_those_of_the_programs() {
        // The skeleton has no types of entries of maps: uring.h asserts the same sizes.
        assert_eq!((size_of::<RequestKey>(), size_of::<RequestValue>(), size_of::<CellKey>()), (16, 24, 16));
        assert_eq!((size_of::<Counts>(), size_of::<WaitKey>(), size_of::<Record>()), (80, 24, 32));
    }
}

//! Keeps what observed processes write to their logs: loads `log.bpf.c`, attaches it for a window, and reads what it kept.
//!
//! The bytes are content of the service. Nothing of this is loaded unless the user asks for it.
use std::io;
use std::mem::MaybeUninit;

use libbpf_rs::skel::{OpenSkel, Skel, SkelBuilder};
use libbpf_rs::{Link, MapCore, MapFlags, OpenObject, ProgramMut};
use zerocopy::{FromBytes, Immutable, KnownLayout};

use super::classic::format::Format;
use super::classic::tracefs::Tracefs;
use super::loaded::{RunTime, drained};
use super::observed::{Observed, attach_to, tracepoint};
use crate::bytes;
use crate::load::{or_refused, unsignalled};

#[allow(warnings, clippy::undocumented_unsafe_blocks)]
mod skel {
    include!(concat!(env!("OUT_DIR"), "/log.skel.rs"));
}
use skel::{LogSkel, LogSkelBuilder};

/// Files of one observation (log.h).
pub const FILES_MAX: usize = 16;
/// `LOG_BYTES` of log.h.
const BYTES: usize = 512;

/// `LOG_FILE` of log.h.
const FILE: u32 = 1 << 31;

/// The program for stdout and stderr, and that for files too.
const FOR_STREAMS: &str = "on_call";
const FOR_FILES: &str = "on_call_named";

/// Why log lines cannot be kept.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kernel refused to load the programs.
    #[error("the kernel refused the probes of log lines: {0}")]
    Load(io::Error),
    /// The kernel refused to attach a program.
    #[error("the kernel refused a probe of {at}: {source}")]
    Attach {
        /// The tracepoint.
        at: &'static str,
        /// The kernel's error.
        source: io::Error,
    },
}

/// The writes that are kept.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Wanted {
    /// Writes to descriptors 1 and 2.
    pub streams: bool,
    /// Writes to files with these inode numbers.
    pub inodes: Vec<u64>,
}

/// `struct log_chunk`.
#[derive(Debug, Clone, Copy, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
struct ChunkWire {
    at: u64,
    tgid: u32,
    tid: u32,
    to: u32,
    kept: u32,
    length: u64,
    bytes: [u8; BYTES],
}

/// Where a write went.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum To {
    /// Descriptor 1.
    Stdout,
    /// Descriptor 2.
    Stderr,
    /// One of [`Wanted::inodes`].
    File(usize),
}

/// A write, or one of the buffers of a write of several.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chunk {
    /// When the call began, by the monotonic clock.
    pub at: u64,
    /// The process.
    pub tgid: u32,
    /// The thread.
    pub tid: u32,
    /// Where it went.
    pub to: To,
    /// Bytes that it was given.
    pub length: u64,
    /// The first of these.
    pub bytes: Vec<u8>,
}

/// Loaded programs that keep writes while they are attached.
pub struct Log {
    // Fields are dropped in this order: links before their programs.
    links: Vec<Link>,
    skel: LogSkel<'static>,
    new_task: Option<Format>,
    program: &'static str,
    /// That of the programs in the present window.
    run_time: Option<RunTime>,
}

impl Log {
    /// Loads the programs; nothing is attached yet. Of more than [`FILES_MAX`] files the rest is not looked at.
    pub fn load(wanted: &Wanted, follow_children: bool) -> Result<Self, Error> {
        let program = if wanted.inodes.is_empty() { FOR_STREAMS } else { FOR_FILES };
        let new_task = Tracefs::open().and_then(|tracefs| tracepoint(&tracefs.path(), "task", "task_newtask"));
        let skel = or_refused(|| load(program, new_task.as_ref(), follow_children)).map_err(Error::Load)?;
        for (number, inode) in (0_u32..).zip(wanted.inodes.iter().take(FILES_MAX)) {
            // The map has room for all.
            let _ = skel.maps.files.update(&inode.to_ne_bytes(), &number.to_ne_bytes(), MapFlags::ANY);
        }
        let mut log = Self { skel, new_task, program, links: Vec::new(), run_time: None };
        if let Some(bss) = log.skel.maps.bss_data.as_deref_mut() {
            bss.streams = wanted.streams.into();
        }
        Ok(log)
    }

    /// Begins a window: attaches the programs.
    pub fn begin(&mut self, observed: &Observed) -> Result<(), Error> {
        self.links.clear();
        drained(&self.skel.maps.chunks, |_| {});
        observed.fill(&self.skel.maps.observed);
        self.run_time = Some(RunTime::begin(self.skel.object()));
        self.links = self.attach()?;
        if let Some(bss) = self.skel.maps.bss_data.as_deref_mut() {
            bss.left_out = 0;
            bss.observe_all = observed.all.into();
            bss.own_tgid = std::process::id();
            bss.active = 1;
        }
        Ok(())
    }

    fn attach(&self) -> Result<Vec<Link>, Error> {
        let attached = self.program(self.program).attach_raw_tracepoint("sys_enter");
        let mut links =
            vec![attached.map_err(|error| Error::Attach { at: "sys_enter", source: io::Error::other(error) })?];
        if let Some(format) = &self.new_task {
            let attached = attach_to(&self.program("on_new_task"), format);
            links.push(attached.map_err(|source| Error::Attach { at: "task:task_newtask", source })?);
        }
        Ok(links)
    }

    /// Ends the window: nothing is kept from now on.
    pub fn stop(&mut self) {
        if let Some(bss) = self.skel.maps.bss_data.as_deref_mut() {
            bss.active = 0;
        }
    }

    /// Detaches the programs. Returns what was written in the order of time, how many writes were not kept, and the nanoseconds that
    /// it took.
    pub fn end(&mut self) -> (Vec<Chunk>, u64, u64) {
        self.stop();
        self.links.clear();
        let took_ns = self.run_time.take().map_or(0, |run_time| run_time.end(self.skel.object()));
        let mut chunks = Vec::new();
        drained(&self.skel.maps.chunks, |record| chunks.extend(decode(record)));
        chunks.sort_by_key(|chunk: &Chunk| chunk.at);
        (chunks, self.skel.maps.bss_data.as_deref().map_or(0, |bss| bss.left_out), took_ns)
    }

    fn program(&self, name: &str) -> ProgramMut<'_> {
        let found = self.skel.object().progs_mut().find(|program| program.name() == name);
        found.expect("the object has this program")
    }
}

/// A record of the programs; None for bytes of another form.
pub fn decode(record: &[u8]) -> Option<Chunk> {
    let wire = bytes::read::<ChunkWire>(record)?;
    let bytes = wire.bytes.get(..wire.kept as usize)?.to_vec();
    let to = match wire.to {
        1 => To::Stdout,
        2 => To::Stderr,
        number if number & FILE != 0 => To::File((number & !FILE) as usize),
        _ => return None,
    };
    Some(Chunk { at: wire.at, tgid: wire.tgid, tid: wire.tid, to, length: wire.length, bytes })
}

fn load(program: &str, new_task: Option<&Format>, follow_children: bool) -> Result<LogSkel<'static>, libbpf_rs::Error> {
    // Leaked, so that the skeleton needs no lifetime: a page for each load.
    let object: &'static mut MaybeUninit<OpenObject> = Box::leak(Box::new(MaybeUninit::uninit()));
    let mut open = LogSkelBuilder::default().open(object)?;
    let rodata = open.maps.rodata_data.as_deref_mut().expect("the object has read-only data");
    rodata.follow_children = follow_children.into();
    let field = |name: &str| new_task.and_then(|format| format.field(name)).map(|field| field.offset);
    rodata.off_new_pid = field("pid").unwrap_or(rodata.off_new_pid);
    rodata.off_new_flags = field("clone_flags").unwrap_or(rodata.off_new_flags);
    for mut other in open.open_object_mut().progs_mut() {
        // That for files reads structures of the kernel, and would not load without BTF.
        let is_wanted = other.name() == "on_new_task" || other.name() == program;
        other.set_autoload(is_wanted);
    }
    unsignalled(|| open.load())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_decoded_and_others_are_not() {
        // The skeleton has no types of records: log.h asserts the same size.
        assert_eq!(size_of::<ChunkWire>(), 544);
        let mut record = vec![0; size_of::<ChunkWire>()];
        record[8] = 7;
        record[16] = 2;
        record[20] = 3;
        record[24] = 9;
        record[32..35].copy_from_slice(b"abc");
        let chunk = decode(&record).expect("a record");
        assert_eq!((chunk.tgid, chunk.to, chunk.length, chunk.bytes.as_slice()), (7, To::Stderr, 9, b"abc".as_slice()));
        record[16] = 3;
        assert_eq!(decode(&record), None, "another descriptor");
        record[19] = 128;
        assert_eq!(decode(&record).map(|chunk| chunk.to), Some(To::File(3)));
        record[21] = 2;
        assert_eq!(decode(&record).map(|chunk| chunk.bytes.len()), None, "more bytes than a record has");
        assert_eq!(decode(&record[..543]), None);
    }
}

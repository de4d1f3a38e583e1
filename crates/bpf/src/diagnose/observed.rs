//! The common parts of the objects beside the probes of a rung: the processes that they observe (`observed.bpf.h`), and the tracepoints
//! that their programs need.
use std::fs;
use std::io;
use std::path::Path;

use libbpf_rs::{Link, MapCore, MapFlags, ProgramMut};

use super::classic::format::Format;
use super::loaded::{attach_perf, empty};
use super::sample;

/// The processes that an object observes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Observed {
    /// Those that there are when a window begins.
    pub pids: Vec<u32>,
    /// All of the host, but our own.
    pub all: bool,
}

impl Observed {
    /// Puts the processes into the map of an object, and in place of those that were there.
    pub(super) fn fill(&self, map: &impl MapCore) {
        empty(map);
        for pid in &self.pids {
            // Of more than the map holds the last ones are not observed: a subject of that many is the whole host.
            let _ = map.update(&pid.to_ne_bytes(), &[1], MapFlags::ANY);
        }
    }
}

/// The format of a tracepoint below the root of a tracefs; None where this kernel has none of the name.
pub(super) fn tracepoint(tracefs: &Path, category: &str, name: &str) -> Option<Format> {
    let text = fs::read_to_string(tracefs.join("events").join(category).join(name).join("format")).ok()?;
    Format::parse(&text)
}

/// Attaches a program to a tracepoint.
pub(super) fn attach_to(program: &ProgramMut<'_>, format: &Format) -> io::Result<Link> {
    attach_perf(program, sample::open_tracepoint(format.id)?)
}

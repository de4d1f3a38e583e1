//! The backend `walk`: a BPF program walks the kernel's socket tables once, and applies the selection.
use parshall_bpf::sockets::{Walk, WalkError};
use parshall_evidence::socket::{Batch, Completeness, Selection};

use super::Backend;

/// Closed sockets are removed from the collector's counters by complete dumps only.
const COMPLETE_EVERY: u64 = 64;

#[derive(Debug)]
pub struct WalkBackend(Walk);

impl WalkBackend {
    /// Loads the program.
    ///
    /// # Errors
    /// The kernel or the process lacks something that it needs.
    pub fn open() -> Result<Self, WalkError> {
        Walk::open().map(Self)
    }
}

impl Backend for WalkBackend {
    fn name(&self) -> &'static str {
        "walk"
    }

    fn complete_every(&self) -> u64 {
        COMPLETE_EVERY
    }

    fn dump(&mut self, selection: &Selection, take: &mut dyn FnMut(Batch<'_>)) -> anyhow::Result<Completeness> {
        Ok(self.0.dump(selection, take)?)
    }
}

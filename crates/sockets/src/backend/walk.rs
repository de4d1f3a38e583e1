//! The backend `walk`: one pass over the kernel's tables, by a BPF program, which applies the selection as it is.
use parshall_bpf::sockets::{Walk, WalkError};
use parshall_evidence::socket::{Batch, Completeness, Selection};

use super::Backend;

/// The walk, loaded.
#[derive(Debug)]
pub struct WalkBackend(Walk);

impl WalkBackend {
    /// Loads it.
    ///
    /// # Errors
    /// What the kernel or the process lacks: then another backend is the one to use.
    pub fn open() -> Result<Self, WalkError> {
        Walk::open().map(Self)
    }
}

impl Backend for WalkBackend {
    fn name(&self) -> &'static str {
        "walk"
    }

    fn leaves_out_unchanged(&self) -> bool {
        true
    }

    fn dump(&mut self, selection: &Selection, take: &mut dyn FnMut(Batch<'_>)) -> anyhow::Result<Completeness> {
        Ok(self.0.dump(selection, take)?)
    }
}

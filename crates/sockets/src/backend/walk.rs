//! The backend `walk`: a BPF program walks the kernel's socket tables once, and applies the selection.
use parshall_bpf::sockets::{Walk, WalkError};
use parshall_evidence::socket::{Batch, Completeness, Selection};

use super::Backend;

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

    fn skips_unchanged(&self) -> bool {
        true
    }

    fn dump(&mut self, selection: &Selection, take: &mut dyn FnMut(Batch<'_>)) -> anyhow::Result<Completeness> {
        Ok(self.0.dump(selection, take)?)
    }
}

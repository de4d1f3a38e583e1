//! The seam of the backends: one file or folder each.
pub mod choose;
pub mod iter;
pub mod netlink;
pub mod walk;

use parshall_core::sockets::Selection;
use parshall_evidence::socket::{Batch, Completeness};

/// Reads the sockets of all network namespaces.
pub trait Backend {
    /// Its name as `--backend` takes it and every dump reports it.
    fn name(&self) -> &'static str;

    /// One dump of what the selection wants. `take` gets batches that are valid only during the call; order is not
    /// defined. A socket that is there during the whole dump is given exactly once.
    ///
    /// # Errors
    /// Only what makes the whole dump impossible; what goes wrong with one namespace or socket is counted.
    fn dump(&mut self, selection: &Selection, take: &mut dyn FnMut(Batch<'_>)) -> anyhow::Result<Completeness>;
}

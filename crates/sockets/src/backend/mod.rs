//! The seam of the backends: one file or folder each.
pub mod choose;
pub mod iter;
pub mod netlink;
pub mod walk;

use std::collections::BTreeMap;

use parshall_bpf::sockets::owners::ForeignSocket;
use parshall_evidence::socket::Selection;
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

    /// What went wrong so far, by kind.
    fn counts(&self) -> BTreeMap<&'static str, u64> {
        BTreeMap::new()
    }

    /// Whether it leaves out sockets that have not changed by itself, if the selection says so. Such a dump does not tell
    /// what has gone from what is quiet.
    fn leaves_out_unchanged(&self) -> bool {
        false
    }

    /// Whether its records have addresses in the kernel and the first sequence numbers of connections.
    fn sees_births(&self) -> bool {
        true
    }

    /// Whether it visits one namespace after the other, and so wants to be told of those that only sockets keep alive.
    fn needs_foreign_sockets(&self) -> bool {
        false
    }

    /// A socket of each namespace that has one, for the dumps that follow: the owners' pass finds them.
    fn set_foreign_sockets(&mut self, _: Vec<ForeignSocket>) {}
}

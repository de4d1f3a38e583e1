//! The interface of the backends, which are a file or folder each.
pub mod choose;
pub mod netlink;
pub mod walk;

use std::collections::BTreeMap;

use parshall_bpf::sockets::owners::ForeignSocket;
use parshall_evidence::socket::{Batch, Completeness, Selection, SocketRecord};

/// Reads the sockets of all network namespaces.
pub trait Backend {
    /// The name, as `--backend` takes it and every dump reports it.
    fn name(&self) -> &'static str;

    /// Dumps the selected sockets. `take` gets batches in no defined order; each is valid only during the call. A socket that is
    /// open during the whole dump is in exactly one batch.
    ///
    /// # Errors
    /// Only errors that make the whole dump impossible. Errors of a namespace or a socket are counted.
    fn dump(&mut self, selection: &Selection, take: &mut dyn FnMut(Batch<'_>)) -> anyhow::Result<Completeness>;

    /// Errors of all dumps, by kind.
    fn counts(&self) -> BTreeMap<&'static str, u64> {
        BTreeMap::new()
    }

    /// Of how many dumps with [`Selection::changed`] one is to be complete. The backend leaves unchanged sockets out of the
    /// others, where a socket that is missing is closed or unchanged. 1: it always returns all.
    fn complete_every(&self) -> u64 {
        1
    }

    /// Clears the fields that its dumps do not have, so that records from elsewhere get the keys of its dumps.
    fn clear_unseen(&self, _: &mut [SocketRecord]) {}

    /// Where a backend that reads one namespace after the other wants the sockets that lead to namespaces without processes. A
    /// scan for owners finds them. None: it finds these namespaces itself.
    fn foreign_sockets(&mut self) -> Option<&mut Vec<ForeignSocket>> {
        None
    }
}

//! The interface of the backends, which are a file or folder each.
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

    /// Whether the backend applies [`Selection::changed`]. A socket that is missing in such a dump is closed or unchanged.
    fn skips_unchanged(&self) -> bool {
        false
    }

    /// Whether its records have kernel addresses and the initial sequence numbers of connections.
    fn sees_sequence_numbers(&self) -> bool {
        true
    }

    /// Whether it reads one namespace after the other, so that it must know those that only sockets keep alive.
    fn needs_foreign_sockets(&self) -> bool {
        false
    }

    /// Sets the sockets that lead to such namespaces, for the next dumps. A scan for owners finds them.
    fn set_foreign_sockets(&mut self, _: Vec<ForeignSocket>) {}
}

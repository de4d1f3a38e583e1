//! The interface of the providers, and what they share.
use parshall_bpf::sockets::owners::{ForeignSocket, Table};
use parshall_core::sockets::Owner;
use parshall_evidence::socket::SocketRecord;

/// The maximum number of stored descriptors, 24 bytes each. Memory is allocated as needed.
pub(super) const DESCRIPTORS_MAX: usize = 2 << 20;

/// How complete a scan was.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Account {
    /// Descriptors of sockets.
    pub descriptors: u64,
    /// Descriptors beyond the limit.
    pub dropped: u64,
    /// Processes whose descriptors this process may not see.
    pub hidden: u64,
}

/// The descriptors of sockets on this host, as of the last scan.
pub trait Owners {
    /// Reads the descriptors of all processes.
    ///
    /// # Errors
    /// Only errors that make the whole scan impossible. The result of the scan before is lost then too.
    fn scan(&mut self) -> anyhow::Result<Account>;

    /// Like [`Owners::scan`]. Providers that can do so also return, for each namespace that has one, a socket outside the
    /// namespace of its process.
    ///
    /// # Errors
    /// As [`Owners::scan`].
    fn scan_with_foreign_sockets(&mut self) -> anyhow::Result<(Account, Vec<ForeignSocket>)> {
        self.scan().map(|account| (account, Vec::new()))
    }

    /// Appends the owners of these records to `owners`, in the order of processes and descriptors, and to `ends` the index at
    /// which those of each record end. Sockets are identified by their kernel address if the record and the provider have it,
    /// else by their inode.
    fn of(&self, records: &[SocketRecord], owners: &mut Vec<Owner>, ends: &mut Vec<usize>);
}

/// Appends the owners of these records, as [`Owners::of`] says.
pub(super) fn of(table: &Table, records: &[SocketRecord], owners: &mut Vec<Owner>, ends: &mut Vec<usize>) {
    table.prefetch(records.iter().map(|record| record.inode));
    for record in records {
        let holders = table.holders(record.address, record.inode);
        owners.extend(holders.map(|holder| Owner {
            pid: holder.pid,
            fd: holder.fd,
            command: std::sync::Arc::clone(holder.command),
        }));
        ends.push(owners.len());
    }
}

//! The seam of the owners: who holds which socket. One file per provider.
mod kernel;
mod procfs;

pub use kernel::Kernel;
pub use procfs::Procfs;

use parshall_bpf::sockets::owners::{ForeignSocket, Table};
use parshall_core::sockets::Owner;
use parshall_evidence::socket::SocketRecord;

/// Descriptors remembered at most: 24 bytes each, taken as they are needed.
const MOST: usize = 2 << 20;

/// How complete a look at the descriptors was.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Account {
    /// Descriptors that are sockets.
    pub descriptors: u64,
    /// Descriptors for which there was no room.
    pub dropped: u64,
    /// Processes that did not let us see their descriptors.
    pub hidden: u64,
}

/// Knows the descriptors of the host that are sockets, as of the last look.
pub trait Owners {
    /// Looks at all descriptors.
    ///
    /// # Errors
    /// What makes the whole look impossible; what was known before is forgotten all the same.
    fn scan(&mut self) -> anyhow::Result<Account>;

    /// As [`Owners::look`], and gives a socket of each namespace that has one, if it can.
    ///
    /// # Errors
    /// As [`Owners::look`].
    fn scan_with_foreign_sockets(&mut self) -> anyhow::Result<(Account, Vec<ForeignSocket>)> {
        self.scan().map(|account| (account, Vec::new()))
    }

    /// Appends those who hold the sockets of these records, one socket after the other, in the order of processes and
    /// descriptors, and to `ends` where those of each record end. Found by the inode, and where both sides know it by the
    /// address: records need their identity only.
    fn of(&self, records: &[SocketRecord], owners: &mut Vec<Owner>, ends: &mut Vec<usize>);
}

/// The cheapest provider that works here, and why it is not the first one.
pub fn best() -> (Box<dyn Owners>, Option<String>) {
    match Kernel::load() {
        Ok(kernel) => (Box::new(kernel), None),
        Err(error) => (Box::new(Procfs::default()), Some(format!("owners are read from /proc: {error:#}"))),
    }
}

fn of(table: &Table, records: &[SocketRecord], owners: &mut Vec<Owner>, ends: &mut Vec<usize>) {
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

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::MetadataExt;

    use super::*;
    use parshall_testkit::root;

    /// Which of our descriptors are this socket. What another test starts has a copy of each, until it is itself.
    fn ours(provider: &mut dyn Owners, listener: &TcpListener) -> Vec<u32> {
        let account = provider.scan().expect("descriptors can be seen");
        assert!(account.descriptors > 0 && account.dropped == 0);
        let inode = std::fs::metadata(format!("/proc/self/fd/{}", listener.as_raw_fd())).unwrap().ino() as u32;
        let (mut owners, mut ends) = (Vec::new(), Vec::new());
        provider.of(&[SocketRecord { inode, ..Default::default() }], &mut owners, &mut ends);
        assert_eq!(ends, [owners.len()]);
        assert!(owners.iter().all(|owner| !owner.command.is_empty()));
        owners.iter().filter(|owner| owner.pid == std::process::id()).map(|owner| owner.fd).collect()
    }

    #[test]
    fn both_providers_name_the_same_holders() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let copy = listener.try_clone().unwrap();
        let found = ours(&mut Procfs::default(), &listener);
        assert_eq!(found, [listener.as_raw_fd() as u32, copy.as_raw_fd() as u32]);
        if !root("owners from the kernel") {
            return;
        }
        assert_eq!(ours(&mut Kernel::load().expect("root may load programs"), &listener), found);
    }

    #[test]
    fn a_socket_that_nobody_holds_has_no_owner() {
        let mut procfs = Procfs::default();
        procfs.scan().unwrap();
        let (mut owners, mut ends) = (Vec::new(), Vec::new());
        let unheld = SocketRecord { address: 7, inode: u32::MAX, ..Default::default() };
        procfs.of(&[SocketRecord::default(), unheld], &mut owners, &mut ends);
        assert_eq!((owners, ends), (vec![], vec![0, 0]));
    }
}

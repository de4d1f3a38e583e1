//! Owners from /proc/PID/fd. Needs no BPF, and without privileges sees the processes of the user. A system call for each
//! descriptor makes it about ten times as expensive as the iterator. Threads with their own descriptor table are not read.
use std::io;

use anyhow::Result;
use parshall_bpf::sockets::owners::Table;
use parshall_core::sockets::Owner;
use parshall_evidence::socket::SocketRecord;
use parshall_host::proc_fs;

use super::provider::{self, Account, DESCRIPTORS_MAX, Owners};

#[derive(Debug)]
pub struct Procfs {
    table: Table,
}

impl Default for Procfs {
    fn default() -> Self {
        Self { table: Table::new(DESCRIPTORS_MAX) }
    }
}

impl Owners for Procfs {
    fn scan(&mut self) -> Result<Account> {
        self.table.clear();
        let mut hidden = 0;
        let pids = proc_fs::pids();
        for pid in &pids {
            match descriptors(*pid, &mut self.table) {
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => hidden += 1,
                // It has ended.
                Err(_) | Ok(()) => {}
            }
        }
        self.table.build();
        anyhow::ensure!(!pids.is_empty(), "/proc cannot be read");
        Ok(Account { descriptors: self.table.len() as u64, dropped: self.table.dropped(), hidden })
    }

    fn of(&self, records: &[SocketRecord], owners: &mut Vec<Owner>, ends: &mut Vec<usize>) {
        provider::of(&self.table, records, owners, ends);
    }
}

/// Adds the sockets of a process. Descriptors that it closes meanwhile are skipped.
fn descriptors(pid: u32, table: &mut Table) -> io::Result<()> {
    let mut sockets = proc_fs::try_sockets(pid)?;
    if sockets.is_empty() {
        return Ok(());
    }
    sockets.sort_unstable();
    table.process(pid, &proc_fs::comm(pid)?);
    for (fd, inode) in sockets {
        table.add(0, inode as u32, fd as u32);
    }
    Ok(())
}

//! Owners from /proc/PID/fd: needs no BPF, and without privileges sees the user's own processes. One system call per
//! descriptor, so some ten times dearer than the iterator. Threads with descriptors of their own are not looked at.
use std::fs;
use std::io;
use std::path::Path;

use anyhow::{Context, Result};
use parshall_bpf::sockets::owners::Table;
use parshall_core::sockets::Owner;
use parshall_evidence::socket::SocketRecord;

use super::{Account, MOST, Owners};

/// What /proc said.
#[derive(Debug)]
pub struct Procfs {
    table: Table,
}

impl Default for Procfs {
    fn default() -> Self {
        Self { table: Table::new(MOST) }
    }
}

impl Owners for Procfs {
    fn look(&mut self) -> Result<Account> {
        self.table.clear();
        let mut hidden = 0;
        let outcome = pids().map(|pids| {
            for pid in pids {
                match descriptors(pid, &mut self.table) {
                    Err(error) if error.kind() == io::ErrorKind::PermissionDenied => hidden += 1,
                    // It has ended.
                    Err(_) | Ok(()) => {}
                }
            }
        });
        self.table.build();
        outcome.context("/proc cannot be read")?;
        Ok(Account { descriptors: self.table.len() as u64, dropped: self.table.dropped(), hidden })
    }

    fn of(&self, records: &[SocketRecord], owners: &mut Vec<Owner>, ends: &mut Vec<usize>) {
        super::of(&self.table, records, owners, ends);
    }
}

fn pids() -> io::Result<Vec<u32>> {
    let mut pids: Vec<u32> =
        fs::read_dir("/proc")?.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    pids.sort_unstable();
    Ok(pids)
}

/// Adds the sockets of a process. What it closes meanwhile is passed over.
fn descriptors(pid: u32, table: &mut Table) -> io::Result<()> {
    let mut sockets: Vec<(u32, u32)> = Vec::new();
    for entry in fs::read_dir(format!("/proc/{pid}/fd"))? {
        let Ok(entry) = entry else { break };
        let found = || Some((entry.file_name().to_str()?.parse().ok()?, socket_inode(&entry.path())?));
        sockets.extend(found());
    }
    if sockets.is_empty() {
        return Ok(());
    }
    sockets.sort_unstable();
    let command = fs::read(format!("/proc/{pid}/comm"))?;
    table.process(pid, &String::from_utf8_lossy(command.strip_suffix(b"\n").unwrap_or(&command)));
    for (fd, inode) in sockets {
        table.add(0, inode, fd);
    }
    Ok(())
}

/// The number in a link such as `socket:[12345]`.
fn socket_inode(link: &Path) -> Option<u32> {
    fs::read_link(link).ok()?.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
}

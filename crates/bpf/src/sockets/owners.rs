//! The processes that hold sockets: one pass over all descriptors of the host.
//!
//! The result is a table of 24 bytes per descriptor, indexed by the socket's inode and checked by its address. An address alone
//! is not enough: the kernel reuses the memory of a closed socket at once, so that under churn an address often belongs to
//! another socket when the sockets are read. An inode alone is not enough either, because inodes repeat after 2^32 sockets.
use std::io::{self, Read};
use std::mem::MaybeUninit;
use std::sync::Arc;

use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{Iter, Link, MapCore, MapFlags, OpenObject};
use zerocopy::FromBytes;

use super::rest::Rest;
use crate::bytes;
use crate::kernel_types::{self, KernelTypes};
use crate::load::{or_refused, unsignalled};

#[allow(warnings, clippy::undocumented_unsafe_blocks)]
mod skel {
    include!(concat!(env!("OUT_DIR"), "/socket_owners.skel.rs"));
}
use skel::{SocketOwnersSkel, SocketOwnersSkelBuilder};

/// Twice what the kernel returns from one read of an iterator.
const BUFFER: usize = 64 << 10;
const ENTRY: usize = 16;
const NAME: usize = 16;
/// Ends a chain of slots.
const NONE: u32 = u32::MAX;

/// A descriptor that is a socket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder<'a> {
    /// Process id in the initial PID namespace.
    pub pid: u32,
    /// The descriptor in that process.
    pub fd: u32,
    /// The command of the process.
    pub command: &'a Arc<str>,
}

/// A socket through which a network namespace can be opened, when no readable process is in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes)]
#[repr(C)]
pub struct ForeignSocket {
    /// Inode of the network namespace.
    pub netns: u32,
    /// Process id in the initial PID namespace.
    pub pid: u32,
    /// The descriptor in that process.
    pub fd: u32,
}

#[derive(Debug, Clone, Copy, FromBytes)]
#[repr(C)]
struct Entry {
    address: u64,
    inode: u32,
    fd: u32,
}

#[derive(Debug)]
struct Process {
    pid: u32,
    command: Arc<str>,
}

#[derive(Debug)]
struct Slot {
    address: u64,
    inode: u32,
    fd: u32,
    process: u32,
    next: u32,
}

/// The holders of sockets.
#[derive(Debug, Default)]
pub struct Table {
    processes: Vec<Process>,
    slots: Vec<Slot>,
    /// The first slot of each bucket. Their number is a power of two.
    heads: Vec<u32>,
    rest: Rest,
    limit: usize,
    dropped: u64,
}

impl Table {
    /// An empty table for at most `limit` descriptors.
    pub fn new(limit: usize) -> Self {
        Self { limit, ..Self::default() }
    }

    /// Removes all entries and keeps the allocations.
    pub fn clear(&mut self) {
        self.processes.clear();
        self.slots.clear();
        self.heads.clear();
        self.rest.clear();
        self.dropped = 0;
    }

    #[allow(missing_docs)]
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    #[allow(missing_docs)]
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// The number of descriptors that were not added, because of the limit or because no process was begun.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Begins a process: descriptors that are added from now on belong to it.
    pub fn process(&mut self, pid: u32, command: &str) {
        // A process whose threads have tables of their own is listed several times, and most commands run more than once.
        let command = match self.processes.last() {
            Some(last) if *last.command == *command => Arc::clone(&last.command),
            _ => Arc::from(command),
        };
        self.processes.push(Process { pid, command });
    }

    /// Adds a descriptor of the process that was begun last. `address` is 0 if it is not known.
    pub fn add(&mut self, address: u64, inode: u32, fd: u32) {
        if self.slots.len() >= self.limit || self.processes.is_empty() {
            self.dropped += 1;
            return;
        }
        let process = self.processes.len() as u32 - 1;
        self.slots.push(Slot { address, inode, fd, process, next: NONE });
    }

    /// Indexes the descriptors that were added.
    pub fn build(&mut self) {
        let buckets = self.slots.len().next_power_of_two();
        self.heads.clear();
        self.heads.resize(buckets, NONE);
        // In reverse, so that every chain has the order in which descriptors were added.
        for at in (0..self.slots.len()).rev() {
            let bucket = self.bucket(self.slots[at].inode);
            self.slots[at].next = self.heads[bucket];
            self.heads[bucket] = at as u32;
        }
    }

    fn bucket(&self, inode: u32) -> usize {
        // Inodes of sockets are nearly consecutive, so they fill the buckets evenly without hashing.
        inode as usize & (self.heads.len() - 1)
    }

    /// The holders of the socket with this inode. With an `address` other than 0, sockets with the same inode and another
    /// address are left out, unless none has this address: the subflows of an MPTCP connection have its inode, but addresses of
    /// their own.
    pub fn holders(&self, address: u64, inode: u32) -> impl Iterator<Item = Holder<'_>> {
        let exact = address != 0 && self.chain(inode).any(|slot| slot.address == address);
        self.chain(inode).filter(move |slot| !exact || slot.address == address).map(|slot| {
            let process = &self.processes[slot.process as usize];
            Holder { pid: process.pid, fd: slot.fd, command: &process.command }
        })
    }

    /// Prefetches the memory that [`Table::holders`] of these inodes will read: the CPU then waits for many lines at once,
    /// instead of for two in turn at every socket.
    pub fn prefetch(&self, inodes: impl Iterator<Item = u32>) {
        if self.heads.is_empty() {
            return;
        }
        let first = |inode| self.slots.get(self.heads[self.bucket(inode)] as usize);
        std::hint::black_box(inodes.fold(0, |sum, inode| sum ^ first(inode).map_or(0, |slot| slot.inode)));
    }

    fn chain(&self, inode: u32) -> impl Iterator<Item = &Slot> {
        let first = if inode == 0 || self.heads.is_empty() { NONE } else { self.heads[self.bucket(inode)] };
        std::iter::successors(self.slots.get(first as usize), |slot| self.slots.get(slot.next as usize))
            .filter(move |slot| slot.inode == inode)
    }

    /// Decodes the bytes of one `read` of the iterator. An incomplete entry is kept for the next call. Accepts any bytes.
    pub fn take(&mut self, bytes: &[u8]) {
        let mut rest = std::mem::take(&mut self.rest);
        rest.with(bytes, |all| self.decode(all));
        self.rest = rest;
    }

    fn decode(&mut self, bytes: &[u8]) -> usize {
        let mut at = 0;
        while let Some(entry) = bytes.get(at..at + ENTRY).and_then(bytes::read::<Entry>) {
            if entry.address != 0 {
                self.add(entry.address, entry.inode, entry.fd);
                at += ENTRY;
                continue;
            }
            let Some(name) = bytes.get(at + ENTRY..at + ENTRY + NAME).and_then(bytes::read::<[u8; NAME]>) else {
                break;
            };
            self.process(entry.inode, &bytes::comm(&name));
            at += ENTRY + NAME;
        }
        at
    }
}

/// The loaded program. It runs only during a pass.
pub struct Owners {
    skel: SocketOwnersSkel<'static>,
    link: Link,
    buffer: Vec<u8>,
}

impl std::fmt::Debug for Owners {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Owners").finish_non_exhaustive()
    }
}

impl Owners {
    /// Loads the program. Needs CAP_BPF and CAP_PERFMON.
    ///
    /// # Errors
    /// PermissionDenied: not permitted; others: this kernel has no BTF or no such iterator (Linux 5.11).
    pub fn load() -> io::Result<Self> {
        or_refused(Self::try_load)
    }

    fn try_load() -> Result<Self, libbpf_rs::Error> {
        // Leaked, so that the skeleton needs no lifetime: a page, normally once per process.
        let storage: &'static mut MaybeUninit<OpenObject> = Box::leak(Box::new(MaybeUninit::uninit()));
        let types = super::kernel_types();
        let path = types.and_then(KernelTypes::path);
        let mut open = SocketOwnersSkelBuilder::default().open_opts(kernel_types::options(path.as_ref()), storage)?;
        let constants = open.maps.rodata_data.as_deref_mut().expect("the object has read-only data");
        constants.followed_ids.iter_mut().zip(types.map_or(&[][..], KernelTypes::ids)).for_each(|(to, id)| *to = *id);
        let skel = unsignalled(|| open.load())?;
        let link = skel.progs.owners.attach()?;
        Ok(Self { skel, link, buffer: vec![0; BUFFER] })
    }

    /// Fills `table` with all descriptors that are sockets. A descriptor that is opened, closed or passed on during the pass may
    /// be missing or listed twice.
    ///
    /// # Errors
    /// The error of the kernel. The table then has the descriptors before it, and is indexed.
    pub fn read(&mut self, table: &mut Table) -> io::Result<()> {
        self.pass(table, false)
    }

    /// As [`Owners::read`], and returns one socket of each network namespace, at most 4096.
    ///
    /// # Errors
    /// As [`Owners::read`].
    pub fn read_with_foreign_sockets(&mut self, table: &mut Table) -> io::Result<Vec<ForeignSocket>> {
        let sockets = &self.skel.maps.foreign_sockets;
        let known: Vec<Vec<u8>> = sockets.keys().collect();
        for key in known {
            // This cannot fail: nothing else deletes keys.
            let _ = sockets.delete(&key);
        }
        self.pass(table, true)?;
        let sockets = &self.skel.maps.foreign_sockets;
        let socket = |key: Vec<u8>| bytes::read(&sockets.lookup(&key, MapFlags::ANY).ok()??);
        Ok(sockets.keys().filter_map(socket).collect())
    }

    fn pass(&mut self, table: &mut Table, find_foreign_sockets: bool) -> io::Result<()> {
        let bss = self.skel.maps.bss_data.as_deref_mut().expect("the object has global data");
        (bss.last_pid, bss.prefetched_pid, bss.last_net) = (0, 0, 0);
        bss.find_foreign_sockets = u32::from(find_foreign_sockets);
        table.clear();
        let outcome = (|| {
            let mut iterator = Iter::new(&self.link).map_err(io::Error::other)?;
            loop {
                match iterator.read(&mut self.buffer) {
                    Ok(0) => return Ok(()),
                    Ok(length) => table.take(&self.buffer[..length]),
                    Err(error) if matches!(error.kind(), io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock) => {}
                    Err(error) => return Err(error),
                }
            }
        })();
        table.build();
        outcome
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(pid: u32, command: &str) -> Vec<u8> {
        let mut bytes = entry(0, pid, 0);
        let mut name = [0; NAME];
        name[..command.len()].copy_from_slice(command.as_bytes());
        bytes.extend_from_slice(&name);
        bytes
    }

    fn entry(address: u64, inode: u32, fd: u32) -> Vec<u8> {
        [&address.to_ne_bytes()[..], &inode.to_ne_bytes(), &fd.to_ne_bytes()].concat()
    }

    fn found(table: &Table, address: u64, inode: u32) -> Vec<(u32, u32, String)> {
        table.holders(address, inode).map(|holder| (holder.pid, holder.fd, holder.command.to_string())).collect()
    }

    fn sample() -> Vec<u8> {
        [
            head(7, "server"),
            entry(0xa, 100, 3),
            entry(0xb, 101, 4),
            head(9, "child"),
            entry(0xa, 100, 3),
            // Another socket with the inode of the first.
            entry(0xc, 100, 5),
            head(11, "child"),
            entry(0xd, 164, 1),
        ]
        .concat()
    }

    #[test]
    fn several_holders_and_sockets_with_one_inode_are_distinguished() {
        let mut table = Table::new(100);
        table.take(&sample());
        table.build();
        assert_eq!(found(&table, 0xa, 100), [(7, 3, "server".into()), (9, 3, "child".into())]);
        assert_eq!(found(&table, 0xc, 100), [(9, 5, "child".into())]);
        assert_eq!(found(&table, 0, 100).len(), 3, "without an address, all sockets with the inode");
        assert_eq!(found(&table, 0xe, 101), [(7, 4, "server".into())], "an MPTCP subflow");
        assert_eq!(found(&table, 0xd, 164), [(11, 1, "child".into())]);
        assert_eq!(found(&table, 0xa, 0), [], "inode 0 has no holder");
        assert_eq!(found(&table, 0xa, 36), []);
        assert_eq!((table.len(), table.dropped()), (5, 0));
    }

    #[test]
    fn portions_may_end_anywhere() {
        for portion in 1..40 {
            let mut table = Table::new(100);
            sample().chunks(portion).for_each(|bytes| table.take(bytes));
            table.build();
            assert_eq!(found(&table, 0xa, 100).len(), 2, "{portion}");
            assert_eq!(table.len(), 5);
        }
    }

    #[test]
    fn descriptors_beyond_the_limit_or_without_a_process_are_counted() {
        let mut table = Table::new(2);
        table.take(&entry(0xa, 1, 1));
        table.take(&sample());
        table.build();
        assert_eq!((table.len(), table.dropped()), (2, 4));
        table.clear();
        table.build();
        assert_eq!((table.len(), table.dropped()), (0, 0));
        assert_eq!(found(&table, 0xa, 100), []);
    }
}

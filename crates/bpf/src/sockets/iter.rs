//! Reads the sockets of one network namespace with the kernel's BPF iterators. The kernel locks each socket while it is read.
use std::fs::File;
use std::io::{self, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{Link, OpenObject};
use parshall_evidence::socket::{Selection, SocketRecord};

use super::record;
use super::rest::Rest;
use crate::kernel_types::{self, KernelTypes};
use crate::load::{or_refused, unsignalled};

#[allow(warnings, clippy::undocumented_unsafe_blocks)]
mod skel {
    include!(concat!(env!("OUT_DIR"), "/socket_iter.skel.rs"));
}
use skel::{SocketIterSkel, SocketIterSkelBuilder};

/// Twice what the kernel returns from one `read` of an iterator.
const BUFFER: usize = 64 << 10;

/// The table that an iterator reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Table {
    /// Listeners, connections, TIME_WAIT sockets and connection requests of TCP, and MPTCP connections.
    Tcp,
    /// UDP, without UDP-Lite.
    Udp,
    /// UNIX sockets of all types.
    Unix,
}

/// Opens iterators. It can be passed to a thread in another network namespace.
#[derive(Debug, Clone, Copy)]
pub struct Opener<'a> {
    links: [Option<BorrowedFd<'a>>; 3],
}

impl Opener<'_> {
    /// Opens an iterator over a table of the calling thread's network namespace. The iterator holds a reference to the namespace.
    ///
    /// # Errors
    /// Unsupported: the program for this table was not loaded. Others: the kernel's error.
    pub fn open(&self, table: Table) -> io::Result<File> {
        let link = self.links[table as usize].ok_or(io::ErrorKind::Unsupported)?;
        // SAFETY: takes a descriptor and flags by value; it returns a new descriptor or a negative error.
        let fd = unsafe { libbpf_sys::bpf_iter_create(link.as_raw_fd()) };
        if fd < 0 {
            return Err(io::Error::from_raw_os_error(-fd));
        }
        // SAFETY: the kernel just returned this descriptor to us and nothing else owns it.
        Ok(File::from(unsafe { OwnedFd::from_raw_fd(fd) }))
    }
}

/// The records of one `read` of an iterator.
#[derive(Debug, Default)]
pub struct Portion {
    #[allow(missing_docs)]
    pub records: Vec<SocketRecord>,
    /// Names of UNIX sockets; a record refers to its name by `name_at` and `name_len`.
    pub names: Vec<u8>,
    rest: Rest,
}

impl Portion {
    fn clear(&mut self) {
        self.records.clear();
        self.names.clear();
    }

    /// Decodes the output of the programs. An incomplete record at its end is kept for the next call. Accepts any bytes.
    pub fn take(&mut self, bytes: &[u8]) {
        let mut rest = std::mem::take(&mut self.rest);
        rest.with(bytes, |all| self.decode(all));
        self.rest = rest;
    }

    fn decode(&mut self, bytes: &[u8]) -> usize {
        let mut at = 0;
        while let Some(mut found) = record(&bytes[at..]) {
            let begin = at + size_of::<SocketRecord>();
            let Some(name) = bytes.get(begin..begin + usize::from(found.name_len)) else { break };
            found.name_at = self.names.len() as u32;
            self.names.extend_from_slice(name);
            self.records.push(found);
            at = begin + name.len();
        }
        at
    }
}

/// The loaded programs. They run only while an iterator is read.
pub struct Iterators {
    skel: SocketIterSkel<'static>,
    links: [Option<Link>; 3],
    buffer: Vec<u8>,
    portion: Portion,
}

impl std::fmt::Debug for Iterators {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Iterators").finish_non_exhaustive()
    }
}

impl Iterators {
    /// Loads the programs for these tables. Needs CAP_BPF and CAP_PERFMON.
    ///
    /// # Errors
    /// PermissionDenied: a capability is missing. Others: the kernel has no BTF or no such iterator (TCP and UDP: Linux 5.9,
    /// UNIX: 5.15).
    pub fn load(tables: &[Table]) -> io::Result<Self> {
        or_refused(|| Self::try_load(tables))
    }

    fn try_load(tables: &[Table]) -> Result<Self, libbpf_rs::Error> {
        // Leaked, so that the skeleton needs no lifetime: a page, normally once per process.
        let storage: &'static mut MaybeUninit<OpenObject> = Box::leak(Box::new(MaybeUninit::uninit()));
        let types = super::kernel_types();
        let path = types.and_then(KernelTypes::path);
        let mut open = SocketIterSkelBuilder::default().open_opts(kernel_types::options(path.as_ref()), storage)?;
        let constants = open.maps.rodata_data.as_deref_mut().expect("the object has read-only data");
        constants.followed_ids.iter_mut().zip(types.map_or(&[][..], KernelTypes::ids)).for_each(|(to, id)| *to = *id);
        let tick = super::Tick::of_kernel();
        (constants.socket_tick_hz, constants.socket_tick_us, constants.socket_tick_ms) = (tick.hz, tick.us, tick.ms);
        open.progs.dump_tcp.set_autoload(tables.contains(&Table::Tcp));
        open.progs.dump_udp.set_autoload(tables.contains(&Table::Udp));
        open.progs.dump_unix.set_autoload(tables.contains(&Table::Unix));
        let skel = unsignalled(|| open.load())?;
        let mut links = [None, None, None];
        for (table, program) in [
            (Table::Tcp, &skel.progs.dump_tcp),
            (Table::Udp, &skel.progs.dump_udp),
            (Table::Unix, &skel.progs.dump_unix),
        ] {
            if tables.contains(&table) {
                links[table as usize] = Some(program.attach()?);
            }
        }
        Ok(Self { skel, links, buffer: vec![0; BUFFER], portion: Portion::default() })
    }

    /// Sets the fields, states and kinds of a selection; the programs do not apply its other rules.
    pub fn select(&mut self, selection: &Selection) {
        let globals = self.skel.maps.bss_data.as_deref_mut().expect("the object has global data");
        globals.wanted_groups = selection.groups.bits();
        globals.wanted_states = selection.states;
        globals.wanted_kinds = selection.kinds.bits();
    }

    /// Sockets that were not written since loading: because of their state, and because their type is unknown.
    pub fn left_out(&self) -> (u64, u64) {
        let globals = self.skel.maps.bss_data.as_deref().expect("the object has global data");
        (globals.filtered, globals.unknown)
    }

    /// Opens iterators while `self` is only borrowed immutably.
    pub fn opener(&self) -> Opener<'_> {
        Opener { links: [0, 1, 2].map(|at| self.links[at].as_ref().map(AsFd::as_fd)) }
    }

    /// An opener and a reader that can be used at the same time.
    pub fn reader(&mut self) -> (Opener<'_>, Reader<'_>) {
        let opener = Opener { links: [0, 1, 2].map(|at| self.links[at].as_ref().map(AsFd::as_fd)) };
        (opener, Reader { buffer: &mut self.buffer, portion: &mut self.portion })
    }
}

/// Reads one iterator at a time, because the programs have a single scratch record.
#[derive(Debug)]
pub struct Reader<'a> {
    buffer: &'a mut [u8],
    portion: &'a mut Portion,
}

impl Reader<'_> {
    /// Reads an iterator to its end, and calls `take` after each `read`.
    ///
    /// # Errors
    /// The kernel's error. `take` was called for all that was read before it.
    pub fn read(&mut self, iterator: &mut File, take: &mut dyn FnMut(&mut Portion)) -> io::Result<()> {
        self.portion.rest.clear();
        loop {
            self.portion.clear();
            match iterator.read(self.buffer) {
                Ok(0) => return Ok(()),
                Ok(length) => {
                    self.portion.take(&self.buffer[..length]);
                    take(self.portion);
                }
                Err(error) if matches!(error.kind(), io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock) => {}
                Err(error) => return Err(error),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(address: u8, name: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0; size_of::<SocketRecord>()];
        bytes[std::mem::offset_of!(SocketRecord, address)] = address;
        bytes[std::mem::offset_of!(SocketRecord, name_len)] = name.len() as u8;
        bytes.extend_from_slice(name);
        bytes
    }

    #[test]
    fn records_and_names_are_decoded_from_portions_of_any_size() {
        let all = [bytes(1, b""), bytes(2, b"/run/a"), bytes(3, b"\0abstract"), bytes(4, b"")].concat();
        for size in [1, 7, 575, 576, 577, 600, 10_000] {
            let (mut portion, mut seen) = (Portion::default(), Vec::new());
            for chunk in all.chunks(size) {
                portion.clear();
                portion.take(chunk);
                let batch = parshall_evidence::socket::Batch { records: &portion.records, names: &portion.names };
                seen.extend(batch.records.iter().map(|record| (record.address, batch.name(record).to_vec())));
            }
            let expected = [(1, &b""[..]), (2, b"/run/a"), (3, b"\0abstract"), (4, b"")];
            assert_eq!(seen, expected.map(|(address, name)| (address, name.to_vec())), "{size}");
        }
    }
}

//! Loads `walk.bpf.c`, which reads the kernel's hash tables of sockets, and runs it until a dump is complete. The selection and
//! the use of the records are the caller's.
use std::io;
use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixDatagram;

use libbpf_rs::{MapCore, MapFlags};
use parshall_evidence::socket::selection::state;
use parshall_evidence::socket::{Batch, Completeness, Kind, Prefix, Selection, Side, SocketRecord};

use super::arena::Arena;
use super::in_order::in_order;
use super::walk_builds::{Job, Program, by_casts, by_copies};
use crate::load::or_refused;

/// `RECORDS`, and the bytes of `struct names`, `struct ports` and `struct namespace_set` of walk.bpf.c.
const RECORDS: usize = 256;
const NAMES: usize = RECORDS * 112;
const PORTS: usize = 65_536;
const NAMESPACE_WORDS: usize = 4096;
/// `FOUND` of find.bpf.h: connections of one batch.
const FOUND: usize = 1 << 19;
/// Most entries of a list of a selection: the size of the maps.
const SET_MAX: usize = 65_536;
/// Most runs of one pass. Tables of any size need far fewer; the limit ends a pass over a table that changes faster than it is
/// read.
const RUNS_MAX: usize = 1 << 22;

/// Of `enum walk_what`.
const WALK_PREPARE: u32 = 0;
const WALK_FOUND: u32 = 6;
const WALK_UNIX: u32 = 7;

const LISTEN: u32 = 1 << state::LISTEN;
const BOUND_INACTIVE: u32 = 1 << state::BOUND_INACTIVE;

/// Why the walk cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum WalkError {
    /// The kernel was built without BTF.
    #[error("this kernel has no BTF (/sys/kernel/btf/vmlinux)")]
    NoBtf,
    /// The process lacks capabilities.
    #[error("not permitted without {}", .missing.join(" and "))]
    NotPermitted {
        /// The missing capabilities.
        missing: Vec<&'static str>,
    },
    /// The kernel's tables have a form that is not known.
    #[error("this kernel lacks {what}")]
    Lacks {
        /// The table, structure or function that was not found.
        what: &'static str,
    },
    /// The kernel refused, for this reason.
    #[error("the kernel refused the walk: {0}")]
    Refused(String),
}

/// `struct prefix` of walk.bpf.c.
fn prefix_key(prefix: &Prefix) -> [u8; 24] {
    let (family, bits) = if prefix.network.is_ipv4() { (4u32, 32) } else { (6, 128) };
    let mut key = [0; 24];
    key[..4].copy_from_slice(&(32 + u32::from(prefix.length).min(bits)).to_ne_bytes());
    key[4..8].copy_from_slice(&family.to_ne_bytes());
    match prefix.network {
        IpAddr::V4(ip) => key[8..12].copy_from_slice(&ip.octets()),
        IpAddr::V6(ip) => key[8..].copy_from_slice(&ip.octets()),
    }
    key
}

/// The rules of a selection that the program tests, as bits of `enum rule` of walk.bpf.c.
fn rules(selection: &Selection) -> u32 {
    let rule = |bit: u32, there: bool| if there { 1 << bit } else { 0 };
    rule(0, !selection.namespaces.is_empty())
        | rule(1, !selection.cgroups.is_empty())
        | rule(2, !selection.ports.is_empty())
        | rule(3, !selection.prefixes.is_empty())
        | rule(4, selection.changed)
}

/// The passes that a selection needs (`enum walk_what`), and which of a namespace's own tables it needs (`enum walk_want`).
fn passes(selection: &Selection, one_unix_table: bool) -> (Vec<u32>, u32) {
    let (kinds, states) = (selection.kinds, selection.states);
    let tcp = kinds.has(Kind::Tcp) || kinds.has(Kind::Mptcp);
    let connections = tcp && states & !(LISTEN | BOUND_INACTIVE | 1) != 0;
    // Sockets that are only bound cost a pass over another table, so they are read only if their state was named explicitly.
    let bound = kinds.has(Kind::Tcp) && states & BOUND_INACTIVE != 0 && states != u32::MAX;
    let (udp, unix) = (kinds.has(Kind::Udp), kinds.has(Kind::Unix));
    let of_unix = (WALK_UNIX, unix && one_unix_table);
    let passes = [(1, connections), (2, tcp && states & LISTEN != 0), (3, bound), (4, udp), of_unix, (5, true)];
    let passes = passes.into_iter().filter(|p| p.1).map(|p| p.0).collect();
    (passes, u32::from(connections) | u32::from(udp) << 1 | u32::from(unix) << 2)
}

/// How the program follows pointers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Means {
    /// By bpf_rdonly_cast (Linux 6.2): each field is loaded where it lies.
    Casts,
    /// By copies of whole structures. A row costs up to twice as much.
    Copies,
}

/// The loaded program and its mapped maps. It is not attached to anything: between dumps it costs only memory.
pub struct Walk {
    program: Box<dyn Program>,
    means: Means,
    records: Arena<Slot>,
    names: Arena<u8>,
    ports: Arena<u8>,
    namespaces_read: Arena<u64>,
    found: Arena<u64>,
    /// The second buffer of the sort.
    scratch: Vec<u64>,
    epoch: u32,
    /// The selection whose lists are in the maps.
    installed: Option<Selection>,
}

/// A record as plain words, for which any bytes are valid.
type Slot = [u64; size_of::<SocketRecord>() / 8];

// The program writes records without gaps.
const _: () =
    assert!(size_of::<Slot>() == size_of::<SocketRecord>() && align_of::<Slot>() == align_of::<SocketRecord>());

impl std::fmt::Debug for Walk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Walk").finish_non_exhaustive()
    }
}

impl Walk {
    /// Loads the program and finds the kernel's tables. Needs CAP_BPF and CAP_PERFMON. These are enough to read the sockets of all
    /// namespaces.
    ///
    /// # Errors
    /// [`WalkError`] says what the kernel or the process lacks.
    pub fn open() -> Result<Self, WalkError> {
        Self::open_with_batches_of(FOUND)
    }

    /// As [`Walk::open`], but reads connections in batches of at most `connections`, so that tests can have several batches.
    ///
    /// # Errors
    /// As [`Walk::open`].
    pub fn open_with_batches_of(connections: usize) -> Result<Self, WalkError> {
        match Self::open_by(Means::Casts, connections) {
            Err(WalkError::Refused(_)) => Self::open_by(Means::Copies, connections),
            done => done,
        }
    }

    /// As [`Walk::open_with_batches_of`], but follows pointers in one way only.
    ///
    /// # Errors
    /// As [`Walk::open`].
    pub fn open_by(means: Means, connections: usize) -> Result<Self, WalkError> {
        if !std::path::Path::new("/sys/kernel/btf/vmlinux").exists() {
            return Err(WalkError::NoBtf);
        }
        let batch = connections.min(FOUND) as u32;
        let load = || if means == Means::Casts { by_casts(batch) } else { by_copies(batch) };
        let program = or_refused(load).map_err(load_error)?;
        let mapped = |e: io::Error| WalkError::Refused(e.to_string());
        let maps = program.maps();
        let mut walk = Self {
            records: Arena::map(maps.records, RECORDS).map_err(mapped)?,
            names: Arena::map(maps.names, NAMES).map_err(mapped)?,
            ports: Arena::map(maps.ports, PORTS).map_err(mapped)?,
            namespaces_read: Arena::map(maps.namespaces_read, NAMESPACE_WORDS).map_err(mapped)?,
            found: Arena::map(maps.found, FOUND).map_err(mapped)?,
            scratch: Vec::new(),
            program,
            means,
            epoch: 0,
            installed: None,
        };
        walk.prepare().map_err(mapped)?;
        let tables = walk.results();
        if tables.init_net == 0 {
            return Err(WalkError::Lacks { what: "a list of network namespaces in the expected form" });
        }
        if tables.main_hashinfo == 0 || tables.main_udp == 0 {
            return Err(WalkError::Lacks { what: "tables of TCP and UDP sockets in the expected form" });
        }
        Ok(walk)
    }

    /// How the program that was loaded follows pointers.
    pub fn means(&self) -> Means {
        self.means
    }

    /// Has the program find the kernel's tables. Two new sockets lead to tables that belong to no namespace.
    fn prepare(&mut self) -> io::Result<()> {
        let udp = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).ok();
        let unix = UnixDatagram::unbound().ok();
        let number = |fd: Option<i32>| fd.map_or(u32::MAX, |fd| fd as u32);
        let job = self.job();
        job.what = WALK_PREPARE;
        job.udp_fd = number(udp.as_ref().map(AsRawFd::as_raw_fd));
        job.unix_fd = number(unix.as_ref().map(AsRawFd::as_raw_fd));
        self.run()
    }

    /// Reads all selected sockets and passes them to `take` in batches, in no defined order. A batch is overwritten after `take`
    /// returns. A socket that exists during the whole dump is passed exactly once.
    ///
    /// # Errors
    /// The kernel refused to run the program, or a list of the selection has more than 65,536 entries.
    pub fn dump(&mut self, selection: &Selection, take: &mut dyn FnMut(Batch<'_>)) -> io::Result<Completeness> {
        self.install(selection)?;
        let (passes, want) = passes(selection, self.results().main_unix != 0);
        self.namespaces_read.values_mut().fill(0);
        self.epoch = self.epoch.wrapping_add(u32::from(selection.changed));
        let epoch = self.epoch;
        let job = self.job();
        job.want = want;
        job.groups = selection.groups.bits();
        job.kinds = selection.kinds.bits();
        job.states = selection.states;
        job.rules = rules(selection);
        job.epoch = epoch;
        let mut sum = Completeness::default();
        for what in passes {
            self.pass(what, &mut sum, take)?;
        }
        Ok(sum)
    }

    fn pass(&mut self, what: u32, sum: &mut Completeness, take: &mut dyn FnMut(Batch<'_>)) -> io::Result<()> {
        let job = self.job();
        (job.what, job.bucket, job.parts, job.part, job.netns, job.found) = (what, 0, 1, 0, 0, 0);
        for _ in 0..RUNS_MAX {
            let run = self.run_and_take(sum, take)?;
            if run.batch_ready != 0 {
                self.read_found(run.found as usize, sum, take)?;
                self.job().what = what;
            }
            if run.done != 0 {
                return Ok(());
            }
        }
        Err(io::Error::other("the tables of sockets change faster than they are read"))
    }

    /// Reads the connections of a batch, in the order of their addresses.
    fn read_found(&mut self, found: usize, sum: &mut Completeness, take: &mut dyn FnMut(Batch<'_>)) -> io::Result<()> {
        let found = in_order(&mut self.found.values_mut()[..found.min(FOUND)], &mut self.scratch);
        let job = self.job();
        (job.what, job.found, job.next_found) = (WALK_FOUND, found as u32, 0);
        // This ends, because each run reads or skips at least one connection.
        while (self.job().next_found as usize) < found {
            self.run_and_take(sum, take)?;
        }
        let job = self.job();
        (job.found, job.batch_ready) = (0, 0);
        Ok(())
    }

    /// Runs the program once, adds its counts to `sum` and passes its records to `take`.
    fn run_and_take(&mut self, sum: &mut Completeness, take: &mut dyn FnMut(Batch<'_>)) -> io::Result<Job> {
        self.run()?;
        let run = self.results();
        *sum += Completeness {
            expected: run.expected,
            emitted: u64::from(run.records),
            filtered: run.filtered,
            torn: run.torn,
            dropped: run.dropped,
            interrupted: run.interrupted,
            chains_cut: run.chains_cut,
            // Each run of the last pass begins at the initial namespace, so the last run has counted all of them.
            namespaces: run.namespaces.saturating_sub(sum.namespaces),
            namespaces_lost: run.namespaces_lost,
        };
        if run.records > 0 {
            take(self.batch(run.records as usize, run.names as usize));
        }
        Ok(run)
    }

    fn batch(&self, records: usize, names: usize) -> Batch<'_> {
        let slots = &self.records.values()[..records.min(RECORDS)];
        // SAFETY: a record is plain integers in the size and alignment of a slot (asserted above), and any bytes are one.
        let records = unsafe { std::slice::from_raw_parts(slots.as_ptr().cast::<SocketRecord>(), slots.len()) };
        Batch { records, names: &self.names.values()[..names.min(NAMES)] }
    }

    /// Writes the lists of a selection to the maps.
    fn install(&mut self, selection: &Selection) -> io::Result<()> {
        if self.installed.as_ref() == Some(selection) {
            return Ok(());
        }
        let longest = [selection.namespaces.len(), selection.cgroups.len(), selection.prefixes.len()].into_iter().max();
        if longest > Some(SET_MAX) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("a rule of the selection has more than {SET_MAX} values"),
            ));
        }
        self.installed = None;
        let maps = self.program.maps();
        let sides = |test: fn(Side) -> bool| {
            selection.prefixes.iter().filter(move |p| test(p.side)).map(|p| prefix_key(p).to_vec()).collect::<Vec<_>>()
        };
        fill(maps.wanted_namespaces, selection.namespaces.iter().map(|n| n.to_ne_bytes().to_vec()))?;
        fill(maps.wanted_cgroups, selection.cgroups.iter().map(|id| id.to_ne_bytes().to_vec()))?;
        fill(maps.local_prefixes, sides(Side::local).into_iter())?;
        fill(maps.remote_prefixes, sides(Side::remote).into_iter())?;
        let ports = self.ports.values_mut();
        ports.fill(0);
        for (side, port) in &selection.ports {
            ports[usize::from(*port)] |= u8::from(side.local()) | u8::from(side.remote()) << 1;
        }
        self.installed = Some(selection.clone());
        Ok(())
    }

    fn job(&mut self) -> &mut Job {
        self.program.job()
    }

    /// A copy of the job with the results of the last run.
    fn results(&mut self) -> Job {
        let job: *const Job = self.job();
        // SAFETY: the job is valid for reads; volatile, because the kernel wrote it behind the compiler's back.
        unsafe { job.read_volatile() }
    }

    fn run(&mut self) -> io::Result<()> {
        let mut options = libbpf_sys::bpf_test_run_opts {
            sz: size_of::<libbpf_sys::bpf_test_run_opts>() as libbpf_sys::size_t,
            ..Default::default()
        };
        let fd = self.program.fd();
        // SAFETY: the options are valid for the call and name no buffers.
        let ret = unsafe { libbpf_sys::bpf_prog_test_run_opts(fd, &mut options) };
        if ret < 0 { Err(io::Error::from_raw_os_error(-ret)) } else { Ok(()) }
    }
}

/// Replaces the keys of a map.
fn fill(map: &impl MapCore, keys: impl Iterator<Item = Vec<u8>>) -> io::Result<()> {
    let old: Vec<Vec<u8>> = map.keys().collect();
    for key in old {
        map.delete(&key).map_err(io::Error::other)?;
    }
    for key in keys {
        map.update(&key, &[1], MapFlags::ANY).map_err(io::Error::other)?;
    }
    Ok(())
}

/// Finds out why the kernel refused to load the program.
fn load_error(error: io::Error) -> WalkError {
    if error.kind() == io::ErrorKind::PermissionDenied {
        let missing = missing_capabilities();
        if !missing.is_empty() {
            return WalkError::NotPermitted { missing };
        }
    }
    WalkError::Refused(error.to_string())
}

/// The needed capabilities that the process does not have. CAP_SYS_ADMIN includes them.
fn missing_capabilities() -> Vec<&'static str> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let Some(held) = line.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok()) else { return Vec::new() };
    let has = |bit: u32| held & (1 << bit) != 0;
    [("CAP_BPF", 39), ("CAP_PERFMON", 38)]
        .into_iter()
        .filter(|(_, bit)| !has(*bit) && !has(21))
        .map(|(name, _)| name)
        .collect()
}

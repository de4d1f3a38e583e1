//! What both objects need of libbpf: the inbox behind the ring, counters, cells, run times, perf events.
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, IntoRawFd, OwnedFd};
use std::rc::Rc;

use libbpf_rs::{Link, MapCore, MapFlags, Object, ProgramMut, RingBuffer, RingBufferBuilder};

use super::probes::Counters;
use super::record::{self, Event};
use crate::bytes;

/// Records from the ring, decoded.
pub struct Inbox {
    ring: RingBuffer<'static>,
    events: Rc<RefCell<Vec<Event>>>,
    undecoded: Rc<Cell<u64>>,
}

impl Inbox {
    /// Behind `map`.
    pub fn new(map: &dyn MapCore) -> Result<Self, libbpf_rs::Error> {
        let events = Rc::new(RefCell::new(Vec::new()));
        let undecoded = Rc::new(Cell::new(0));
        let (inbox, unknown) = (Rc::clone(&events), Rc::clone(&undecoded));
        let mut builder = RingBufferBuilder::new();
        builder.add(map, move |bytes| {
            match record::decode(bytes) {
                Some(event) => inbox.borrow_mut().push(event),
                None => unknown.set(unknown.get() + 1),
            }
            0
        })?;
        Ok(Self { ring: builder.build()?, events, undecoded })
    }

    /// Appends the records that have arrived.
    pub fn drain(&self, events: &mut Vec<Event>) {
        // Consuming fails only when a callback does, and ours does not.
        let _ = self.ring.consume();
        events.append(&mut self.events.borrow_mut());
    }

    /// Records that made no sense.
    pub fn undecoded(&self) -> u64 {
        self.undecoded.get()
    }
}

/// The map `counters` (`enum counter` of shared.bpf.h), summed over the CPUs.
pub fn counters(map: &impl MapCore, undecoded: u64) -> Counters {
    let sum = |index: u32| -> u64 {
        let values = map.lookup_percpu(&index.to_ne_bytes(), MapFlags::ANY);
        let per_cpu = values.ok().flatten().unwrap_or_default();
        per_cpu.iter().filter_map(|v| bytes::read::<u64>(v)).sum()
    };
    Counters {
        events: sum(0),
        lost: sum(1) + undecoded,
        untracked: sum(2),
        retransmits: sum(3),
        resets_sent: sum(4),
        resets_received: sum(5),
        opened: sum(6),
        closed: sum(7),
        delack_timers: sum(8),
    }
}

/// All entries of a map.
pub fn entries<K: zerocopy::FromBytes, V: zerocopy::FromBytes>(map: &impl MapCore) -> Vec<(K, V)> {
    map.keys()
        .filter_map(|key| {
            let value = map.lookup(&key, MapFlags::ANY).ok().flatten()?;
            Some((bytes::read(&key)?, bytes::read(&value)?))
        })
        .collect()
}

/// All entries of a map, by the thread in their key.
pub fn by_thread<K, V>(map: &impl MapCore, thread: impl Fn(&K) -> u32) -> HashMap<u32, Vec<(K, V)>>
where
    K: zerocopy::FromBytes,
    V: zerocopy::FromBytes,
{
    let mut cells: HashMap<u32, Vec<_>> = HashMap::new();
    for (key, value) in entries::<K, V>(map) {
        cells.entry(thread(&key)).or_default().push((key, value));
    }
    cells
}

/// Has the kernel time every run of a program while the descriptor is open.
pub fn enable_stats() -> Option<OwnedFd> {
    // SAFETY: bpf_enable_stats takes a plain number and returns a new descriptor or a negative error.
    let fd = unsafe { libbpf_sys::bpf_enable_stats(libbpf_sys::BPF_STATS_RUN_TIME) };
    // SAFETY: the kernel just returned this descriptor to us and nothing else owns it.
    (fd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(fd) })
}

/// CPU time and number of the timed runs of all programs.
pub fn timed_runs(object: &Object) -> (u64, u64) {
    object.progs().filter(|program| program.autoload()).fold((0, 0), |total, program| {
        let (ns, runs) = run_stats(program.as_fd().as_raw_fd());
        (total.0 + ns, total.1 + runs)
    })
}

fn run_stats(fd: i32) -> (u64, u64) {
    let mut info = libbpf_sys::bpf_prog_info::default();
    let mut len = size_of::<libbpf_sys::bpf_prog_info>() as u32;
    // SAFETY: `info` and `len` are valid for writes of the size that `len` states, and zeroed, so that the kernel
    // follows none of the pointers in it.
    let ret = unsafe { libbpf_sys::bpf_prog_get_info_by_fd(fd, &mut info, &mut len) };
    if ret == 0 { (info.run_time_ns, info.run_cnt) } else { (0, 0) }
}

/// Attaches a program to a perf event, which the link then owns: libbpf closes it with the link.
pub fn attach_perf(program: &ProgramMut<'_>, event: OwnedFd) -> io::Result<Link> {
    let link = program.attach_perf_event(event.as_raw_fd()).map_err(io::Error::other)?;
    let _ = event.into_raw_fd();
    Ok(link)
}

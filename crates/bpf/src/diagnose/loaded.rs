//! The parts that both loaded BPF objects share: the ring buffer, counters, cells, slices, samples and the run time of programs.
//!
//! [`Probes`](super::Probes) and [`Classic`](super::classic::Classic) are both a [`Loaded`]. Their [`Programs`] attach the
//! programs of the object.
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd};
use std::rc::Rc;

use libbpf_rs::{Link, MapCore, MapFlags, MapMut, Object, ProgramMut, RingBuffer, RingBufferBuilder};

use super::counter::Counter;
use super::record::{self, Event};
use super::sample;
use super::syscall::{SysKey, SysValue};
use super::thread::{OffKey, OffValue};
use crate::bytes;
use crate::clock::monotonic_ns;
use crate::program_info;

/// Sums over all CPUs of the map `counters` ([`Counter`]).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Counters {
    pub events: u64,
    pub lost: u64,
    /// Events for which the kernel did not run a program, since it was at work on the same CPU.
    pub missed: u64,
    /// Threads, processes, flows and cells that were not tracked because of a limit.
    pub untracked: u64,
    /// The flows among them. A flow that was open before counts once for each call.
    pub untracked_flows: u64,
    /// The intervals off the CPU among them that had no cell, because the map of cells was full.
    pub untracked_cells: u64,
    /// Events of connections, by their ports; the probes for BTF count by process instead (`net`).
    pub retransmits: u64,
    pub resets_sent: u64,
    pub resets_received: u64,
    pub delack_timers: u64,
}

/// An object's programs and maps. [`shared_parts`] writes the methods that are the same for every skeleton.
pub trait Programs {
    /// The error if a program cannot be loaded or attached.
    type Error;
    /// Attaches the programs that stay attached, between windows too.
    fn attach_always(&self) -> Result<Vec<Link>, Self::Error>;
    /// Attaches the programs that run for every event, and are attached only during slices.
    fn attach_slice(&self) -> Result<Vec<Link>, Self::Error>;
    /// Observations that this kernel does not allow, one sentence each.
    fn missing(&self) -> Vec<String>;
    #[allow(missing_docs)]
    fn object(&self) -> &Object;
    /// The program for samples of a CPU.
    fn on_sample(&self) -> &ProgramMut<'static>;
    #[allow(missing_docs)]
    fn map(&self, map: SharedMap) -> &MapMut<'static>;
    /// The variables that begin and end a slice.
    fn slice(&mut self) -> SliceVariables<'_>;
}

/// The maps that both objects define.
#[derive(Debug, Clone, Copy)]
#[allow(missing_docs)]
pub enum SharedMap {
    Ring,
    Counters,
    OffCells,
    SysCells,
}

/// Variables of shared.bpf.h, mapped into this process.
#[allow(missing_docs)]
pub struct SliceVariables<'a> {
    pub active: &'a mut u32,
    pub slice_gen: &'a mut u32,
    pub slice_begin: &'a mut u64,
    pub cut_at: &'a mut u64,
}

/// The methods of [`Programs`] that are the same for every skeleton.
macro_rules! shared_parts {
    () => {
        fn object(&self) -> &libbpf_rs::Object {
            libbpf_rs::skel::Skel::object(&self.skel)
        }

        fn on_sample(&self) -> &libbpf_rs::ProgramMut<'static> {
            &self.skel.progs.on_sample
        }

        fn map(&self, map: $crate::diagnose::loaded::SharedMap) -> &libbpf_rs::MapMut<'static> {
            use $crate::diagnose::loaded::SharedMap;
            let maps = &self.skel.maps;
            match map {
                SharedMap::Ring => &maps.ring,
                SharedMap::Counters => &maps.counters,
                SharedMap::OffCells => &maps.off_cells,
                SharedMap::SysCells => &maps.sys_cells,
            }
        }

        fn slice(&mut self) -> $crate::diagnose::loaded::SliceVariables<'_> {
            let bss = self.skel.maps.bss_data.as_deref_mut().expect("the object has global data");
            $crate::diagnose::loaded::SliceVariables {
                active: &mut bss.active,
                slice_gen: &mut bss.slice_gen,
                slice_begin: &mut bss.slice_begin,
                cut_at: &mut bss.cut_at,
            }
        }
    };
}
pub(super) use shared_parts;

/// A loaded object. Dropping it detaches everything.
pub struct Loaded<P: Programs> {
    // Fields are dropped in this order: links before their programs.
    slice_links: Vec<Link>,
    sample_links: Vec<Link>,
    always_links: Vec<Link>,
    stats: Option<OwnedFd>,
    inbox: Inbox,
    pub(super) programs: P,
}

impl<P: Programs> Loaded<P> {
    /// Opens the ring buffer; nothing is attached yet.
    pub(super) fn new(programs: P) -> Result<Self, libbpf_rs::Error> {
        let inbox = Inbox::new(programs.map(SharedMap::Ring))?;
        let (slice_links, sample_links, always_links) = (Vec::new(), Vec::new(), Vec::new());
        Ok(Self { slice_links, sample_links, always_links, stats: None, inbox, programs })
    }

    /// Observations that this kernel does not allow, one sentence each.
    pub fn missing(&self) -> Vec<String> {
        self.programs.missing()
    }

    /// Attaches the programs that stay attached, between windows too.
    pub fn attach_always(&mut self) -> Result<(), P::Error> {
        self.always_links.extend(self.programs.attach_always()?);
        Ok(())
    }

    /// Begins to sample the given CPUs, until [`Loaded::detach_samples`]. Returns the number of CPUs on which that failed.
    pub fn attach_samples(&mut self, cpus: impl Iterator<Item = i32>) -> usize {
        let mut failed = 0;
        for cpu in cpus {
            match sample::open_clock(cpu).and_then(|fd| attach_perf(self.programs.on_sample(), fd)) {
                Ok(link) => self.sample_links.push(link),
                Err(_) => failed += 1,
            }
        }
        failed
    }

    /// Ends the samples.
    pub fn detach_samples(&mut self) {
        self.sample_links.clear();
    }

    /// Empties the cells of threads, between two slices.
    pub(super) fn empty_cells(&self) {
        empty(self.programs.map(SharedMap::OffCells));
        empty(self.programs.map(SharedMap::SysCells));
    }

    /// Attaches and activates the probes of single events. Returns the begin of the slice (CLOCK_MONOTONIC).
    pub fn begin_slice(&mut self) -> Result<u64, P::Error> {
        self.slice_links = self.programs.attach_slice()?;
        let slice = self.programs.slice();
        let now = monotonic_ns();
        *slice.slice_begin = now;
        *slice.cut_at = 0;
        *slice.slice_gen += 1;
        // The programs read `active` first; on the supported architectures the stores above are visible by then.
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
        *slice.active = 1;
        Ok(now)
    }

    /// Deactivates and detaches the probes of single events. Returns the end of the slice (CLOCK_MONOTONIC). Open intervals are
    /// ended when flows and threads are read next; that must happen before the next slice begins.
    pub fn end_slice(&mut self) -> u64 {
        let slice = self.programs.slice();
        *slice.active = 0;
        let now = monotonic_ns();
        *slice.cut_at = now;
        self.slice_links.clear();
        now
    }

    /// Probes of single events are attached.
    pub(super) fn in_slice(&self) -> bool {
        !self.slice_links.is_empty()
    }

    /// Keeps further links until the slice ends.
    pub(super) fn add_slice_links(&mut self, links: Vec<Link>) {
        self.slice_links.extend(links);
    }

    /// Time off the CPU by thread, system call, kind of file descriptor and reason.
    pub fn off_cells(&self) -> HashMap<u32, Vec<(OffKey, OffValue)>> {
        by_thread(self.programs.map(SharedMap::OffCells), |key: &OffKey| key.tid)
    }

    /// System calls by thread, number and kind of file descriptor.
    pub fn sys_cells(&self) -> HashMap<u32, Vec<(SysKey, SysValue)>> {
        by_thread(self.programs.map(SharedMap::SysCells), |key: &SysKey| key.tid)
    }

    /// Appends records of the ring buffer, up to a few thousand, without waiting for more. True if there may be more: the caller
    /// handles these first, so that a full ring of 8 MiB is never held in memory twice.
    pub fn drain(&self, events: &mut Vec<Event>) -> bool {
        self.inbox.drain(events)
    }

    /// The counters so far. A record that could not be decoded counts as lost. Asks the kernel about each program.
    pub fn counters(&self) -> Counters {
        let missed = missed_by(self.programs.object());
        let map = self.programs.map(SharedMap::Counters);
        let sum = |counter: Counter| sum_of(map, counter);
        let (untracked_flows, untracked_cells) = (sum(Counter::UntrackedFlows), sum(Counter::UntrackedCells));
        Counters {
            events: sum(Counter::Events),
            lost: sum(Counter::Lost) + self.inbox.undecoded.get(),
            missed,
            untracked: sum(Counter::Untracked) + untracked_flows + untracked_cells,
            untracked_flows,
            untracked_cells,
            retransmits: sum(Counter::Retransmits),
            resets_sent: sum(Counter::ResetsSent),
            resets_received: sum(Counter::ResetsReceived),
            delack_timers: sum(Counter::DelackTimers),
        }
    }

    /// The events so far, the first of the [`Loaded::counters`].
    pub fn events(&self) -> u64 {
        sum_of(self.programs.map(SharedMap::Counters), Counter::Events)
    }

    /// Makes the kernel measure the run time of BPF programs until [`Loaded::stop_timing`]. Returns false if it refuses.
    pub fn start_timing(&mut self) -> bool {
        self.stats = enable_stats();
        self.stats.is_some()
    }

    /// Ends the measurement of run times.
    pub fn stop_timing(&mut self) {
        self.stats = None;
    }

    /// The CPU time in nanoseconds and the number of the measured runs of all programs.
    pub fn timed_runs(&self) -> (u64, u64) {
        run_stats_of(self.programs.object())
    }
}

/// Records that are taken from the ring buffer at a time.
const DRAINED_MAX: usize = 4096;

/// Decodes the records of the ring buffer.
struct Inbox {
    ring: RingBuffer<'static>,
    events: Rc<RefCell<Vec<Event>>>,
    undecoded: Rc<Cell<u64>>,
}

impl Inbox {
    fn new(map: &dyn MapCore) -> Result<Self, libbpf_rs::Error> {
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

    fn drain(&self, events: &mut Vec<Event>) -> bool {
        // Consuming fails only when a callback does, and ours does not.
        let consumed = self.ring.consume_raw_n(DRAINED_MAX);
        let mut inbox = self.events.borrow_mut();
        if events.is_empty() {
            std::mem::swap(events, &mut inbox);
        } else {
            events.append(&mut inbox);
        }
        usize::try_from(consumed).is_ok_and(|consumed| consumed >= DRAINED_MAX)
    }
}

/// A counter of all CPUs.
fn sum_of(map: &impl MapCore, counter: Counter) -> u64 {
    let values = map.lookup_percpu(&(counter as u32).to_ne_bytes(), MapFlags::ANY);
    let per_cpu = values.ok().flatten().unwrap_or_default();
    per_cpu.iter().filter_map(|v| bytes::read::<u64>(v)).sum()
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

/// Removes all entries of a map.
pub fn empty(map: &impl MapCore) {
    let keys: Vec<Vec<u8>> = map.keys().collect();
    for key in keys {
        // It fails only for an entry that is gone already.
        let _ = map.delete(&key);
    }
}

/// Hands over all records of a ring buffer that nobody else reads.
pub fn drained(map: &dyn MapCore, mut each: impl FnMut(&[u8])) {
    let mut builder = RingBufferBuilder::new();
    let take = |bytes: &[u8]| {
        each(bytes);
        0
    };
    // Neither fails for a map of the right type but for want of memory, and consuming only fails when a callback does.
    if builder.add(map, take).is_err() {
        return;
    }
    if let Ok(ring) = builder.build() {
        let _ = ring.consume();
    }
}

/// All entries of a map, grouped by the thread in their key.
fn by_thread<K, V>(map: &impl MapCore, thread: impl Fn(&K) -> u32) -> HashMap<u32, Vec<(K, V)>>
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

/// Makes the kernel measure the run time of BPF programs while the descriptor is open.
fn enable_stats() -> Option<OwnedFd> {
    // SAFETY: bpf_enable_stats takes a plain number and returns a new descriptor or a negative error.
    let fd = unsafe { libbpf_sys::bpf_enable_stats(libbpf_sys::BPF_STATS_RUN_TIME) };
    // SAFETY: the kernel just returned this descriptor to us and nothing else owns it.
    (fd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(fd) })
}

/// The run time of an object's programs in a window, which the kernel measures meanwhile.
pub struct RunTime {
    _stats: Option<OwnedFd>,
    before_ns: u64,
}

impl RunTime {
    /// A window begins.
    pub fn begin(object: &Object) -> Self {
        let stats = enable_stats();
        Self { _stats: stats, before_ns: run_stats_of(object).0 }
    }

    /// The window is over. Returns the nanoseconds that the programs ran in it.
    pub fn end(self, object: &Object) -> u64 {
        run_stats_of(object).0.saturating_sub(self.before_ns)
    }
}

/// Nanoseconds and runs of an object's loaded programs while they were measured.
fn run_stats_of(object: &Object) -> (u64, u64) {
    object.progs().filter(|program| program.autoload()).fold((0, 0), |total, program| {
        let info = program_info::of(&program);
        (total.0 + info.run_time_ns, total.1 + info.run_cnt)
    })
}

/// Events that an object's loaded programs missed.
fn missed_by(object: &Object) -> u64 {
    object.progs().filter(|program| program.autoload()).map(|program| program_info::missed(&program)).sum()
}

/// Attaches a program to a perf event. libbpf closes the event together with the link.
pub fn attach_perf(program: &ProgramMut<'_>, event: OwnedFd) -> io::Result<Link> {
    let link = program.attach_perf_event(event.as_raw_fd()).map_err(io::Error::other)?;
    let _ = event.into_raw_fd();
    Ok(link)
}

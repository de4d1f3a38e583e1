//! Reports each TCP socket that closes, with its final counters.
use std::cell::RefCell;
use std::io;
use std::mem::MaybeUninit;
use std::rc::Rc;
use std::time::Duration;

use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{Link, OpenObject, RingBuffer, RingBufferBuilder};
use parshall_evidence::socket::{Selection, SocketRecord};

use super::record;
use crate::kernel_types::{self, KernelTypes};
use crate::load::{or_refused, unsignalled};
use crate::program_info;

#[allow(warnings, clippy::undocumented_unsafe_blocks)]
mod skel {
    include!(concat!(env!("OUT_DIR"), "/socket_closes.skel.rs"));
}
use skel::{SocketClosesSkel, SocketClosesSkelBuilder};

/// The maximum length of a list that the program tests. User space tests longer lists.
const LIST: usize = 64;
const LOCAL: u32 = 0x1_0000;
const REMOTE: u32 = 0x2_0000;

/// Closed sockets since the program was attached. Each is counted in one of these, but for `missed`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Written to the ring buffer.
    pub reported: u64,
    /// Not selected.
    pub filtered: u64,
    /// Lost because the ring buffer was full.
    pub lost: u64,
    /// Changes of any socket's state, closes among them, for which the kernel did not run the program, because it was at work on the same
    /// CPU.
    pub missed: u64,
}

/// The attached program and its ring buffer. It watches all network namespaces.
pub struct Closes {
    ring: RingBuffer<'static>,
    inbox: Rc<RefCell<Vec<SocketRecord>>>,
    skel: SocketClosesSkel<'static>,
    _link: Link,
}

impl std::fmt::Debug for Closes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Closes").finish_non_exhaustive()
    }
}

impl Closes {
    /// Loads and attaches the program: TCP sockets that close from now on are reported. Of the selection, it applies fields,
    /// the states in which a selected socket may end ([`Selection::closed_states`]), and up to 64 namespaces and ports; the
    /// reader of the records applies the rest. `ring_bytes` is rounded up to a power of two of pages; a record takes about
    /// 600 bytes of it. Needs CAP_BPF and CAP_PERFMON.
    ///
    /// # Errors
    /// PermissionDenied: not permitted; others: no BTF or no such tracepoint (Linux 5.6).
    pub fn attach(selection: &Selection, ring_bytes: u32) -> io::Result<Self> {
        or_refused(|| Self::try_attach(selection, ring_bytes))
    }

    fn try_attach(selection: &Selection, ring_bytes: u32) -> Result<Self, libbpf_rs::Error> {
        let ring_bytes = ring_bytes.clamp(64 << 10, 1 << 30).next_power_of_two();
        // Leaked, so that the skeleton needs no lifetime: a page, normally once per process.
        let storage: &'static mut MaybeUninit<OpenObject> = Box::leak(Box::new(MaybeUninit::uninit()));
        let types = super::kernel_types();
        let path = types.and_then(KernelTypes::path);
        let mut open = SocketClosesSkelBuilder::default().open_opts(kernel_types::options(path.as_ref()), storage)?;
        open.maps.ring.set_max_entries(ring_bytes)?;
        let constants = open.maps.rodata_data.as_deref_mut().expect("the object has read-only data");
        constants.followed_ids.iter_mut().zip(types.map_or(&[][..], KernelTypes::ids)).for_each(|(to, id)| *to = *id);
        let tick = super::Tick::of_kernel();
        (constants.socket_tick_hz, constants.socket_tick_us, constants.socket_tick_ms) = (tick.hz, tick.us, tick.ms);
        constants.wake_bytes = u64::from(ring_bytes / 8);
        let mut skel = unsignalled(|| open.load())?;
        let globals = skel.maps.bss_data.as_deref_mut().expect("the object has global data");
        globals.wanted_groups = selection.groups.bits();
        globals.wanted_states = selection.closed_states();
        if selection.namespaces.len() <= LIST {
            globals.n_namespaces = selection.namespaces.len() as u32;
            globals.namespaces[..selection.namespaces.len()].copy_from_slice(&selection.namespaces);
        }
        if selection.ports.len() <= LIST {
            globals.n_ports = selection.ports.len() as u32;
            for (place, (side, port)) in globals.ports.iter_mut().zip(&selection.ports) {
                let ends = if side.local() { LOCAL } else { 0 } | if side.remote() { REMOTE } else { 0 };
                *place = u32::from(*port) | ends;
            }
        }
        let inbox = Rc::new(RefCell::new(Vec::new()));
        let received = Rc::clone(&inbox);
        let mut builder = RingBufferBuilder::new();
        builder.add(&skel.maps.ring, move |bytes| {
            received.borrow_mut().extend(record(bytes));
            0
        })?;
        let ring = builder.build()?;
        let link = skel.progs.on_close.attach()?;
        Ok(Self { ring, inbox, skel, _link: link })
    }

    /// Appends the records in the ring buffer, without waiting for more.
    pub fn drain(&mut self, records: &mut Vec<SocketRecord>) {
        // Consuming fails only when a callback does, and ours does not.
        let _ = self.ring.consume();
        records.append(&mut self.inbox.borrow_mut());
    }

    /// Waits until an eighth of the ring buffer is full or `timeout` has passed, then drains.
    pub fn wait(&mut self, timeout: Duration, records: &mut Vec<SocketRecord>) {
        // A wait that a signal interrupts is only shorter.
        let _ = self.ring.poll(timeout);
        self.drain(records);
    }

    /// The counts so far. `reported` includes records that were not drained yet.
    pub fn counts(&self) -> Counts {
        let globals = self.skel.maps.bss_data.as_deref().expect("the object has global data");
        let missed = program_info::missed(&self.skel.progs.on_close);
        Counts { reported: globals.reported, filtered: globals.filtered, lost: globals.lost, missed }
    }
}

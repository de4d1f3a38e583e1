//! Loads and attaches the classic object, which observes threads on kernels without BTF.
//!
//! As in the btf object, some programs are always attached and others only during slices. There are no iterators: user space
//! adds the threads to a map, and [`ThreadEntry::close`] ends the intervals that are open at the end of a slice.
mod error;
pub mod format;
pub mod layout;
pub mod tracefs;

use std::mem::MaybeUninit;

use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{Link, MapCore, MapFlags, OpenObject, ProgramMut};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

use super::loaded::{self, Loaded, Programs, shared_parts};
use super::sample;
use super::syscall::call_flags;
use super::thread::KSTACK_MAX;
use crate::clock::monotonic_ns;
use crate::load::{reason_in_words, unsignalled, with_messages};

/// The generated skeleton of `classic.bpf.c`.
#[allow(warnings, clippy::undocumented_unsafe_blocks)]
mod skel {
    include!(concat!(env!("OUT_DIR"), "/classic.skel.rs"));
}
use skel::{ClassicSkel, ClassicSkelBuilder, types};

pub use error::Error;
use layout::{Layout, Offsets, Ports, Tracepoint};
use tracefs::Tracefs;

/// `struct classic_thread`: a thread's ledger and its open interval.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
#[allow(missing_docs)]
pub struct ThreadEntry {
    pub since: u64,
    pub wake: u64,
    pub memory_sp: u64,
    pub on_ns: u64,
    pub sys_t0: u64,
    pub sys_on0: u64,
    pub runq_ns: u64,
    pub slice: u32,
    pub tid: u32,
    pub tgid: u32,
    pub runq_count: u32,
    pub waker_tid: u32,
    pub waker_tgid: u32,
    pub n_wstack: u32,
    pub seq: u32,
    pub sys_nr: i32,
    pub state: u8,
    pub waker_irq: u8,
    pub want_ustack: u8,
    pub sys_fd: u8,
    pub last_recv_sk: u64,
    pub copy_pairs: u64,
    pub copy_bytes: u64,
    pub copy_recvs: u64,
    pub copy_mode_count: u64,
    pub copy_left_over: u64,
    pub last_recv_len: u32,
    pub copy_mode: u32,
    pub copy_votes: u32,
    pub why: u8,
    pub waker_context: u8,
    pub memory_copies: u8,
    pub pad: u8,
    pub runq_log2: [u32; 20],
    pub waker_comm: [u8; 16],
    pub wstack: [u64; KSTACK_MAX],
    pub born: u64,
    pub call_slice: u32,
    pub n_kstack: u32,
    pub deep: u32,
    pub call_fd: u32,
    pub new_kind: u32,
    pub pad2: u32,
    pub kstack: [u64; KSTACK_MAX],
}

/// `enum thread_state`.
const TS_UNKNOWN: u8 = 0;
const TS_ON: u8 = 1;
const TS_RUNNABLE: u8 = 3;

/// The state of a thread in /proc when the slice began.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SeenIn {
    /// Running, or waiting for a CPU.
    Running,
    /// Blocked in a system call (-1: in none) on a kind of file descriptor (`enum fd_kind`).
    Blocked(i32, u8),
}

/// The interval of a thread that was open when the slice ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct OpenInterval {
    /// CLOCK_MONOTONIC nanoseconds.
    pub begin: u64,
    /// The part of the interval on a CPU.
    pub on_ns: u64,
    /// The part in which the thread was blocked.
    pub blocked_ns: u64,
    /// The part in which the thread waited for a CPU.
    pub runnable_ns: u64,
    /// The system call, or -1.
    pub nr: i32,
    /// The kind of the call's file descriptor (`enum fd_kind`).
    pub fd: u8,
}

impl ThreadEntry {
    fn new(tid: u32, tgid: u32) -> Self {
        let mut entry = Self::new_zeroed();
        (entry.tid, entry.tgid) = (tid, tgid);
        entry
    }

    /// The interval that is open at `end`, in the slice that began at `begin`. `seen` is the thread's state in /proc when the
    /// slice began. `ran`: a thread without any event in the slice was on a CPU.
    pub fn close(&self, slice: u32, (begin, end): (u64, u64), seen: SeenIn, ran: bool) -> OpenInterval {
        let quiet = self.slice != slice;
        let (since, mut state, wake) =
            if quiet { (begin.max(self.born), TS_UNKNOWN, 0) } else { (self.since, self.state, self.wake) };
        let total = end.saturating_sub(since);
        let (nr, fd) = if self.call_slice == slice && !quiet {
            if self.sys_t0 > 0 { (self.sys_nr, self.sys_fd) } else { (-1, 0) }
        } else if let SeenIn::Blocked(nr, fd) = seen {
            (nr, fd)
        } else {
            (-1, 0)
        };
        let mut open = OpenInterval { begin: since, nr, fd, ..OpenInterval::default() };
        if state == TS_UNKNOWN && wake == 0 && seen == SeenIn::Running {
            state = if ran { TS_ON } else { TS_RUNNABLE };
        }
        match state {
            TS_ON => open.on_ns = total,
            TS_RUNNABLE => open.runnable_ns = total,
            _ => {
                open.blocked_ns = if wake > since { wake.min(end) - since } else { total };
                open.runnable_ns = total - open.blocked_ns.min(total);
                open.blocked_ns = open.blocked_ns.min(total);
            }
        }
        open
    }
}

/// `struct seed`.
#[derive(IntoBytes, Immutable)]
#[repr(C)]
struct Seed {
    slice: u32,
    nr: i32,
    fd: u8,
    blocked: u8,
    pad: [u8; 2],
}

/// The loaded classic probes.
pub type Classic = Loaded<ClassicPrograms>;

/// The skeleton of `classic.bpf.c`, and the layout of this kernel's tracepoints.
pub struct ClassicPrograms {
    skel: ClassicSkel<'static>,
    layout: Layout,
}

impl Programs for ClassicPrograms {
    type Error = Error;
    shared_parts!();

    fn missing(&self) -> Vec<String> {
        self.layout.missing.iter().map(|what| (*what).to_owned()).collect()
    }

    fn attach_always(&self) -> Result<Vec<Link>, Error> {
        self.layout.always.iter().map(|tracepoint| self.attach(tracepoint)).collect()
    }

    fn attach_slice(&self) -> Result<Vec<Link>, Error> {
        self.layout.slice.iter().map(|tracepoint| self.attach(tracepoint)).collect()
    }
}

impl ClassicPrograms {
    fn attach(&self, tracepoint: &Tracepoint) -> Result<Link, Error> {
        let name = tracepoint.program;
        let link = sample::open_tracepoint(tracepoint.id).and_then(|fd| loaded::attach_perf(self.program(name), fd));
        link.map_err(|source| Error::Attach { name, source })
    }

    fn program(&self, name: &str) -> &ProgramMut<'static> {
        let progs = &self.skel.progs;
        match name {
            "on_switch" => &progs.on_switch,
            "on_waking" => &progs.on_waking,
            "on_sys_enter" => &progs.on_sys_enter,
            "on_sys_exit" => &progs.on_sys_exit,
            "on_new_task" => &progs.on_new_task,
            "on_exit" => &progs.on_exit,
            "on_retransmit" => &progs.on_retransmit,
            "on_reset_sent" => &progs.on_reset_sent,
            _ => &progs.on_reset_received,
        }
    }
}

fn unloaded(error: libbpf_rs::Error) -> Error {
    Error::Load(error.to_string())
}

impl Classic {
    /// Loads the programs for the layouts of this kernel; nothing is attached yet. With `follow_children`, child processes of the
    /// subject belong to it.
    pub fn load(follow_children: bool) -> Result<Self, Error> {
        let layout = layout::read(&Tracefs::open().ok_or(Error::NoTracefs)?.path())?;
        // Leaked, so that the skeleton needs no lifetime: a page for each load.
        let object: &'static mut MaybeUninit<OpenObject> = Box::leak(Box::new(MaybeUninit::uninit()));
        let mut open = ClassicSkelBuilder::default().open(object).map_err(unloaded)?;
        open.maps.sys_cells.set_map_flags(0).map_err(unloaded)?;
        let rodata = open.maps.rodata_data.as_deref_mut().expect("the object has read-only data");
        rodata.follow_children = follow_children.into();
        set_offsets(rodata, &layout.offsets);
        let (loaded, messages) = with_messages(|| unsignalled(|| open.load()));
        let skel = loaded.map_err(|error| Error::Load(reason_in_words(&messages, &error)))?;
        Self::new(ClassicPrograms { skel, layout }).map_err(unloaded)
    }

    /// Loads and attaches what an observation does. Nothing is observed.
    pub fn trial() -> Result<(), Error> {
        let mut classic = Self::load(true)?;
        classic.attach_always()?;
        classic.begin_slice()?;
        classic.end_slice();
        Ok(())
    }

    /// Prepares a window, before its first slice: what an earlier one has left in the ledgers and cells is emptied.
    pub fn renew(&self) {
        self.empty_cells();
        for entry in self.threads() {
            let empty = ThreadEntry { born: entry.born, ..ThreadEntry::new(entry.tid, entry.tgid) };
            // It fails for a thread that has ended.
            let map = &self.programs.skel.maps.threads;
            let _ = map.update(&entry.tid.to_ne_bytes(), empty.as_bytes(), MapFlags::EXIST);
        }
    }

    /// The number of the current or last slice.
    pub fn slice(&self) -> u32 {
        self.programs.skel.maps.bss_data.as_deref().map_or(0, |bss| bss.slice_gen)
    }

    /// Adds a process to the subject. Its threads are added with [`Classic::add_thread`].
    pub fn add_process(&self, tgid: u32) {
        // It fails only if the map is full. The process is then not observed; its threads are counted as untracked.
        let _ = self.programs.skel.maps.tgids.update(&tgid.to_ne_bytes(), &[1], MapFlags::ANY);
    }

    /// Begins to observe a thread, unless it is already observed. Returns false if the map is full.
    pub fn add_thread(&self, tid: u32, tgid: u32) -> bool {
        let (map, key) = (&self.programs.skel.maps.threads, tid.to_ne_bytes());
        let mut entry = ThreadEntry::new(tid, tgid);
        // Its state before now is not known.
        (entry.slice, entry.since) = (self.slice(), monotonic_ns());
        match map.update(&key, entry.as_bytes(), MapFlags::NO_EXIST) {
            Ok(()) => true,
            Err(error) => error.kind() == libbpf_rs::ErrorKind::AlreadyExists,
        }
    }

    /// Sets the state of a thread at the beginning of the slice.
    pub fn seed(&self, tid: u32, seen: SeenIn) {
        let (nr, fd, blocked) = match seen {
            SeenIn::Running => (-1, 0, 0),
            SeenIn::Blocked(nr, fd) => (nr, fd, 1),
        };
        let seed = Seed { slice: self.slice(), nr, fd, blocked, pad: [0; 2] };
        let _ = self.programs.skel.maps.seeds.update(&tid.to_ne_bytes(), seed.as_bytes(), MapFlags::ANY);
    }

    /// Sets the kind of a file descriptor (`enum fd_kind`).
    pub fn set_kind(&self, tgid: u32, fd: u32, kind: u8) {
        let key = [tgid.to_ne_bytes(), fd.to_ne_bytes()].concat();
        let _ = self.programs.skel.maps.kinds.update(&key, &[kind], MapFlags::ANY);
    }

    /// Adds the ports of a flow whose resets and retransmissions are counted.
    pub fn add_ports(&self, local: u16, remote: u16) {
        let key = (u32::from(local) << 16 | u32::from(remote)).to_ne_bytes();
        let _ = self.programs.skel.maps.ports.update(&key, &[1], MapFlags::ANY);
    }

    /// The ledgers of all threads.
    pub fn threads(&self) -> Vec<ThreadEntry> {
        loaded::entries::<u32, ThreadEntry>(&self.programs.skel.maps.threads)
            .into_iter()
            .map(|(_, entry)| entry)
            .collect()
    }
}

fn set_offsets(rodata: &mut types::rodata, offsets: &Offsets) {
    rodata.call_flags = call_flags();
    rodata.off_prev_pid = offsets.prev_pid;
    rodata.off_prev_state = offsets.prev_state;
    rodata.off_next_pid = offsets.next_pid;
    rodata.off_waking_pid = offsets.waking_pid;
    rodata.off_enter_id = offsets.enter_id;
    rodata.off_enter_args = offsets.enter_args;
    rodata.off_exit_ret = offsets.exit_ret;
    rodata.off_new_pid = offsets.new_pid;
    rodata.off_new_flags = offsets.new_flags;
    let nowhere = Ports { sport: 8, dport: 8, swapped: false };
    let (retrans, rst_in) = (offsets.retrans.unwrap_or(nowhere), offsets.rst_in.unwrap_or(nowhere));
    let rst_out = offsets.rst_out.unwrap_or(nowhere);
    (rodata.off_retrans_sport, rodata.off_retrans_dport) = (retrans.sport, retrans.dport);
    (rodata.off_rst_in_sport, rodata.off_rst_in_dport) = (rst_in.sport, rst_in.dport);
    (rodata.off_rst_out_sport, rodata.off_rst_out_dport) = (rst_out.sport, rst_out.dport);
    rodata.rst_out_swapped = rst_out.swapped.into();
    rodata.nr_close = libc::SYS_close as i32;
    rodata.nr_accept = libc::SYS_accept as i32;
    rodata.nr_accept4 = libc::SYS_accept4 as i32;
    rodata.nr_socket = libc::SYS_socket as i32;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_have_the_sizes_of_the_c_structures() {
        assert_eq!(size_of::<ThreadEntry>(), size_of::<types::classic_thread>());
        assert_eq!(size_of::<Seed>(), size_of::<types::seed>());
    }

    #[test]
    fn open_intervals_are_divided_by_state() {
        let mut entry = ThreadEntry::new(7, 7);
        (entry.slice, entry.call_slice, entry.since, entry.state) = (1, 1, 100, 2);
        (entry.sys_t0, entry.sys_nr) = (50, 3);
        let open = entry.close(1, (10, 160), SeenIn::Running, false);
        assert_eq!((open.blocked_ns, open.runnable_ns, open.nr), (60, 0, 3));
        entry.wake = 140;
        let open = entry.close(1, (10, 160), SeenIn::Running, false);
        assert_eq!((open.blocked_ns, open.runnable_ns), (40, 20));
        entry.state = TS_ON;
        assert_eq!(entry.close(1, (10, 160), SeenIn::Running, false).on_ns, 60);
    }

    #[test]
    fn a_thread_without_events_keeps_its_state_of_proc() {
        let entry = ThreadEntry::new(7, 7);
        let open = entry.close(2, (10, 160), SeenIn::Blocked(3, 5), false);
        assert_eq!((open.blocked_ns, open.nr, open.fd), (150, 3, 5));
        assert_eq!(entry.close(2, (10, 160), SeenIn::Running, true).on_ns, 150);
        assert_eq!(entry.close(2, (10, 160), SeenIn::Running, false).runnable_ns, 150);
        assert_eq!(
            entry.close(2, (160, 10), SeenIn::Running, true),
            OpenInterval { begin: 160, nr: -1, ..OpenInterval::default() }
        );
    }
}

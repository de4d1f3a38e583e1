//! Loads the probes, attaches them, and reads what they have collected.
//!
//! Two sets of programs: the always-on set pays per connection, thread or sample; the slice set pays per event and is
//! attached only while a slice is on, because even an idle program on a hot tracepoint costs several per cent of a
//! saturated host.
use std::collections::HashMap;
use std::io::Read;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};

use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{Iter, Link, MapCore, MapFlags, OpenObject};

use super::kit::{self, Inbox};
use super::lifecycle::{FlowDump, Owner};
use super::record::Event;
use super::sample;
use super::syscall::{SysKey, SysValue, call_flags};
use super::thread::{OffKey, OffValue, ThreadDump};
use crate::bytes::read_all;
use crate::clock::monotonic_ns;
use crate::kernel_types::{self, KernelTypes};
use crate::load::unsignalled;

/// The generated skeleton of `probes.bpf.c`.
#[allow(warnings, clippy::undocumented_unsafe_blocks)]
mod skel {
    include!(concat!(env!("OUT_DIR"), "/probes.skel.rs"));
}
use skel::{ProbesSkel, ProbesSkelBuilder};

/// Why the probes could not be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kernel refused to load them.
    #[error("the kernel refused the probes: {0}")]
    Load(#[source] libbpf_rs::Error),
    /// The kernel refused to attach one of them.
    #[error("the probe {name} could not be attached: {source}")]
    Attach {
        /// Its name.
        name: &'static str,
        /// What the kernel said.
        source: libbpf_rs::Error,
    },
    /// A map or iterator could not be read.
    #[error("the probes' {what} could not be read: {source}")]
    Read {
        /// Which.
        what: &'static str,
        /// What the kernel said.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

/// Which sockets of a process belong to the subject.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Scope {
    /// All of them.
    All = 1,
    /// Those with the subject's port at either end.
    Port = 2,
}

/// Whom to probe.
#[derive(Debug, Clone, Default)]
pub struct Config {
    /// Processes of the subject.
    pub tgids: Vec<(u32, Scope)>,
    /// The subject's port, for [`Scope::Port`].
    pub port: Option<u16>,
    /// Flows tracked at most.
    pub max_flows: u32,
    /// What the processes fork is left alone; otherwise it belongs to the subject.
    pub without_children: bool,
}

/// Sums over all CPUs of the probes' counters.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Counters {
    pub events: u64,
    pub lost: u64,
    pub untracked: u64,
    pub retransmits: u64,
    pub resets_sent: u64,
    pub resets_received: u64,
    pub opened: u64,
    pub closed: u64,
    pub delack_timers: u64,
}

/// The loaded probes. Dropping it detaches everything.
pub struct Probes {
    // Declared in the order in which they must go: links before the programs they hold.
    slice_links: Vec<Link>,
    always_links: Vec<Link>,
    stats: Option<OwnedFd>,
    inbox: Inbox,
    skel: ProbesSkel<'static>,
    missing: Vec<&'static str>,
}

/// Programs that need a tracepoint which older kernels lack, and what is lost without it.
const OPTIONAL: &[(&str, &str, &str)] = &[
    (
        "on_send_begin",
        "tcp_sendmsg_locked",
        "the kernel (before 6.16) does not show when a send begins: time before \
      a long send may be counted as in flight",
    ),
    ("on_send_end", "sock_send_length", "the kernel (before 6.3) does not show the sizes of sends"),
    ("on_recv", "sock_recv_length", "the kernel (before 6.3) does not show the sizes of receives"),
];

impl Probes {
    /// Loads the programs; nothing is attached yet.
    pub fn load(config: &Config) -> Result<Self, Error> {
        let (skel, missing) = match Self::load_without(config, &[]) {
            Ok(skel) => (skel, Vec::new()),
            Err(error) => {
                let absent: Vec<_> = OPTIONAL.iter().filter(|o| !tracepoint_exists(o.1)).collect();
                if absent.is_empty() {
                    return Err(Error::Load(error));
                }
                let names: Vec<&str> = absent.iter().map(|o| o.0).collect();
                let skel = Self::load_without(config, &names).map_err(Error::Load)?;
                (skel, absent.iter().map(|o| o.2).collect())
            }
        };
        let inbox = Inbox::new(&skel.maps.ring).map_err(Error::Load)?;
        let probes = Self { slice_links: Vec::new(), always_links: Vec::new(), stats: None, inbox, skel, missing };
        for (tgid, scope) in &config.tgids {
            probes.add_process(*tgid, *scope)?;
        }
        Ok(probes)
    }

    /// Takes a process into the subject; the next [`Probes::owners`] and [`Probes::threads`] find its sockets and threads.
    pub fn add_process(&self, tgid: u32, scope: Scope) -> Result<(), Error> {
        let tgids = &self.skel.maps.tgids;
        let added = tgids.update(&tgid.to_ne_bytes(), &[scope as u8], MapFlags::ANY);
        added.map_err(|e| Error::Read { what: "process table", source: e.into() })
    }

    fn load_without(config: &Config, without: &[&str]) -> Result<ProbesSkel<'static>, libbpf_rs::Error> {
        // The skeleton borrows its object; one small allocation per load is left behind for the life of the process.
        let object: &'static mut MaybeUninit<OpenObject> = Box::leak(Box::new(MaybeUninit::uninit()));
        let types = KernelTypes::read(include!(concat!(env!("OUT_DIR"), "/type_names.rs")), &[]);
        let path = types.as_ref().and_then(KernelTypes::path);
        let mut open = ProbesSkelBuilder::default().open_opts(kernel_types::options(path.as_ref()), object)?;
        let rodata = open.maps.rodata_data.as_deref_mut().expect("the object has read-only data");
        rodata.port = config.port.unwrap_or(0);
        rodata.max_flows = config.max_flows;
        rodata.follow_children = (!config.without_children).into();
        rodata.call_flags = call_flags();
        for mut program in open.open_object_mut().progs_mut() {
            if without.iter().any(|name| program.name() == *name) {
                program.set_autoload(false);
            }
        }
        unsignalled(|| open.load())
    }

    /// What this kernel cannot show, a sentence each.
    pub fn missing(&self) -> &[&'static str] {
        &self.missing
    }

    /// Attaches what stays on for the whole window.
    pub fn attach_always(&mut self) -> Result<(), Error> {
        let progs = &self.skel.progs;
        for (name, program) in [
            ("on_state", &progs.on_state),
            ("on_new_task", &progs.on_new_task),
            ("on_exit", &progs.on_exit),
            ("on_retransmit", &progs.on_retransmit),
            ("on_reset_sent", &progs.on_reset_sent),
            ("on_reset_received", &progs.on_reset_received),
        ] {
            self.always_links.push(program.attach().map_err(|source| Error::Attach { name, source })?);
        }
        Ok(())
    }

    /// Attaches the sampling clock on each of the given CPUs; returns how many could not be sampled.
    pub fn attach_samples(&mut self, cpus: impl Iterator<Item = i32>) -> usize {
        let mut failed = 0;
        for cpu in cpus {
            match sample::open_clock(cpu).and_then(|fd| kit::attach_perf(&self.skel.progs.on_sample, fd)) {
                Ok(link) => self.always_links.push(link),
                Err(_) => failed += 1,
            }
        }
        failed
    }

    /// Attaches the per-event probes and switches them on; returns when (CLOCK_MONOTONIC).
    pub fn begin_slice(&mut self) -> Result<u64, Error> {
        let progs = &self.skel.progs;
        for (name, program) in [
            ("on_switch", &progs.on_switch),
            ("on_waking", &progs.on_waking),
            ("on_sys_enter", &progs.on_sys_enter),
            ("on_sys_exit", &progs.on_sys_exit),
            ("on_segment", &progs.on_segment),
            ("on_send_begin", &progs.on_send_begin),
            ("on_send_end", &progs.on_send_end),
            ("on_recv", &progs.on_recv),
            ("on_timer", &progs.on_timer),
        ] {
            if program.autoload() {
                self.slice_links.push(program.attach().map_err(|source| Error::Attach { name, source })?);
            }
        }
        let bss = self.bss();
        let now = monotonic_ns();
        bss.slice_begin = now;
        bss.cut_at = 0;
        bss.slice_gen += 1;
        // The programs read `active` first; on the supported architectures the stores above are visible by then.
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
        bss.active = 1;
        Ok(now)
    }

    /// Switches the per-event probes off and detaches them; returns when. The open intervals are closed by the next
    /// [`Probes::flows`] and [`Probes::threads`], which must follow before another slice begins.
    pub fn end_slice(&mut self) -> u64 {
        let bss = self.bss();
        bss.active = 0;
        let now = monotonic_ns();
        bss.cut_at = now;
        self.slice_links.clear();
        now
    }

    /// Accounts of the subject's threads; begins to track those that are new.
    pub fn threads(&mut self) -> Result<Vec<ThreadDump>, Error> {
        let link = self.skel.progs.dump_threads.attach();
        Ok(read_all(&read_iter("threads", link)?))
    }

    /// Accounts of the tracked sockets.
    pub fn flows(&mut self) -> Result<Vec<FlowDump>, Error> {
        let link = self.skel.progs.dump_flows.attach_iter(self.skel.maps.flows.as_fd());
        Ok(read_all(&read_iter("flows", link)?))
    }

    /// Begins to track the sockets that the subject's processes hold, and says who holds which.
    pub fn owners(&mut self) -> Result<Vec<Owner>, Error> {
        let link = self.skel.progs.dump_owners.attach();
        Ok(read_all(&read_iter("owners", link)?))
    }

    /// Time off the CPU, by thread and kind.
    pub fn off_cells(&self) -> HashMap<u32, Vec<(OffKey, OffValue)>> {
        kit::by_thread(&self.skel.maps.off_cells, |key: &OffKey| key.tid)
    }

    /// System calls, by thread and kind.
    pub fn sys_cells(&self) -> HashMap<u32, Vec<(SysKey, SysValue)>> {
        kit::by_thread(&self.skel.maps.sys_cells, |key: &SysKey| key.tid)
    }

    /// Processes of the subject by now: those given, and their children.
    pub fn tgids(&self) -> Vec<u32> {
        self.skel.maps.tgids.keys().filter_map(|key| key.try_into().ok().map(u32::from_ne_bytes)).collect()
    }

    /// Appends the records that have arrived.
    pub fn drain(&mut self, events: &mut Vec<Event>) {
        self.inbox.drain(events);
    }

    /// The counters so far.
    pub fn counters(&self) -> Counters {
        kit::counters(&self.skel.maps.counters, self.inbox.undecoded())
    }

    /// Has the kernel time every run of a program, until [`Probes::stop_timing`]; false when it will not.
    pub fn start_timing(&mut self) -> bool {
        self.stats = kit::enable_stats();
        self.stats.is_some()
    }

    /// Ends what [`Probes::start_timing`] began.
    pub fn stop_timing(&mut self) {
        self.stats = None;
    }

    /// CPU time and number of the timed runs of all programs.
    pub fn timed_runs(&self) -> (u64, u64) {
        use libbpf_rs::skel::Skel;
        kit::timed_runs(self.skel.object())
    }

    fn bss(&mut self) -> &mut skel::types::bss {
        self.skel.maps.bss_data.as_deref_mut().expect("the object has global data")
    }
}

fn read_iter(what: &'static str, link: libbpf_rs::Result<Link>) -> Result<Vec<u8>, Error> {
    let link = link.map_err(|source| Error::Attach { name: what, source })?;
    let mut bytes = Vec::new();
    Iter::new(&link)
        .map_err(|e| Error::Read { what, source: e.into() })?
        .read_to_end(&mut bytes)
        .map_err(|e| Error::Read { what, source: e.into() })?;
    Ok(bytes)
}

fn tracepoint_exists(name: &str) -> bool {
    let Ok(name) = std::ffi::CString::new(name) else { return false };
    // SAFETY: `name` is a NUL-terminated string that outlives the call.
    unsafe { libbpf_sys::libbpf_find_vmlinux_btf_id(name.as_ptr(), libbpf_sys::BPF_TRACE_RAW_TP) > 0 }
}

#[cfg(test)]
mod tests {
    use super::skel::types as wire;
    use super::*;

    #[test]
    fn wire_structures_have_the_size_the_probes_write() {
        assert_eq!(size_of::<FlowDump>(), size_of::<wire::flow_dump>());
        assert_eq!(size_of::<super::super::lifecycle::FlowWire>(), size_of::<wire::flow>());
        assert_eq!(size_of::<super::super::lifecycle::SnapshotWire>(), size_of::<wire::snapshot>());
        assert_eq!(size_of::<super::super::lifecycle::FlowKey>(), size_of::<wire::flow_key>());
        assert_eq!(size_of::<OffKey>(), size_of::<wire::off_key>());
        assert_eq!(size_of::<SysKey>(), size_of::<wire::sys_key>());
        assert_eq!(size_of::<SysValue>(), size_of::<wire::sys_value>());
    }
}

//! Loads and attaches the probes for kernels with BTF, and reads their maps and iterators.
//!
//! There are two sets of programs. Those of the first set run once per connection, thread or sample and are always attached.
//! Those of the second set run once per event and are attached only during slices, because even a program that returns at once
//! on a frequent tracepoint takes several per cent of a saturated host.
use std::cell::Cell;
use std::io::Read;
use std::mem::MaybeUninit;
use std::os::fd::AsFd;

use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{Iter, Link, MapCore, MapFlags, OpenObject, ProgramMut};
use zerocopy::FromBytes;

use super::lifecycle::{FlowDump, Owner};
use super::loaded::{Loaded, Programs, entries, shared_parts};
use super::net::{NetKey, NetValue};
use super::syscall::call_flags;
use super::thread::ThreadDump;
use crate::bytes::read;
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
        /// The program or iterator.
        name: &'static str,
        /// The kernel's error.
        source: libbpf_rs::Error,
    },
    /// A map or iterator could not be read.
    #[error("the probes' {what} could not be read: {source}")]
    Read {
        /// The map or iterator.
        what: &'static str,
        /// The kernel's error.
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

/// The subject, and limits.
#[derive(Debug, Clone, Default)]
pub struct Config {
    /// Processes of the subject.
    pub tgids: Vec<(u32, Scope)>,
    /// The subject's port, for [`Scope::Port`].
    pub port: Option<u16>,
    /// The most flows that are tracked.
    pub max_flows: u32,
    /// The number of already open connections that are tracked at once. Of the others, those that carried data within
    /// `recent_jiffies` are; the rest are tracked at their first send or receive.
    pub eager_flows: u32,
    /// In ticks of the kernel.
    pub recent_jiffies: u32,
    /// Child processes do not belong to the subject.
    pub without_children: bool,
}

/// The loaded probes for kernels with BTF.
pub type Probes = Loaded<BtfPrograms>;

/// The skeleton of `probes.bpf.c`.
pub struct BtfPrograms {
    skel: ProbesSkel<'static>,
    missing: Vec<&'static str>,
    needed: Cell<Needed>,
}

/// What the subject was seen to use in the slices so far.
#[derive(Debug, Clone, Copy, Default)]
struct Needed {
    udp: bool,
    splice: bool,
}

impl Programs for BtfPrograms {
    type Error = Error;
    shared_parts!();

    fn missing(&self) -> &[&'static str] {
        &self.missing
    }

    fn attach_always(&self) -> Result<Vec<Link>, Error> {
        let progs = &self.skel.progs;
        attach(&[
            ("on_state", &progs.on_state),
            ("on_new_task", &progs.on_new_task),
            ("on_exit", &progs.on_exit),
            ("on_free", &progs.on_free),
            ("on_stop_signal", &progs.on_stop_signal),
            ("on_retransmit", &progs.on_retransmit),
            ("on_reset_sent", &progs.on_reset_sent),
            ("on_reset_received", &progs.on_reset_received),
        ])
    }

    fn attach_slice(&self) -> Result<Vec<Link>, Error> {
        let progs = &self.skel.progs;
        let programs = [
            ("on_switch", &progs.on_switch),
            ("on_waking", &progs.on_waking),
            ("on_sys_enter", &progs.on_sys_enter),
            ("on_sys_exit", &progs.on_sys_exit),
            ("on_segment", &progs.on_segment),
            ("on_send_begin", &progs.on_send_begin),
            ("on_send_end", &progs.on_send_end),
            ("on_recv", &progs.on_recv),
            ("on_timer", &progs.on_timer),
        ];
        self.needed.set(Needed::default());
        let mut links = attach(&programs)?;
        links.extend(self.attach_needed()?);
        Ok(links)
    }
}

impl BtfPrograms {
    /// Attaches the programs that run for every socket of the host and that few subjects need, once this one does.
    fn attach_needed(&self) -> Result<Vec<Link>, Error> {
        let seen = |bss: &skel::types::bss| Needed { udp: bss.udp_seen != 0, splice: bss.splice_seen != 0 };
        let now = self.skel.maps.bss_data.as_deref().map_or(Needed::default(), seen);
        let before = self.needed.replace(now);
        let progs = &self.skel.progs;
        let mut programs = Vec::new();
        if now.udp && !before.udp {
            programs.push(("on_data_ready", &progs.on_data_ready));
        }
        if now.splice && !before.splice {
            programs.push(("on_splice", &progs.on_splice));
        }
        attach(&programs)
    }
}

/// Attaches programs to the tracepoints that their sections name. Skips those that were not loaded (`OPTIONAL`).
fn attach(programs: &[(&'static str, &ProgramMut<'static>)]) -> Result<Vec<Link>, Error> {
    let loaded = programs.iter().filter(|(_, program)| program.autoload());
    loaded.map(|&(name, program)| program.attach().map_err(|source| Error::Attach { name, source })).collect()
}

/// Programs that need a tracepoint which older kernels lack: the program, the tracepoint, and what is not observed without it.
const OPTIONAL: &[(&str, &str, &str)] = &[
    (
        "on_send_begin",
        "tcp_sendmsg_locked",
        "the kernel (before 6.16) does not show when a send begins: time before \
      a long send may be counted as in flight",
    ),
    ("on_send_end", "sock_send_length", "the kernel (before 6.3) does not show the sizes of sends"),
    ("on_recv", "sock_recv_length", "the kernel (before 6.3) does not show the sizes of receives"),
    ("on_data_ready", "sk_data_ready", "the kernel (before 6.3) does not show when datagrams arrive"),
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
        let probes = Self::new(BtfPrograms { skel, missing, needed: Cell::default() }).map_err(Error::Load)?;
        for (tgid, scope) in &config.tgids {
            probes.add_process(*tgid, *scope)?;
        }
        Ok(probes)
    }

    /// Attaches what the subject was seen to need since the slice began: datagrams and splice() cost the whole host more than they
    /// are worth where nobody uses them. Does nothing between slices.
    pub fn attach_needed(&mut self) -> Result<(), Error> {
        if self.in_slice() {
            let links = self.programs.attach_needed()?;
            self.add_slice_links(links);
        }
        Ok(())
    }

    /// Adds a process to the subject. The next [`Probes::owners`] and [`Probes::threads`] find its sockets and threads.
    pub fn add_process(&self, tgid: u32, scope: Scope) -> Result<(), Error> {
        let tgids = &self.programs.skel.maps.tgids;
        let added = tgids.update(&tgid.to_ne_bytes(), &[scope as u8], MapFlags::ANY);
        added.map_err(|e| Error::Read { what: "process table", source: e.into() })
    }

    /// Connections that are accepted at this port belong to the subject, which listens there by MPTCP.
    pub fn add_mptcp_port(&mut self, netns: u64, port: u16) -> Result<(), Error> {
        let skel = &mut self.programs.skel;
        let key = netns << 16 | u64::from(port);
        let added = skel.maps.mptcp_ports.update(&key.to_ne_bytes(), &[1], MapFlags::ANY);
        skel.maps.bss_data.as_deref_mut().expect("the object has variables").has_mptcp_ports = 1;
        added.map_err(|e| Error::Read { what: "table of MPTCP's ports", source: e.into() })
    }

    /// Adds a process that the subject may wait for. Its later children are added too.
    pub fn follow_process(&self, tgid: u32) -> Result<(), Error> {
        let tgids = &self.programs.skel.maps.tgids;
        let added = tgids.update(&tgid.to_ne_bytes(), &[Scope::All as u8 | FOLLOWED], MapFlags::ANY);
        added.map_err(|e| Error::Read { what: "process table", source: e.into() })
    }

    /// Removes a process that has ended, because its pid can be reused.
    pub fn forget_process(&self, tgid: u32) {
        // It fails only if the process is not in the table.
        let _ = self.programs.skel.maps.tgids.delete(&tgid.to_ne_bytes());
    }

    fn load_without(config: &Config, without: &[&str]) -> Result<ProbesSkel<'static>, libbpf_rs::Error> {
        // Leaked, so that the skeleton needs no lifetime: a page for each load.
        let object: &'static mut MaybeUninit<OpenObject> = Box::leak(Box::new(MaybeUninit::uninit()));
        let types = KernelTypes::read(include!(concat!(env!("OUT_DIR"), "/type_names.rs")), CAST);
        let path = types.as_ref().and_then(KernelTypes::path);
        let mut open = ProbesSkelBuilder::default().open_opts(kernel_types::options(path.as_ref()), object)?;
        let rodata = open.maps.rodata_data.as_deref_mut().expect("the object has read-only data");
        rodata.port = config.port.unwrap_or(0);
        rodata.max_flows = config.max_flows;
        rodata.eager_flows = config.eager_flows;
        rodata.recent_jiffies = config.recent_jiffies;
        rodata.follow_children = (!config.without_children).into();
        rodata.call_flags = call_flags();
        if let Some(&[task_struct, file, socket, sock]) = types.as_ref().map(KernelTypes::ids) {
            (rodata.task_struct_id, rodata.file_id, rodata.socket_id, rodata.sock_id) =
                (task_struct, file, socket, sock);
        }
        #[cfg(target_arch = "x86_64")]
        (rodata.preempt_count_from_rq = preempt_count_from_rq());
        for mut program in open.open_object_mut().progs_mut() {
            if without.iter().any(|name| program.name() == *name) {
                program.set_autoload(false);
            }
        }
        unsignalled(|| open.load())
    }

    /// The ledgers of the subject's threads. Begins to track new threads.
    pub fn threads(&mut self) -> Result<Vec<ThreadDump>, Error> {
        let link = self.programs.skel.progs.dump_threads.attach();
        collect("threads", link)
    }

    /// The ledgers of the tracked sockets.
    pub fn flows(&mut self) -> Result<Vec<FlowDump>, Error> {
        let mut flows = Vec::new();
        self.for_each_flow(|flow| flows.push(flow))?;
        Ok(flows)
    }

    /// Calls `each` with the ledger of each tracked socket, without storing them. A ledger has 2 kB.
    pub fn for_each_flow(&mut self, each: impl FnMut(FlowDump)) -> Result<(), Error> {
        let link = self.programs.skel.progs.dump_flows.attach_iter(self.programs.skel.maps.flows.as_fd());
        read_iter("flows", link, each)
    }

    /// The open sockets of the subject's processes. Begins to track new sockets.
    pub fn owners(&mut self) -> Result<Vec<Owner>, Error> {
        let link = self.programs.skel.progs.dump_owners.attach();
        collect("owners", link)
    }

    /// The processes of the subject that have not been reaped, with the children found so far.
    pub fn tgids(&self) -> Vec<u32> {
        self.processes().into_iter().filter(|process| !process.followed).map(|process| process.tgid).collect()
    }

    /// What happened to connections since the programs were attached, by who has them.
    pub fn net_counts(&self) -> Vec<(NetKey, NetValue)> {
        entries(&self.programs.skel.maps.net_counts)
    }

    /// All observed processes that have not been reaped, also those that the subject may wait for.
    pub fn processes(&self) -> Vec<Process> {
        let scope = |value: u8| if value & !FOLLOWED == Scope::Port as u8 { Scope::Port } else { Scope::All };
        entries::<u32, u8>(&self.programs.skel.maps.tgids)
            .into_iter()
            .map(|(tgid, value)| Process { tgid, scope: scope(value), followed: value & FOLLOWED != 0 })
            .collect()
    }
}

/// The offset of a CPU's preempt count from the CPU's run queue; 0 if the kernel's BTF does not have it.
#[cfg(target_arch = "x86_64")]
fn preempt_count_from_rq() -> i64 {
    let offsets = kernel_types::per_cpu_offsets(&["runqueues", "__preempt_count", "pcpu_hot"]);
    match (offsets[0], offsets[1].or(offsets[2])) {
        (Some(rq), Some(count)) => i64::from(count) - i64::from(rq),
        _ => 0,
    }
}

/// A process that is observed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Process {
    /// The process id.
    pub tgid: u32,
    /// Which of its sockets are tracked.
    pub scope: Scope,
    /// The process does not belong to the subject: see `follow_process`.
    pub followed: bool,
}

/// The structures of `CAN_CAST` in common.bpf.h.
const CAST: &[&str] = &["task_struct", "file", "socket", "sock"];

/// `FOLLOWED` of shared.bpf.h.
const FOLLOWED: u8 = 0x80;

fn collect<T: FromBytes>(what: &'static str, link: libbpf_rs::Result<Link>) -> Result<Vec<T>, Error> {
    let mut records = Vec::new();
    read_iter(what, link, |record| records.push(record))?;
    Ok(records)
}

/// Reads an iterator and calls `each` with its records. An incomplete last record is dropped.
fn read_iter<T: FromBytes>(
    what: &'static str,
    link: libbpf_rs::Result<Link>,
    mut each: impl FnMut(T),
) -> Result<(), Error> {
    let link = link.map_err(|source| Error::Attach { name: what, source })?;
    let mut iter = Iter::new(&link).map_err(|e| Error::Read { what, source: e.into() })?;
    let (mut buffer, mut filled) = (vec![0; 256 * 1024], 0);
    loop {
        let n = iter.read(&mut buffer[filled..]).map_err(|e| Error::Read { what, source: e.into() })?;
        if n == 0 {
            return Ok(());
        }
        filled += n;
        let whole = filled - filled % size_of::<T>();
        buffer[..whole].chunks_exact(size_of::<T>()).filter_map(read).for_each(&mut each);
        buffer.copy_within(whole..filled, 0);
        filled -= whole;
    }
}

fn tracepoint_exists(name: &str) -> bool {
    let Ok(name) = std::ffi::CString::new(name) else { return false };
    // SAFETY: `name` is a NUL-terminated string that outlives the call.
    unsafe { libbpf_sys::libbpf_find_vmlinux_btf_id(name.as_ptr(), libbpf_sys::BPF_TRACE_RAW_TP) > 0 }
}

#[cfg(test)]
mod tests {
    use super::super::syscall::{SysKey, SysValue};
    use super::super::thread::OffKey;
    use super::super::timeline::{CallWire, OffCpuWire};
    use super::super::udp::UdpCallWire;
    use super::skel::types as wire;
    use super::*;

    #[test]
    fn wire_structures_have_the_sizes_of_the_c_structures() {
        assert_eq!(size_of::<FlowDump>(), size_of::<wire::flow_dump>());
        assert_eq!(size_of::<super::super::lifecycle::FlowWire>(), size_of::<wire::flow>());
        assert_eq!(size_of::<super::super::lifecycle::SnapshotWire>(), size_of::<wire::snapshot>());
        assert_eq!(size_of::<super::super::lifecycle::FlowKey>(), size_of::<wire::flow_key>());
        assert_eq!(size_of::<NetKey>(), size_of::<wire::net_key>());
        assert_eq!(size_of::<NetValue>(), size_of::<wire::net_value>());
        // The skeleton has no types of records: records.h asserts the same sizes.
        assert_eq!(size_of::<OffCpuWire>(), 64);
        assert_eq!(size_of::<CallWire>(), 48);
        assert_eq!(size_of::<UdpCallWire>(), 96);
        assert_eq!(size_of::<OffKey>(), size_of::<wire::off_key>());
        assert_eq!(size_of::<SysKey>(), size_of::<wire::sys_key>());
        assert_eq!(size_of::<SysValue>(), size_of::<wire::sys_value>());
    }
}

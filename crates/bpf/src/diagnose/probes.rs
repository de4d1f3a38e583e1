//! Loads and attaches the probes for kernels with BTF, and reads their maps and iterators.
//!
//! There are two sets of programs. Those of the first set run once per connection, thread or sample and are always attached.
//! Those of the second set run once per event and are attached only during slices, because even a program that returns at once
//! on a frequent tracepoint takes several per cent of a saturated host.
use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet};
use std::io::Read;
use std::mem::MaybeUninit;
use std::os::fd::AsFd;

use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{Iter, Link, MapCore, MapFlags, OpenObject};
use zerocopy::{FromBytes, IntoBytes};

use super::features::{self, Missing, Refused};
use super::interpreter::InterpreterWire;
use super::lifecycle::{FlowDump, Owner};
use super::loaded::{Loaded, Programs, empty, entries, shared_parts};
use super::net::{NetKey, NetValue};
use super::syscall::call_flags;
use super::thread::ThreadDump;
use crate::bytes::read;
use crate::kernel_release;
use crate::kernel_types::{self, KernelTypes};
use crate::load::{reason, unsignalled, with_messages};
use crate::packed::Packed;

/// From this version on a program can be attached to a function again; before, the second time is ENOENT.
const ATTACHES_AGAIN: (u32, u32) = (5, 13);

/// The generated skeleton of `probes.bpf.c`.
#[allow(warnings, clippy::undocumented_unsafe_blocks)]
mod skel {
    include!(concat!(env!("OUT_DIR"), "/probes.skel.rs"));
}
use skel::{ProbesSkel, ProbesSkelBuilder};

/// The object for kernels before 5.12.
static OLDER: Packed = include!(concat!(env!("OUT_DIR"), "/older/probes.packed.rs"));

thread_local! {
    /// The next skeleton that this thread opens is for a kernel before 5.12.
    static OPEN_OLDER: Cell<bool> = const { Cell::new(false) };
}

/// The object that the skeleton opens; `newer` is its own.
fn object(newer: &'static Packed) -> &'static [u8] {
    if OPEN_OLDER.get() { OLDER.bytes() } else { newer.bytes() }
}

/// Whether the kernel has storage in tasks (5.11). Those that have not lack more (older.bpf.h).
fn has_task_storage() -> bool {
    // SAFETY: the call creates a small map and closes it again; without options it reads nothing of ours.
    unsafe { libbpf_sys::libbpf_probe_bpf_map_type(libbpf_sys::BPF_MAP_TYPE_TASK_STORAGE, std::ptr::null()) == 1 }
}

/// Why the probes could not be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kernel refused to load them.
    #[error("the kernel refused the probes: {0}")]
    Load(libbpf_rs::Error),
    /// The kernel does not take a program without which nothing can be told.
    #[error("the kernel refused what the rung needs: {0}")]
    Essential(Missing),
    /// The kernel refused the object, and not one of its programs.
    #[error("the kernel refused the probes: {0}")]
    Object(String),
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

/// The most ports that a subject is named by.
pub const PORTS_MAX: usize = 64;

/// The choice of a process' sockets that belong to the subject.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Scope {
    /// All of them.
    All = 1,
    /// Those with one of the subject's ports at either end.
    Port = 2,
}

/// The subject, and limits.
#[derive(Debug, Clone, Default)]
pub struct Config {
    /// Processes of the subject.
    pub tgids: Vec<(u32, Scope)>,
    /// The subject's ports, at most [`PORTS_MAX`], for [`Scope::Port`].
    pub ports: Vec<u16>,
    /// The most flows that are tracked.
    pub max_flows: u32,
    /// The number of already open connections that are tracked at once. Of the others, those that carried data within
    /// `recent_jiffies` are; the rest are tracked at their first send or receive.
    pub eager_flows: u32,
    /// In ticks of the kernel.
    pub recent_jiffies: u32,
    /// Child processes do not belong to the subject.
    pub without_children: bool,
    /// The first bytes of calls are not looked at: no call has a frame.
    pub without_frames: bool,
    /// The functions that interpreters run are reported, of processes that `Probes::add_interpreter` adds.
    pub interpreters: bool,
    /// The kernel is taken as one before 5.12: for tests.
    pub as_older: bool,
    /// The kernel is taken as one that takes no programs at functions: for tests.
    pub without_functions: bool,
    /// Types of the kernel that the programs are not told of, as if it were another version: for tests.
    pub without_types: Vec<&'static str>,
}

/// The loaded probes for kernels with BTF.
pub type Probes = Loaded<BtfPrograms>;

/// The skeleton of `probes.bpf.c`.
pub struct BtfPrograms {
    /// Links to functions that stay, on kernels that attach such a program once only.
    kept: RefCell<HashMap<&'static str, Link>>,
    attaches_once: bool,
    skel: ProbesSkel<'static>,
    loaded: Vec<features::Program>,
    /// Programs that were not loaded or attached.
    refused: RefCell<Vec<Refused>>,
    needed: Cell<Needed>,
}

/// Protocols and calls that the subject has used in the slices so far.
#[derive(Debug, Clone, Copy, Default)]
struct Needed {
    udp: bool,
    splice: bool,
}

impl Programs for BtfPrograms {
    type Error = Error;
    shared_parts!();

    fn missing(&self) -> Vec<String> {
        self.lost().iter().map(Missing::to_string).collect()
    }

    fn attach_always(&self) -> Result<Vec<Link>, Error> {
        self.attach(ALWAYS)
    }

    fn attach_slice(&self) -> Result<Vec<Link>, Error> {
        self.needed.set(Needed::default());
        let mut links = self.attach(SLICE)?;
        links.extend(self.attach_needed()?);
        Ok(links)
    }
}

/// Programs that run rarely, and are attached for the whole window.
const ALWAYS: &[&str] = &[
    "on_state",
    "on_new_task",
    "on_exit",
    "on_free",
    "on_stop_signal",
    "on_retransmit",
    "on_reset_sent",
    "on_reset_received",
    "on_drop",
];

/// Programs that run for every event. Those that take the place of others are beside them; only the loaded ones are attached.
const SLICE: &[&str] = &[
    "on_switch",
    "on_waking",
    "on_sys_enter",
    "on_sys_exit",
    "on_segment",
    "on_send_begin",
    "on_sendmsg_locked",
    "on_send_end",
    "on_inet_sendmsg",
    "on_inet6_sendmsg",
    "on_inet_sendpage",
    "on_recv",
    "on_inet_recvmsg",
    "on_inet6_recvmsg",
    "on_call_sends",
    "on_call_receives",
    "on_timer",
];

/// Programs that few subjects need.
const DATAGRAMS: &[&str] = &["on_data_ready", "on_def_readable"];
const SPLICES: &[&str] = &["on_splice"];

impl BtfPrograms {
    /// Attaches the programs that run for every socket of the host and that few subjects need, once this one does.
    fn attach_needed(&self) -> Result<Vec<Link>, Error> {
        let seen = |bss: &skel::types::bss| Needed { udp: bss.udp_seen != 0, splice: bss.splice_seen != 0 };
        let now = self.skel.maps.bss_data.as_deref().map_or(Needed::default(), seen);
        let before = self.needed.replace(now);
        let mut links = Vec::new();
        if now.udp && !before.udp {
            links.extend(self.attach(DATAGRAMS)?);
        }
        if now.splice && !before.splice {
            links.extend(self.attach(SPLICES)?);
        }
        Ok(links)
    }

    /// Attaches those of the programs `names` that were loaded to what their sections name. One that the kernel refuses is left
    /// out, unless the rung needs it.
    fn attach(&self, names: &[&'static str]) -> Result<Vec<Link>, Error> {
        let mut links = Vec::new();
        for program in self.object().progs_mut().filter(|program| program.autoload()) {
            let name = names.iter().find(|name| program.name() == **name);
            let Some(name) = name.copied().filter(|name| !self.is_refused(name) && !self.stays_attached(name)) else {
                continue;
            };
            let (attached, messages) = with_messages(|| program.attach());
            match attached {
                Ok(link) if self.keeps(name) => drop(self.kept.borrow_mut().insert(name, link)),
                Ok(link) => links.push(link),
                Err(error) => {
                    let reason = reason(&messages).map_or_else(|| error.to_string(), |(_, reason)| reason);
                    self.refused.borrow_mut().push(Refused { program: name.to_owned(), reason });
                }
            }
        }
        self.lost().into_iter().find(|lost| lost.essential).map_or(Ok(links), |lost| Err(Error::Essential(lost)))
    }

    fn is_refused(&self, name: &str) -> bool {
        self.refused.borrow().iter().any(|one| one.program == name)
    }

    fn stays_attached(&self, name: &str) -> bool {
        self.kept.borrow().contains_key(name)
    }

    /// Whether the program stays attached between slices.
    fn keeps(&self, name: &str) -> bool {
        self.attaches_once && self.loaded.iter().any(|one| one.name == name && one.hook.is_function())
    }

    /// Observations that are lost.
    fn lost(&self) -> Vec<Missing> {
        features::missing(&self.loaded, &self.refused.borrow())
    }
}

impl Probes {
    /// Loads the programs; nothing is attached yet.
    pub fn load(config: &Config) -> Result<Self, Error> {
        let types = KernelTypes::read(&type_names(config), CAST);
        let mut refused = absent(types.as_ref());
        if config.without_functions {
            refused.extend(features::functions("a test"));
        }
        let older = config.as_older || !has_task_storage();
        let programs = loop {
            let chosen = features::chosen(&refused);
            OPEN_OLDER.set(older || features::OLDER_ONLY.iter().any(|program| chosen.contains(program)));
            if let Some(lost) = features::missing(&chosen, &refused).into_iter().find(|lost| lost.essential) {
                return Err(Error::Essential(lost));
            }
            match load_some(config, types.as_ref(), &chosen) {
                Ok(skel) => {
                    if let Some(reason) = functions_refused(&skel, &chosen) {
                        refused.extend(features::functions(&reason));
                        continue;
                    }
                    break BtfPrograms {
                        kept: RefCell::default(),
                        attaches_once: attaches_once(),
                        skel,
                        loaded: chosen,
                        refused: refused.into(),
                        needed: Cell::default(),
                    };
                }
                // Each is refused once at most, so this ends.
                Err(Unloaded { program: Some(program), reason })
                    if chosen.iter().any(|one| one.name == program.as_str()) =>
                {
                    refused.push(Refused { program, reason });
                }
                Err(Unloaded { program, reason }) => {
                    let of = program.map_or(String::new(), |program| format!("{program}: "));
                    return Err(Error::Object(format!("{of}{reason}")));
                }
            }
        };
        let probes = Self::new(programs).map_err(Error::Load)?;
        for port in config.ports.iter().skip(1) {
            let added = probes.programs.skel.maps.more_ports.update(&port.to_ne_bytes(), &[1], MapFlags::ANY);
            added.map_err(|e| Error::Read { what: "table of ports", source: e.into() })?;
        }
        for (tgid, scope) in &config.tgids {
            probes.add_process(*tgid, *scope)?;
        }
        Ok(probes)
    }

    /// Observations that this kernel does not allow.
    pub fn lost(&self) -> Vec<Missing> {
        self.programs.lost()
    }

    /// Loads and attaches what an observation does. Nothing is observed.
    pub fn trial() -> Result<Tried, Error> {
        let mut probes = Self::load(&Config::default())?;
        probes.attach_always()?;
        probes.begin_slice()?;
        probes.end_slice();
        let programs = &probes.programs;
        let names = programs.loaded.iter().map(|program| program.name);
        Ok(Tried {
            missing: probes.lost(),
            replaced: features::replaced(&programs.loaded, &programs.refused.borrow()),
            used: names.filter(|name| !programs.is_refused(name)).collect(),
        })
    }

    /// Attaches what the subject was seen to need since the slice began: datagrams and splice() cost the whole host more than they
    /// are worth where nobody uses them. Does nothing between slices. Returns whether what is received by splice() is seen from now on,
    /// and was not since the slice began.
    pub fn attach_needed(&mut self) -> Result<bool, Error> {
        if !self.in_slice() {
            return Ok(false);
        }
        let splice = self.programs.needed.get().splice;
        let links = self.programs.attach_needed()?;
        self.add_slice_links(links);
        Ok(!splice && self.programs.needed.get().splice)
    }

    /// Adds a process to the subject. The next [`Probes::owners`] and [`Probes::threads`] find its sockets and threads.
    pub fn add_process(&self, tgid: u32, scope: Scope) -> Result<(), Error> {
        let tgids = &self.programs.skel.maps.tgids;
        let added = tgids.update(&tgid.to_ne_bytes(), &[scope as u8], MapFlags::ANY);
        added.map_err(|e| Error::Read { what: "process table", source: e.into() })
    }

    /// Connections that are accepted at this port belong to the subject, which listens there by MPTCP.
    pub fn add_mptcp_port(&mut self, netns: u64, port: u16) -> Result<(), Error> {
        let key = netns << 16 | u64::from(port);
        let added = self.programs.skel.maps.mptcp_ports.update(&key.to_ne_bytes(), &[1], MapFlags::ANY);
        self.variables().has_mptcp_ports = 1;
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

    /// Reports from now on which functions the interpreter of a process runs. False if there are as many already as the table holds.
    pub fn add_interpreter(&self, tgid: u32, interpreter: &InterpreterWire) -> bool {
        let map = &self.programs.skel.maps.interpreters;
        map.update(&tgid.to_ne_bytes(), interpreter.as_bytes(), MapFlags::ANY).is_ok()
    }

    /// Forgets the interpreters of all processes, before a window: their numbers can be reused.
    pub fn forget_interpreters(&self) {
        empty(&self.programs.skel.maps.interpreters);
    }

    /// Prepares a window, before its first slice: what an earlier one has left in the ledgers and cells is emptied. Returns the ledgers of
    /// the subject's threads as they were, and calls `each` with those of its sockets: the figures of the kernel in them are those at the
    /// begin of the window.
    pub fn renew(&mut self, mut each: impl FnMut(FlowDump)) -> Result<Vec<ThreadDump>, Error> {
        self.empty_cells();
        empty(&self.programs.skel.maps.net_counts);
        let bss = self.variables();
        (bss.renew, bss.cut_at, bss.between_windows) = (1, 0, 0);
        let mut flows = 0;
        let counted = |flow| {
            flows += 1;
            each(flow);
        };
        let threads = self.threads().and_then(|threads| self.for_each_flow(counted).map(|()| threads));
        let bss = self.variables();
        // Of a socket that was made and never connected the end is not seen: without this, such ones would add up from window to window.
        (bss.renew, bss.n_flows) = (0, flows);
        threads
    }

    /// Ends a window, after its last slice: until the next one, only what is always attached runs, and it reports no ends of flows and
    /// threads.
    pub fn rest(&mut self) {
        self.detach_samples();
        self.stop_timing();
        self.variables().between_windows = 1;
    }

    fn variables(&mut self) -> &mut skel::types::bss {
        self.programs.skel.maps.bss_data.as_deref_mut().expect("the object has variables")
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
    pub fn for_each_flow(&mut self, mut each: impl FnMut(FlowDump)) -> Result<(), Error> {
        let BtfPrograms { skel, loaded, .. } = &mut self.programs;
        if loaded.contains(&features::DUMP_FLOWS) {
            return read_iter("flows", skel.progs.dump_flows.attach_iter(skel.maps.flows.as_fd()), each);
        }
        let mut seen = HashSet::new();
        read_iter("flows", skel.progs.dump_open_flows.attach(), |dump: FlowDump| {
            if seen.insert(dump.flow.cookie) {
                each(dump);
            }
        })
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

    /// Counts of connections since the programs were attached, by process.
    pub fn net_counts(&self) -> Vec<(NetKey, NetValue)> {
        entries(&self.programs.skel.maps.net_counts)
    }

    /// All observed processes that have not been reaped, also those that the subject may wait for.
    pub fn processes(&self) -> Vec<Process> {
        let scope = |value: u8| if value & !FOLLOWED == Scope::Port as u8 { Scope::Port } else { Scope::All };
        let (ended, observed): (Vec<_>, Vec<_>) =
            entries::<u32, u8>(&self.programs.skel.maps.tgids).into_iter().partition(|(_, value)| *value == ENDED);
        ended.iter().for_each(|(tgid, _)| self.forget_process(*tgid));
        observed
            .into_iter()
            .map(|(tgid, value)| Process { tgid, scope: scope(value), followed: value & FOLLOWED != 0 })
            .collect()
    }
}

/// The result of a trial of the probes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tried {
    /// Observations that the kernel does not allow them.
    pub missing: Vec<Missing>,
    /// Programs that are in the place of better ones, with the reason.
    pub replaced: Vec<String>,
    /// The programs that an observation uses.
    pub used: Vec<&'static str>,
}

/// The kernel's reason why it attaches none of the programs at functions, as on arm64 before 6.4; None where it does, or where none is
/// chosen. An older kernel of x86 is not asked, because it attaches one only once.
fn functions_refused(skel: &ProbesSkel<'_>, chosen: &[features::Program]) -> Option<String> {
    if cfg!(target_arch = "x86_64") && attaches_once() {
        return None;
    }
    let function = chosen.iter().find(|program| program.hook.is_function())?;
    let program = libbpf_rs::skel::Skel::object(skel).progs_mut().find(|program| program.name() == function.name)?;
    let (attached, messages) = with_messages(|| program.attach());
    let error = attached.err()?;
    Some(reason(&messages).map_or_else(|| error.to_string(), |(_, reason)| reason))
}

fn attaches_once() -> bool {
    kernel_release::running().is_some_and(|version| version < ATTACHES_AGAIN)
}

/// An object that was not loaded, and why.
struct Unloaded {
    /// The program, where it was one.
    program: Option<String>,
    /// One line.
    reason: String,
}

/// Opens the object and loads the programs `chosen`.
fn load_some(
    config: &Config,
    types: Option<&KernelTypes>,
    chosen: &[features::Program],
) -> Result<ProbesSkel<'static>, Unloaded> {
    let load = || -> Result<ProbesSkel<'static>, libbpf_rs::Error> {
        // Leaked, so that the skeleton needs no lifetime: a page for each load.
        let object: &'static mut MaybeUninit<OpenObject> = Box::leak(Box::new(MaybeUninit::uninit()));
        let path = types.and_then(KernelTypes::path);
        let mut open = ProbesSkelBuilder::default().open_opts(kernel_types::options(path.as_ref()), object)?;
        let rodata = open.maps.rodata_data.as_deref_mut().expect("the object has read-only data");
        configure(rodata, config);
        if let Some(&[task_struct, file, socket, sock]) = types.map(KernelTypes::ids) {
            (rodata.task_struct_id, rodata.file_id, rodata.socket_id, rodata.sock_id) =
                (task_struct, file, socket, sock);
        }
        for mut program in open.open_object_mut().progs_mut() {
            let wanted = chosen.iter().any(|one| program.name() == one.name);
            program.set_autoload(wanted);
        }
        unsignalled(|| open.load())
    };
    let (loaded, messages) = with_messages(load);
    loaded.map_err(|error| {
        let (program, reason) = reason(&messages).unwrap_or_else(|| (None, error.to_string()));
        Unloaded { program, reason }
    })
}

fn configure(rodata: &mut skel::types::rodata, config: &Config) {
    rodata.port = config.ports.first().copied().unwrap_or(0);
    rodata.has_more_ports = (config.ports.len() > 1).into();
    rodata.max_flows = config.max_flows;
    rodata.eager_flows = config.eager_flows;
    rodata.recent_jiffies = config.recent_jiffies;
    rodata.follow_children = (!config.without_children).into();
    rodata.peek = (!config.without_frames).into();
    rodata.interpreters_wanted = config.interpreters.into();
    rodata.call_flags = call_flags();
    rodata.kernel_stack_bytes = kernel_stack_bytes(rustix::param::page_size() as u64);
    rodata.preempt_count_from_rq = preempt_count_from_rq();
}

/// The size of a kernel stack: include/asm/page_64_types.h of x86; asm/memory.h of arm64, where it is a page at least.
fn kernel_stack_bytes(page_bytes: u64) -> u64 {
    page_bytes.max(16 << 10)
}

/// The types that the object asks the kernel for, with those of the tracepoints: a kernel without the type has no such tracepoint.
fn type_names(config: &Config) -> Vec<String> {
    let of_object: &[&str] = include!(concat!(env!("OUT_DIR"), "/type_names.rs"));
    let of_tracepoints = features::tracepoints().map(|(_, tracepoint)| format!("btf_trace_{tracepoint}"));
    let names = of_object.iter().map(|name| (*name).to_owned()).chain(of_tracepoints);
    names.filter(|name| !config.without_types.contains(&name.as_str())).collect()
}

/// The programs of tracepoints that this kernel does not have.
fn absent(types: Option<&KernelTypes>) -> Vec<Refused> {
    let Some(types) = types else { return Vec::new() };
    let absent = features::tracepoints().filter(|(_, name)| types.has(&format!("btf_trace_{name}")) == Some(false));
    let mut refused: Vec<Refused> = absent
        .map(|(program, name)| Refused {
            program: program.to_owned(),
            reason: format!("this kernel has no tracepoint {name}"),
        })
        .collect();
    if types.has(features::DROP_REASON) == Some(false) {
        let reason = "this kernel gives no reason for drops".to_owned();
        refused.push(Refused { program: features::ON_DROP.to_owned(), reason });
    }
    refused.dedup();
    refused
}

/// The offset of a CPU's preempt count from the CPU's run queue; 0 if the kernel's BTF does not have it.
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
    /// The choice of its sockets that are tracked.
    pub scope: Scope,
    /// The process does not belong to the subject: see `follow_process`.
    pub followed: bool,
}

/// The structures of `CAN_CAST` in common.bpf.h.
const CAST: &[&str] = &["task_struct", "file", "socket", "sock"];

/// `FOLLOWED` of shared.bpf.h.
const FOLLOWED: u8 = 0x80;

/// `SCOPE_ENDED` of shared.bpf.h.
const ENDED: u8 = 0;

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

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::super::syscall::{SysKey, SysValue};
    use super::super::thread::OffKey;
    use super::super::timeline::{CallWire, OffCpuWire};
    use super::super::udp::UdpCallWire;
    use super::skel::types as wire;
    use super::*;

    #[test]
    fn every_program_is_in_the_list_with_its_hook() {
        let listed: BTreeSet<(String, String)> = features::OBSERVATIONS
            .iter()
            .flat_map(|observation| observation.programs)
            .map(|program| (program.name.to_owned(), program.hook.section()))
            .collect();
        for older in [false, true] {
            OPEN_OLDER.set(older);
            let mut object = MaybeUninit::uninit();
            let mut open = ProbesSkelBuilder::default().open(&mut object).unwrap();
            let text = |text: &std::ffi::OsStr| text.to_str().unwrap().to_owned();
            let programs =
                open.open_object_mut().progs_mut().map(|program| (text(program.name()), text(program.section())));
            // Without storage in sockets the iterator goes over a map of them.
            let of_newer = |section: String| section.replace("iter/bpf_map_elem", "iter/bpf_sk_storage_map");
            let mut listed = listed.clone();
            listed.retain(|(name, _)| older || features::OLDER_ONLY.iter().all(|one| one.name != name));
            assert_eq!(programs.map(|(name, section)| (name, of_newer(section))).collect::<BTreeSet<_>>(), listed);
        }
    }

    #[test]
    fn a_kernel_stack_has_a_page_at_least() {
        assert_eq!([4096, 16 << 10, 64 << 10].map(kernel_stack_bytes), [16 << 10, 16 << 10, 64 << 10]);
    }

    #[test]
    fn wire_structures_have_the_sizes_of_the_c_structures() {
        assert_eq!(size_of::<FlowDump>(), size_of::<wire::flow_dump>());
        assert_eq!(size_of::<super::super::lifecycle::FlowWire>(), size_of::<wire::flow>());
        assert_eq!(size_of::<super::super::lifecycle::SnapshotWire>(), size_of::<wire::snapshot>());
        assert_eq!(size_of::<super::super::lifecycle::FlowKey>(), size_of::<wire::flow_key>());
        assert_eq!(size_of::<NetKey>(), size_of::<wire::net_key>());
        assert_eq!(size_of::<InterpreterWire>(), size_of::<wire::interpreter>());
        assert_eq!(size_of::<NetValue>(), size_of::<wire::net_value>());
        // The skeleton has no types of records: records.h asserts the same sizes.
        assert_eq!(size_of::<OffCpuWire>(), 64);
        assert_eq!(size_of::<CallWire>(), 56);
        assert_eq!(size_of::<UdpCallWire>(), 104);
        assert_eq!(size_of::<super::super::interpreter::InterpretedWire>(), 1184);
        assert_eq!(size_of::<OffKey>(), size_of::<wire::off_key>());
        assert_eq!(size_of::<SysKey>(), size_of::<wire::sys_key>());
        assert_eq!(size_of::<SysValue>(), size_of::<wire::sys_value>());
    }
}

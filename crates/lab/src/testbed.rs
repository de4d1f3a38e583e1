//! A testbed: the wire between two ends, the processes on it, and the removal of everything it made.
use std::collections::BTreeMap;
use std::net::{Ipv4Addr, TcpListener};
use std::os::fd::AsFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use parshall_sys::child::{Confine, is_root};
use parshall_sys::clock::ticks_per_second;
use parshall_sys::link::{self, Offload};
use parshall_sys::netns::{self, NetNs};
use parshall_sys::owner::{self, Owner};
use parshall_sys::tcx_loss::TcxLoss;

use super::cgroup::{self, CpuQuota};
use super::interrupt::Interrupt;
use super::load::Outcome;
use super::process::{Ended, Process};
use super::recipe::{Ready, Side, Stage, Topology, TopologyKind, fill};
use parshall_host::error::UserError;
use parshall_host::proc_fs;

const SERVER: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);
const DEVICE: &str = "eth0";

/// The wire. Fields are dropped in order: loss and delay before the namespaces they live in.
pub struct Wire {
    delay: Option<Process>,
    _loss: Option<TcxLoss>,
    namespaces: Option<Namespaces>,
}

/// Both ends.
pub struct Namespaces {
    /// Where servers run.
    pub server: NetNs,
    /// Where clients run.
    pub client: NetNs,
}

impl Wire {
    /// Makes the wire; `time` bounds the life of the delay line.
    pub fn make(topology: &Topology, time: Duration, interrupt: &Interrupt) -> anyhow::Result<Self> {
        if topology.kind == TopologyKind::Loopback {
            return Ok(Self { delay: None, _loss: None, namespaces: None });
        }
        need_root("network namespaces")?;
        let namespaces = Namespaces { server: NetNs::create("server")?, client: NetNs::create("client")? };
        let loss_ppm = (topology.loss_percent * 1e4) as u32;
        let (delay, device) = match topology.kind {
            TopologyKind::Delay => {
                (Some(delay_line(&namespaces, topology, time, interrupt)?), super::load::DELAY_DEVICE)
            }
            _ => {
                let server_fd = namespaces.server.as_fd();
                namespaces.client.run(|| link::create_veth(DEVICE, DEVICE, server_fd))?;
                (None, DEVICE)
            }
        };
        for (namespace, address) in [(&namespaces.server, SERVER), (&namespaces.client, CLIENT)] {
            namespace.run(|| {
                if topology.kind == TopologyKind::Veth && (topology.single_segments || loss_ppm > 0) {
                    // One packet, one segment: otherwise a drop is a burst.
                    for offload in [Offload::Tso, Offload::Gso, Offload::Gro] {
                        link::set_offload(device, offload, false)?;
                    }
                }
                link::add_address(device, address, 24)?;
                link::set_up(device)
            })?;
        }
        let loss = match topology.kind {
            TopologyKind::Veth if loss_ppm > 0 => {
                Some(namespaces.server.run(|| TcxLoss::attach(link::index(device)?, loss_ppm))?)
            }
            _ => None, // The delay line loses packets itself.
        };
        Ok(Self { delay, _loss: loss, namespaces: Some(namespaces) })
    }

    /// The namespaces, unless the wire is the host's loopback interface.
    pub fn namespaces(&self) -> Option<&Namespaces> {
        self.namespaces.as_ref()
    }

    /// The server's address.
    pub fn server_address(&self) -> Ipv4Addr {
        if self.namespaces.is_some() { SERVER } else { Ipv4Addr::LOCALHOST }
    }

    /// The client's address.
    pub fn client_address(&self) -> Ipv4Addr {
        if self.namespaces.is_some() { CLIENT } else { Ipv4Addr::LOCALHOST }
    }
}

fn delay_line(
    namespaces: &Namespaces,
    topology: &Topology,
    time: Duration,
    interrupt: &Interrupt,
) -> anyhow::Result<Process> {
    let command = [
        &own_program()?,
        "lab",
        "load",
        "delay-line",
        "--netns-a",
        namespaces.client.name(),
        "--netns-b",
        namespaces.server.name(),
        "--delay-ms",
        &topology.delay_ms.to_string(),
        "--loss-percent",
        &topology.loss_percent.to_string(),
        "--mbit",
        &topology.mbit.to_string(),
        "--largest-packet",
        &topology.largest_packet.to_string(),
        "--syn-loss-percent",
        &topology.syn_loss_percent.to_string(),
        "--for",
        &format!("{}s", time.as_secs_f64()),
    ]
    .map(str::to_owned);
    let mut process = Process::start("delay line", &command, &Confine::default())?;
    process.wait_ready(Ready::Line, 0, interrupt)?;
    Ok(process)
}

fn own_program() -> anyhow::Result<String> {
    let path = std::env::current_exe().context("finding this program")?;
    Ok(path.to_string_lossy().into_owned())
}

fn need_root(what: &str) -> Result<(), UserError> {
    if is_root() { Ok(()) } else { Err(UserError::new(format!("{what} need root"), "run it with sudo")) }
}

/// A recipe set up and running. Fields are dropped in order: processes before what they run in.
pub struct Testbed {
    processes: Vec<Process>,
    quotas: Vec<CpuQuota>,
    wire: Wire,
    _dir: Directory,
    values: BTreeMap<&'static str, String>,
    port: u16,
}

impl Testbed {
    /// Makes the wire and writes the files; starts nothing yet. Processes get `time` as the `{for}` placeholder and end after it.
    pub fn make(stage: &Stage, time: Duration, interrupt: &Interrupt) -> anyhow::Result<Self> {
        if stage.needs_root() {
            need_root("the namespaces and control groups of the testbed")?;
        }
        let wire = Wire::make(&stage.topology, time, interrupt)?;
        let dir = Directory::make()?;
        // In a new namespace every port is free.
        let ports = if wire.namespaces().is_some() { [7000, 7001, 7002] } else { free_ports()? };
        let values = BTreeMap::from([
            ("parshall", own_program()?),
            ("addr", wire.server_address().to_string()),
            ("port", ports[0].to_string()),
            ("port2", ports[1].to_string()),
            ("port3", ports[2].to_string()),
            ("dir", dir.path.to_string_lossy().into_owned()),
            ("for", format!("{}s", time.as_secs())),
            ("seconds", time.as_secs().to_string()),
        ]);
        for file in &stage.files {
            let path = dir.path.join(&file.name);
            std::fs::write(&path, fill(&file.text, &values)).with_context(|| format!("writing {}", path.display()))?;
        }
        Ok(Self { processes: Vec::new(), quotas: Vec::new(), wire, _dir: dir, values, port: ports[0] })
    }

    /// Starts a process of the stage, with extra arguments, and waits until it can be used.
    pub fn start(&mut self, stage: &Stage, name: &str, extra: &[String], interrupt: &Interrupt) -> anyhow::Result<()> {
        let spec = stage.processes.iter().find(|spec| spec.name == name).context("a process of another recipe")?;
        let cgroup = match spec.cpu_quota_percent {
            Some(percent) => {
                self.quotas.push(CpuQuota::create(&spec.name, percent)?);
                self.quotas.last().map(CpuQuota::procs).transpose()?
            }
            None => None,
        };
        let command: Vec<String> = spec.command.iter().chain(extra).cloned().collect();
        let cpus = online(&spec.cpus);
        let confine = Confine { cgroup_procs: cgroup.as_ref(), ..self.confine(spec.side, &cpus) };
        let mut process = Process::start(&spec.name, &self.fill(&command), &confine)?;
        process.wait_ready(spec.ready, self.port, interrupt)?;
        self.processes.push(process);
        Ok(())
    }

    /// Starts all processes of the stage in their order.
    pub fn start_all(&mut self, stage: &Stage, interrupt: &Interrupt) -> anyhow::Result<()> {
        stage.processes.iter().try_for_each(|spec| self.start(stage, &spec.name, &[], interrupt))
    }

    /// Starts a command at the client's end, in a process group of its own. It belongs to the caller.
    pub fn start_command(
        &self,
        command: &[String],
        environment: &BTreeMap<String, String>,
        cpus: &[usize],
    ) -> anyhow::Result<Process> {
        let environment = environment.iter().map(|(name, value)| (name.clone(), fill(value, &self.values))).collect();
        let cpus = online(cpus);
        let confine = self.confine(Side::Client, &cpus);
        Process::start_in_group("the command", &self.fill(command), &environment, &confine, true)
    }

    /// A command with the values of its placeholders.
    fn fill(&self, command: &[String]) -> Vec<String> {
        command.iter().map(|part| fill(part, &self.values)).collect()
    }

    fn confine<'a>(&'a self, side: Side, cpus: &'a [usize]) -> Confine<'a> {
        let netns = self.wire.namespaces().map(|namespaces| match side {
            Side::Client => namespaces.client.as_fd(),
            Side::Server => namespaces.server.as_fd(),
        });
        Confine { netns, cgroup_procs: None, cpus }
    }

    /// The texts of a file of /proc/net in each namespace of the testbed.
    pub fn proc_net(&self, name: &str) -> anyhow::Result<Vec<String>> {
        let read = || std::fs::read_to_string(format!("/proc/thread-self/net/{name}"));
        let Some(namespaces) = self.wire.namespaces() else { return Ok(vec![read()?]) };
        Ok(vec![namespaces.client.run(read)?, namespaces.server.run(read)?])
    }

    /// An error if any process has ended.
    pub fn check_alive(&mut self) -> anyhow::Result<()> {
        self.processes.iter_mut().try_for_each(Process::check_alive)
    }

    /// CPU time that the delay line has used, in s; None where the topology has none.
    pub fn delay_line_cpu_s(&self) -> Option<f64> {
        let stat = proc_fs::stat(self.wire.delay.as_ref()?.pid())?;
        Some((stat.user_ticks + stat.system_ticks) as f64 / ticks_per_second() as f64)
    }

    /// The pid of a running process.
    pub fn pid(&self, name: &str) -> Option<u32> {
        self.processes.iter().find(|process| process.name() == name).map(Process::pid)
    }

    /// The service's port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Ends one process and returns its result.
    pub fn end(&mut self, name: &str) -> Option<Outcome> {
        let index = self.processes.iter().position(|process| process.name() == name)?;
        self.processes.remove(index).end()
    }

    /// Ends all processes, clients first, and returns what they left, by name.
    pub fn finish_all(&mut self) -> anyhow::Result<BTreeMap<String, Ended>> {
        let mut all = BTreeMap::new();
        while let Some(process) = self.processes.pop() {
            all.insert(process.name().to_owned(), process.finish()?);
        }
        Ok(all)
    }

    /// Ends all processes, clients first, and returns the results of those that are loads.
    pub fn end_all(&mut self) -> BTreeMap<String, Outcome> {
        let mut outcomes = BTreeMap::new();
        while let Some(process) = self.processes.pop() {
            let name = process.name().to_owned();
            if let Some(outcome) = process.end() {
                outcomes.insert(name, outcome);
            }
        }
        outcomes
    }
}

/// Those CPUs that the host has.
fn online(cpus: &[usize]) -> Vec<usize> {
    let online = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    cpus.iter().copied().filter(|&cpu| cpu < online).collect()
}

/// Three ports without a listener.
fn free_ports() -> anyhow::Result<[u16; 3]> {
    let bind = || TcpListener::bind((Ipv4Addr::LOCALHOST, 0));
    // All are bound before the first is free again, so they differ.
    let all = [bind()?, bind()?, bind()?];
    Ok([all[0].local_addr()?.port(), all[1].local_addr()?.port(), all[2].local_addr()?.port()])
}

/// A directory for the files of a recipe.
struct Directory {
    path: PathBuf,
}

impl Directory {
    fn make() -> anyhow::Result<Self> {
        let path = std::env::temp_dir().join(Owner::this()?.unique_name("files"));
        let mut private = std::fs::DirBuilder::new();
        private.mode(0o700).create(&path).with_context(|| format!("making {}", path.display()))?;
        Ok(Self { path })
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.path).ok();
    }
}

/// Removes what killed runs left behind, and logs it.
pub fn sweep() {
    let mut removed = if is_root() { netns::sweep().unwrap_or_default() } else { Vec::new() };
    removed.extend(cgroup::sweep());
    removed.extend(sweep_directories(&std::env::temp_dir()));
    if !removed.is_empty() {
        tracing::info!("removed what an earlier run left behind: {}", removed.join(", "));
    }
}

/// Any user may create a directory of such a name in /tmp, with any content: only those of our user are removed.
fn sweep_directories(parent: &Path) -> Vec<String> {
    let uid = parshall_sys::privileges::current().uid;
    let is_ours = |path: &Path| path.symlink_metadata().is_ok_and(|found| found.is_dir() && found.uid() == uid);
    let mut dead = owner::leftovers(parent).unwrap_or_default();
    dead.retain(|name| is_ours(&parent.join(name)) && std::fs::remove_dir_all(parent.join(name)).is_ok());
    dead
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;
    use std::time::Instant;

    use super::*;

    fn wire(kind: TopologyKind, loss_percent: f64) -> Option<Wire> {
        if !parshall_testkit::root("testbeds of the lab") {
            return None;
        }
        let topology = Topology { kind, loss_percent, ..Topology::default() };
        let interrupt = Interrupt::register().expect("signals");
        Some(Wire::make(&topology, Duration::from_secs(5), &interrupt).expect("the wire"))
    }

    /// IP packets that the calling thread's namespace received: counted behind the TCX hook.
    fn packets_received() -> u64 {
        let snmp = std::fs::read_to_string("/proc/thread-self/net/snmp").expect("the counters");
        let mut ip = snmp.lines().filter_map(|line| line.strip_prefix("Ip: "));
        let at = ip.next().expect("names").split(' ').position(|name| name == "InReceives").expect("its name");
        ip.next().expect("values").split(' ').nth(at).expect("its value").parse().expect("a number")
    }

    #[test]
    fn loss_is_as_set() {
        const SENT: u64 = 50_000;
        for (percent, low, high) in [(2.0, 0.017, 0.023), (0.0, 0.0, 0.001)] {
            let Some(wire) = wire(TopologyKind::Veth, percent) else { return };
            let namespaces = wire.namespaces().expect("a veth wire has them");
            let before = namespaces.server.run(|| Ok(packets_received())).expect("before");
            let send = || {
                let socket = UdpSocket::bind((CLIENT, 0))?;
                socket.connect((SERVER, 9))?;
                for _ in 0..SENT {
                    socket.send(b"x").ok(); // No socket is bound there: the replies are ICMP errors.
                    std::thread::yield_now();
                }
                Ok(())
            };
            namespaces.client.run(send).expect("sending");
            let received = namespaces.server.run(|| Ok(packets_received())).expect("after") - before;
            let lost = 1.0 - received.min(SENT) as f64 / SENT as f64;
            eprintln!("set {percent} %, lost {:.2} %", lost * 100.0);
            assert!((low..=high).contains(&lost), "set {percent} %, lost {lost}");
        }
    }

    #[test]
    fn only_our_own_leftovers_are_removed() {
        let parent = tempfile::tempdir().expect("a directory");
        // No process has this pid: the owner is dead.
        for tag in ["ours", "theirs"] {
            std::fs::create_dir_all(parent.path().join(format!("parshall-{}-1-{tag}/below", u32::MAX))).expect("ours");
        }
        let theirs = parent.path().join(format!("parshall-{}-1-theirs", u32::MAX));
        let linked = parent.path().join(format!("parshall-{}-1-link", u32::MAX));
        std::os::unix::fs::symlink(parent.path(), linked).expect("a link");
        if parshall_testkit::root("leftovers of another user") {
            std::os::unix::fs::chown(&theirs, Some(1234), None).expect("root may");
            assert_eq!(sweep_directories(parent.path()), [format!("parshall-{}-1-ours", u32::MAX)]);
            assert!(theirs.exists());
        }
    }

    #[test]
    fn namespaces_have_their_own_sysctls() {
        let Some(wire) = wire(TopologyKind::Veth, 0.0) else { return };
        let namespaces = wire.namespaces().expect("a veth wire has them");
        let read = || std::fs::read_to_string("/proc/sys/net/ipv4/tcp_sack");
        let outside = read().expect("the host's");
        namespaces.client.run(|| netns::set_sysctl("net.ipv4.tcp_sack", "0")).expect("set");
        assert_eq!(namespaces.client.run(read).expect("the client's").trim(), "0");
        assert_eq!(namespaces.server.run(read).expect("the server's").trim(), "1");
        assert_eq!(read().expect("the host's"), outside);
    }

    #[test]
    fn a_removed_wire_leaves_no_names() {
        let Some(wire) = wire(TopologyKind::Veth, 0.0) else { return };
        let name = wire.namespaces().expect("a veth wire has them").server.name().to_owned();
        let path = Path::new(netns::DIR).join(&name);
        assert!(path.exists());
        let begin = Instant::now();
        drop(wire);
        assert!(!path.exists());
        assert!(begin.elapsed() < Duration::from_secs(5), "{:?}", begin.elapsed());
    }
}

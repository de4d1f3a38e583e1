//! One network namespace: /proc/net, /proc/sys/net, and its sockets by SOCK_DIAG.
use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::path::Path;

use parshall_evidence::NetSettings;
use parshall_evidence::socket::selection::state::TIME_WAIT;
use parshall_evidence::socket::{Group, Groups, Kind, Kinds, Selection, Side};
use parshall_host::bounded_file;
use parshall_host::tcp_diag::{TcpSocket, states};

use super::queues::{self, Queue};
use crate::subject::{Namespace, Resolved};
use parshall_core::sorting::IntoOrdered as _;

/// Connected sockets are read one by one up to this number: at 3 us each, that is a few milliseconds.
const CONNECTED_MAX: u64 = 4096;
/// Ports in use are counted by destination when at least this share of the range may be taken.
const PORTS_WORTH: f64 = 0.5;

/// The counters of one namespace at one moment.
#[derive(Debug, Default)]
pub struct Reading {
    /// Of /proc/net/snmp, snmp6 and netstat.
    pub counters: BTreeMap<String, u64>,
    /// Sockets in TIME_WAIT.
    pub time_wait: u64,
    /// None when we may not enter the namespace.
    pub settings: Option<NetSettings>,
    /// Queues of its devices.
    pub queues: Vec<Queue>,
    /// Listening TCP sockets.
    pub listeners: Vec<TcpSocket>,
    /// UDP sockets.
    pub udp: Vec<TcpSocket>,
    /// Connected sockets, unless there are too many.
    pub connected: Vec<TcpSocket>,
    /// Ports that are taken, by destination, where they may run out; true where only a socket in TIME_WAIT takes one.
    pub taken: HashMap<SocketAddr, HashMap<u16, bool>>,
}

impl Reading {
    /// Reads a namespace; None when it shows nothing at all. Taken ports are counted at the end of a window only.
    pub fn take(space: &Namespace, resolved: &Resolved, at_end: bool) -> Option<Self> {
        let inside = || (proc_net(Path::new("/proc/thread-self/net")), settings(), queues::read());
        let mut reading = match space.run(inside) {
            Ok(((counters, sockstat), settings, queues)) => {
                Self { counters, settings, queues, time_wait: sockstat.1, ..Self::default() }
                    .with_sockets(space, resolved, sockstat.0, at_end)
            }
            Err(_) => {
                let member = resolved.processes.iter().find(|process| process.netns_ino == space.ino)?;
                let (counters, sockstat) = proc_net(&Path::new("/proc").join(member.pid.to_string()).join("net"));
                Self { counters, time_wait: sockstat.1, ..Self::default() }
            }
        };
        reading.queues.retain(|queue| queue.kind != "noqueue");
        Some(reading)
    }

    fn with_sockets(mut self, space: &Namespace, resolved: &Resolved, in_use: u64, at_end: bool) -> Self {
        let Ok(mut diag) = space.open_diag() else { return self };
        let selection = |kind, states, groups: &[Group]| Selection {
            kinds: Kinds::of([kind]),
            states,
            groups: Groups::of(groups.iter().copied()),
            ..Selection::default()
        };
        // A dump that the kernel ends early still shows what came before.
        let mut dump = |selection: &Selection, found: &mut Vec<TcpSocket>| diag.dump(selection, found).is_ok();
        let queues = [Group::Queues, Group::Memory];
        dump(&selection(Kind::Tcp, states::LISTEN, &queues), &mut self.listeners);
        dump(&selection(Kind::Udp, u32::MAX, &queues), &mut self.udp);
        let ports: Vec<_> = resolved.select.ports().iter().map(|&port| (Side::Either, port)).collect();
        if in_use <= CONNECTED_MAX {
            let figures = [
                Group::Queues,
                Group::Rtt,
                Group::Cwnd,
                Group::Loss,
                Group::Traffic,
                Group::Window,
                Group::Rate,
                Group::Timer,
                Group::Options,
                Group::Memory,
                Group::Congestion,
            ];
            let connected = Selection { ports: ports.clone(), ..selection(Kind::Tcp, states::CONNECTED, &figures) };
            dump(&connected, &mut self.connected);
        }
        let range = self.settings.map_or((0, 0), |settings| settings.local_ports);
        let of = f64::from(range.1.saturating_sub(range.0)) + 1.0;
        if at_end && (in_use + self.time_wait) as f64 >= PORTS_WORTH * of {
            // The ends with a port of the range; where the kernel chose it, the port asked for is at the other end.
            let of_range = |(_, port): &(Side, u16)| (range.0..=range.1).contains(port);
            let ports =
                ports.into_iter().map(|of| if of_range(&of) { of } else { (Side::Remote, of.1) }).collect::<Vec<_>>();
            let selected = Selection { ports, ..selection(Kind::Tcp, states::CONNECTED | 1 << TIME_WAIT, &[]) };
            // A dump that the kernel ends early still shows what came before.
            let _ = diag.each(&selected, &mut |socket| self.take_port(socket));
        }
        self
    }

    /// Counts the port that a socket takes.
    pub fn take_port(&mut self, socket: &TcpSocket) {
        let port = socket.record.local_port;
        let range = self.settings.map_or((0, 0), |settings| settings.local_ports);
        if (range.0..=range.1).contains(&port) {
            let waits = socket.record.state == TIME_WAIT;
            *self.taken.entry(socket.remote()).or_default().entry(port).or_insert(true) &= waits;
        }
    }
}

/// The counters below a /proc/PID/net, and how many TCP sockets are in use and in TIME_WAIT.
fn proc_net(directory: &Path) -> (BTreeMap<String, u64>, (u64, u64)) {
    let read = |name: &str| bounded_file::text(directory.join(name)).unwrap_or_default();
    let mut counters = pairs_of_lines(&read("snmp"));
    counters.extend(pairs_of_lines(&read("netstat")));
    counters.extend(names_and_values(&read("snmp6")));
    (counters, tcp_sockets(&read("sockstat")))
}

/// `Tcp: A B` followed by `Tcp: 1 2`.
fn pairs_of_lines(text: &str) -> BTreeMap<String, u64> {
    let lines: Vec<&str> = text.lines().collect();
    let mut counters = BTreeMap::new();
    for pair in lines.chunks_exact(2) {
        let Some((protocol, names)) = pair[0].split_once(": ") else { continue };
        let values = pair[1].split_whitespace().skip(1);
        for (name, value) in names.split_whitespace().zip(values) {
            if let Ok(value) = value.parse() {
                counters.insert(format!("{protocol}.{name}"), value);
            }
        }
    }
    counters
}

fn names_and_values(text: &str) -> BTreeMap<String, u64> {
    let pair = |line: &str| {
        let (name, value) = line.split_once(char::is_whitespace)?;
        Some((name.to_owned(), value.trim().parse().ok()?))
    };
    text.lines().filter_map(pair).into_map()
}

/// `TCP: inuse 5 orphan 0 tw 2 alloc 8 mem 1`.
fn tcp_sockets(text: &str) -> (u64, u64) {
    let line = text.lines().find_map(|line| line.strip_prefix("TCP: ")).unwrap_or_default();
    let words: Vec<&str> = line.split_whitespace().collect();
    let of = |name| words.chunks_exact(2).find(|pair| pair[0] == name).and_then(|pair| pair[1].parse().ok());
    (of("inuse").unwrap_or(0), of("tw").unwrap_or(0))
}

/// The settings of the calling thread's namespace.
fn settings() -> Option<NetSettings> {
    let read = |name: &str| bounded_file::text(Path::new("/proc/sys/net").join(name)).ok();
    let number = |name| read(name)?.trim().parse::<u64>().ok();
    let three = |name| {
        let text = read(name)?;
        let mut numbers = text.split_whitespace().map(|n| n.parse::<u64>().ok());
        Some([numbers.next()??, numbers.next()??, numbers.next()??])
    };
    let range = read("ipv4/ip_local_port_range")?;
    let mut range = range.split_whitespace().map(|n| n.parse::<u16>().ok());
    Some(NetSettings {
        tcp_rmem: three("ipv4/tcp_rmem")?,
        tcp_wmem: three("ipv4/tcp_wmem")?,
        // Only the first namespace has these two; the others obey it.
        rmem_max: number("core/rmem_max").unwrap_or(0),
        wmem_max: number("core/wmem_max").unwrap_or(0),
        local_ports: (range.next()??, range.next()??),
        somaxconn: number("core/somaxconn").unwrap_or(0),
        window_scaling: number("ipv4/tcp_window_scaling").unwrap_or(1) != 0,
        slow_start_after_idle: number("ipv4/tcp_slow_start_after_idle").unwrap_or(1) != 0,
        mtu_probing: number("ipv4/tcp_mtu_probing").unwrap_or(0) as u8,
        tw_reuse: number("ipv4/tcp_tw_reuse").unwrap_or(0) as u8,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_both_kinds_of_counter_files() {
        let text = "Tcp: RtoMin MaxConn\nTcp: 200 -1\nUdp: InDatagrams\nUdp: 7\n";
        let counters = pairs_of_lines(text);
        assert_eq!(counters, BTreeMap::from([("Tcp.RtoMin".to_owned(), 200), ("Udp.InDatagrams".to_owned(), 7)]));
        for text in ["", "Tcp: A\n", "Tcp\nTcp: 1\n", "Tcp: A B\nTcp: x\n"] {
            assert!(pairs_of_lines(text).is_empty(), "{text:?}");
        }
        let v6 = names_and_values("Udp6RcvbufErrors                \t3\nnonsense\n");
        assert_eq!(v6, BTreeMap::from([("Udp6RcvbufErrors".to_owned(), 3)]));
    }

    #[test]
    fn reads_sockstat() {
        assert_eq!(tcp_sockets("sockets: used 4\nTCP: inuse 5 orphan 0 tw 2 alloc 8 mem 1\n"), (5, 2));
        assert_eq!(tcp_sockets("TCP: inuse\n"), (0, 0));
    }
}

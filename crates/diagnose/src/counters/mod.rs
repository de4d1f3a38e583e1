//! Counters and settings of the kernel around the subject: read when the window begins and when it ends.
//!
//! `namespace` reads those of one network namespace, `queues` the queues of its devices, `owners` which sockets and descriptors
//! belong to the subject's processes, `memory` their control groups' memory. The meaning of the numbers is decided in `parshall_core::judge`.
mod memory;
mod namespace;
mod owners;
mod queues;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Instant;

use parshall_core::sorting::{IntoOrdered as _, StableSort as _};
use parshall_evidence::{Counters, ListenerCounters, NamespaceCounters, PortUse, SocketFigures, UdpCounters};
use parshall_host::tcp_diag::TcpSocket;

use self::namespace::Reading;
use self::owners::Owners;
use crate::subject::{Resolved, Select};

/// Network namespaces that are read; a subject of the whole host may have hundreds.
const NAMESPACES_MAX: usize = 16;
/// Destinations that are reported.
const PORTS_MAX: usize = 4;
/// From this share of the ephemeral ports on, a destination is reported.
const PORTS_SHARE: f64 = 0.5;

/// The first reading.
pub struct Watch<'a> {
    resolved: &'a Resolved,
    /// With a port: the processes that serve it. The sockets of its clients on this host are not the subject's.
    serving: Option<HashSet<u32>>,
    at: Instant,
    first: HashMap<u64, Reading>,
    descriptors: BTreeMap<u32, u64>,
    memory: memory::Watch,
}

impl<'a> Watch<'a> {
    /// Reads what is there when the window begins.
    pub fn start(resolved: &'a Resolved) -> Self {
        let spaces = resolved.namespaces.iter().take(NAMESPACES_MAX);
        let first = spaces.filter_map(|space| Some((space.ino, Reading::take(space, resolved, false)?))).collect();
        let descriptors = resolved.processes.iter().filter_map(|p| Some((p.pid, owners::open_descriptors(p.pid)?)));
        let memory = memory::Watch::start(resolved.processes.iter().map(|p| p.pid));
        let serving = resolved.serving();
        Self { resolved, serving, at: Instant::now(), descriptors: descriptors.into_map(), first, memory }
    }

    /// Reads again, and returns the differences.
    pub fn finish(&self) -> Counters {
        let mut counters = Counters { elapsed_ns: self.at.elapsed().as_nanos() as u64, ..Counters::default() };
        let spaces = self.resolved.namespaces.iter().take(NAMESPACES_MAX);
        let read: Vec<_> = spaces.filter_map(|s| Some((s, Reading::take(s, self.resolved, true)?))).collect();
        let sockets = read.iter().flat_map(|(_, last)| last.listeners.iter().chain(&last.udp));
        let owners = Owners::of(self.resolved, sockets.map(|socket| u64::from(socket.record.inode)).collect());
        for (space, last) in read {
            let none = Reading::default();
            let first = self.first.get(&space.ino).unwrap_or(&none);
            counters.listeners.extend(self.listeners(space.ino, first, &last, &owners));
            counters.udp.extend(self.udp(space.ino, first, &last, &owners));
            counters.ports.extend(ports(space.ino, &last));
            counters.sockets.extend(last.connected.iter().map(|socket| figures(first, socket)));
            counters.namespaces.push(NamespaceCounters {
                netns: space.ino,
                rose: rose(&first.counters, &last.counters),
                time_wait: last.time_wait,
                queues: queues::difference(&first.queues, &last.queues),
                settings: last.settings,
            });
        }
        counters.descriptors = owners.descriptors(&self.descriptors);
        counters.memory = self.memory.finish();
        counters
    }

    fn listeners(&self, netns: u64, first: &Reading, last: &Reading, owners: &Owners) -> Vec<ListenerCounters> {
        let then: HashMap<u64, &TcpSocket> = first.listeners.iter().map(|s| (s.record.cookie, s)).collect();
        let ours = last.listeners.iter().filter(|s| self.is_ours(netns, s, owners));
        let counters = ours.map(|socket| {
            let (now, then) = (&socket.record, then.get(&socket.record.cookie).map(|s| s.record));
            ListenerCounters {
                local: socket.local(),
                netns,
                pid: owners.pid(u64::from(now.inode)),
                drops: u64::from(now.drops.wrapping_sub(then.map_or(0, |r| r.drops))),
                queued: (then.map_or(0, |r| r.accept_queue.into()), now.accept_queue.into()),
                limit: now.accept_limit.into(),
            }
        });
        counters.collect()
    }

    fn udp(&self, netns: u64, first: &Reading, last: &Reading, owners: &Owners) -> Vec<UdpCounters> {
        let then: HashMap<u64, u32> = first.udp.iter().map(|s| (s.record.cookie, s.record.drops)).collect();
        let ours = last.udp.iter().filter(|s| self.is_ours(netns, s, owners));
        let counters = ours.map(|socket| UdpCounters {
            local: socket.local(),
            netns,
            pid: owners.pid(u64::from(socket.record.inode)),
            drops: socket.record.drops.wrapping_sub(then.get(&socket.record.cookie).copied().unwrap_or(0)).into(),
            queued_bytes: socket.record.rmem_alloc_bytes.into(),
            rcvbuf_bytes: socket.record.rcvbuf_bytes.into(),
        });
        counters.collect()
    }

    fn is_ours(&self, netns: u64, socket: &TcpSocket, owners: &Owners) -> bool {
        let everything = matches!(self.resolved.select, Select::Netns(_) | Select::All);
        let asked = self.resolved.select.ports().contains(&socket.record.local_port) && self.resolved.asks(netns);
        let owner = owners.pid(u64::from(socket.record.inode));
        everything || asked || owner != 0 && self.serving.as_ref().is_none_or(|serving| serving.contains(&owner))
    }
}

fn rose(first: &BTreeMap<String, u64>, last: &BTreeMap<String, u64>) -> BTreeMap<String, u64> {
    let by = |(name, now): (&String, &u64)| {
        let by = now.saturating_sub(first.get(name).copied().unwrap_or(0));
        (by > 0).then(|| (name.clone(), by))
    };
    last.iter().filter_map(by).into_map()
}

/// The destinations that take most of the ephemeral ports.
fn ports(netns: u64, reading: &Reading) -> Vec<PortUse> {
    let Some(settings) = reading.settings else { return Vec::new() };
    let of = (settings.local_ports.0..=settings.local_ports.1).len() as u64;
    let used = reading.taken.iter().map(|(remote, ports)| {
        let time_wait = ports.values().filter(|waits| **waits).count() as u64;
        PortUse { netns, remote: *remote, taken: ports.len() as u64, time_wait, of }
    });
    let mut found: Vec<PortUse> = used.filter(|found| found.taken as f64 >= PORTS_SHARE * of as f64).collect();
    found.stable_sort_by_key(|found| (std::cmp::Reverse(found.taken), found.remote));
    found.truncate(PORTS_MAX);
    found
}

fn figures(first: &Reading, socket: &TcpSocket) -> SocketFigures {
    const WINDOW_SCALE: u8 = 4;
    let now = &socket.record;
    let then = first.connected.iter().find(|s| s.record.cookie == now.cookie).map_or(0, |s| s.record.rcv_ooopack);
    SocketFigures {
        flow: now.cookie,
        pmtu: now.pmtu,
        rcv_rtt_us: now.rcv_rtt_us,
        window_scales: (now.tcp_options & WINDOW_SCALE != 0).then_some((now.snd_wscale, now.rcv_wscale)),
        backoff: now.backoff,
        out_of_order: now.rcv_ooopack.saturating_sub(then),
        delivered: now.delivered,
        delivery_bytes_per_s: now.delivery_bytes_per_s,
        unread_memory: (now.rmem_alloc_bytes, now.rqueue_bytes),
        congestion: String::from_utf8_lossy(&now.congestion).trim_end_matches('\0').to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::net::{SocketAddr, TcpStream, UdpSocket};

    use parshall_evidence::NetSettings;
    use parshall_evidence::socket::SocketRecord;

    use super::*;
    use crate::subject;
    use crate::testkit::child;

    #[test]
    fn what_waits_and_what_is_dropped_at_sockets_is_counted() {
        let child = child::start("full-queues");
        let address = SocketAddr::from(([127, 0, 0, 1], child.port));
        let resolved = subject::resolve(&Select::Pids(vec![child.pid()])).expect("our child");
        let watch = Watch::start(&resolved);
        let sender = UdpSocket::bind("127.0.0.1:0").expect("loopback");
        for _ in 0..4000 {
            sender.send_to(&[0; 1000], address).expect("loopback");
        }
        let _waiting = TcpStream::connect(address).expect("loopback");
        let counters = watch.finish();
        let listener = counters.listeners.iter().find(|l| l.local == address).expect("the listener");
        assert_eq!((listener.pid, listener.queued, listener.drops), (child.pid(), (0, 1), 0));
        assert!(listener.limit > 0);
        let full = counters.udp.iter().find(|u| u.local == address).expect("the UDP socket");
        assert!(full.drops > 0 && full.rcvbuf_bytes > 0, "{full:?}");
        assert!(counters.rose("Udp.RcvbufErrors") >= full.drops, "{counters:?}");
        assert!(counters.descriptors.iter().any(|d| d.pid == child.pid() && d.limit > 0), "{counters:?}");
        let settings = counters.namespaces[0].settings.expect("our own namespace");
        assert!(settings.tcp_rmem[2] >= settings.tcp_rmem[0] && settings.local_ports.0 > 0);
    }

    #[test]
    fn destinations_that_take_most_ports_are_named() {
        let socket = |local_port, remote_port, state| {
            let record = SocketRecord { local_port, remote_port, state, family: 2, ..SocketRecord::default() };
            TcpSocket { record, tcp_info_bytes: 0, mptcp: false }
        };
        let settings = NetSettings { local_ports: (100, 109), ..NetSettings::default() };
        let mut reading = Reading { settings: Some(settings), ..Reading::default() };
        let taken = (100..108).map(|port| socket(port, 80, if port < 106 { 6 } else { 1 }));
        let others = [socket(100, 81, 1), socket(80, 100, 1), socket(100, 80, 6)];
        taken.chain(others).for_each(|socket| reading.take_port(&socket));
        let found = ports(1, &reading);
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].remote.port(), found[0].taken, found[0].time_wait, found[0].of), (80, 8, 6, 10));
    }
}

//! Accounts of short connections, summed by service and peer, because a service with a connection per request closes thousands a
//! second and an account takes 2 kB.
use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use parshall_core::sorting::StableSort as _;
use parshall_evidence::{
    FlowCalls, FlowCell, FlowId, FlowRecord, FlowStall, FlowState, Merged, Release, Role, STALL_MIN_NS, TcpSnapshot,
};

/// The most sums; connections of further peers are summed by service alone.
const SUMS_MAX: usize = 4096;
/// The most connections whose stalls are attributed to their sum. The time of the others is in the cells.
const STALLED_MAX: usize = 100_000;

/// The key of a sum: the connections of one service with one peer. The ephemeral port, which differs for each connection, is 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Key {
    pid: u32,
    netns: u64,
    serves: bool,
    local: SocketAddr,
    remote: SocketAddr,
}

impl Key {
    fn of(record: &FlowRecord) -> Self {
        let (mut local, mut remote) = (record.local, record.remote);
        let serves = record.role == Role::Server;
        if serves {
            remote.set_port(0)
        } else {
            local.set_port(0)
        }
        Self { pid: record.pid, netns: record.netns, serves, local, remote }
    }

    fn without_peer(mut self) -> Self {
        let peer = if self.serves { &mut self.remote } else { &mut self.local };
        peer.set_ip(IpAddr::V4(Ipv4Addr::UNSPECIFIED));
        self
    }
}

/// The sums so far.
#[derive(Debug, Default)]
pub struct Sums {
    sums: HashMap<Key, Sum>,
    /// The record to which the stalls of a connection belong.
    stalled: HashMap<FlowId, FlowId>,
}

#[derive(Debug)]
struct Sum {
    record: FlowRecord,
    connections: u64,
    wall_ns: u64,
    cells: BTreeMap<(FlowState, Release), (u64, u64)>,
}

impl Sums {
    /// Adds the account of a connection that has ended.
    pub fn add(&mut self, record: FlowRecord) {
        let mut key = Key::of(&record);
        if self.sums.len() >= SUMS_MAX && !self.sums.contains_key(&key) {
            key = key.without_peer();
        }
        let (id, life_ns) = (record.id, record.end_ns.saturating_sub(record.begin_ns));
        let sum = self.sums.entry(key).or_insert_with(|| Sum::new(key, &record));
        sum.add(record);
        if life_ns >= STALL_MIN_NS && self.stalled.len() < STALLED_MAX {
            self.stalled.insert(id, sum.record.id);
        }
    }

    /// One record per sum, in the order of their ids; stalls of the summed connections become stalls of these.
    pub fn finish(mut self, stalls: &mut [FlowStall]) -> Vec<FlowRecord> {
        for stall in stalls {
            if let Some(id) = self.stalled.get(&stall.flow) {
                stall.flow = *id;
            }
        }
        let mut records: Vec<FlowRecord> = self.with_owners().map(Sum::finish).collect();
        records.stable_sort_by_key(|record| record.id);
        records
    }
}

impl Sums {
    /// The process of connections that no slice saw is not known: they are added to those of the same service and peer.
    fn with_owners(&mut self) -> impl Iterator<Item = Sum> {
        let (unowned, mut owned): (Vec<_>, Vec<_>) = self.sums.drain().partition(|(key, _)| key.pid == 0);
        for (key, sum) in unowned {
            let same = owned.iter_mut().filter(|(other, _)| Key { pid: 0, ..*other } == key);
            match same.max_by_key(|(_, other)| other.connections) {
                Some((_, other)) => other.absorb(sum),
                None => owned.push((key, sum)),
            }
        }
        owned.into_iter().map(|(_, sum)| sum)
    }
}

impl Sum {
    fn absorb(&mut self, other: Sum) {
        let connections = self.connections + other.connections;
        let wall_ns = self.wall_ns + other.wall_ns;
        let cells = other.cells.iter().map(|(&(state, release), &(ns, count))| FlowCell { state, release, ns, count });
        self.add(FlowRecord { cells: cells.collect(), ..other.record });
        (self.connections, self.wall_ns) = (connections, wall_ns);
    }

    fn new(key: Key, first: &FlowRecord) -> Self {
        let record = FlowRecord {
            local: key.local,
            remote: key.remote,
            observed_ns: 0,
            cells: Vec::new(),
            calls: FlowCalls::default(),
            first: TcpSnapshot { mss: first.first.mss, ..TcpSnapshot::default() },
            last: TcpSnapshot::default(),
            ..first.clone()
        };
        Self { record, connections: 0, wall_ns: 0, cells: BTreeMap::new() }
    }

    fn add(&mut self, other: FlowRecord) {
        self.connections += 1;
        self.wall_ns += other.end_ns.saturating_sub(other.begin_ns);
        for cell in &other.cells {
            let (ns, count) = self.cells.entry((cell.state, cell.release)).or_default();
            *ns += cell.ns;
            *count += cell.count;
        }
        let record = &mut self.record;
        record.begin_ns = record.begin_ns.min(other.begin_ns);
        record.end_ns = record.end_ns.max(other.end_ns);
        record.observed_ns += other.observed_ns;
        record.last_tid = if other.last_tid > 0 { other.last_tid } else { record.last_tid };
        add_calls(&mut record.calls, &other.calls);
        record.last = added(&record.last, &other.first, &other.last);
    }

    fn finish(mut self) -> FlowRecord {
        let cell = |((state, release), (ns, count))| FlowCell { state, release, ns, count };
        self.record.cells = self.cells.into_iter().map(cell).collect();
        self.record.merged = Some(Merged { connections: self.connections, wall_ns: self.wall_ns });
        self.record
    }
}

fn add_calls(sum: &mut FlowCalls, other: &FlowCalls) {
    let smallest = [sum.send_min_bytes, other.send_min_bytes].into_iter().filter(|bytes| *bytes > 0).min();
    *sum = FlowCalls {
        sends: sum.sends + other.sends,
        send_bytes: sum.send_bytes + other.send_bytes,
        small_sends: sum.small_sends + other.small_sends,
        write_after_write: sum.write_after_write + other.write_after_write,
        held_sends: sum.held_sends + other.held_sends,
        send_min_bytes: smallest.unwrap_or(0),
        send_max_bytes: sum.send_max_bytes.max(other.send_max_bytes),
        last_pair_bytes: if other.last_pair_bytes.1 > 0 { other.last_pair_bytes } else { sum.last_pair_bytes },
        recvs: sum.recvs + other.recvs,
        recv_bytes: sum.recv_bytes + other.recv_bytes,
        recv_left_over: sum.recv_left_over + other.recv_left_over,
        eagain: sum.eagain + other.eagain,
        exchanges: sum.exchanges + other.exchanges,
    };
}

/// Sums counters by how much they rose within the window; other figures are those of the latest connection.
fn added(sum: &TcpSnapshot, first: &TcpSnapshot, last: &TcpSnapshot) -> TcpSnapshot {
    let rose = |field: fn(&TcpSnapshot) -> u64| field(sum) + field(last).saturating_sub(field(first));
    let min_rtt = [sum.min_rtt_us, last.min_rtt_us].into_iter().filter(|us| *us > 0).min();
    TcpSnapshot {
        bytes_acked: rose(|s| s.bytes_acked),
        bytes_received: rose(|s| s.bytes_received),
        segs_out: rose(|s| s.segs_out),
        segs_in: rose(|s| s.segs_in),
        data_segs_out: rose(|s| s.data_segs_out),
        total_retrans: rose(|s| s.total_retrans),
        total_rto: rose(|s| s.total_rto),
        busy_us: rose(|s| s.busy_us),
        rwnd_limited_us: rose(|s| s.rwnd_limited_us),
        sndbuf_limited_us: rose(|s| s.sndbuf_limited_us),
        min_rtt_us: min_rtt.unwrap_or(0),
        ..*last
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(id: FlowId, role: Role, peer: u8, begin_ns: u64) -> FlowRecord {
        let service = SocketAddr::from(([127, 0, 0, 1], 80));
        let peer = SocketAddr::from(([10, 0, 0, peer], 40_000 + id as u16));
        let (local, remote) = if role == Role::Server { (service, peer) } else { (peer, service) };
        let cells = vec![FlowCell { state: FlowState::InFlight, release: Release::RxAck, ns: 300, count: 2 }];
        FlowRecord {
            id,
            local,
            remote,
            netns: 1,
            pid: 7,
            last_tid: 8,
            role,
            begin_ns,
            end_ns: begin_ns + 2 * STALL_MIN_NS,
            observed_ns: 300,
            cells,
            calls: FlowCalls { sends: 1, send_bytes: 10, send_min_bytes: 10, exchanges: 1, ..FlowCalls::default() },
            first: TcpSnapshot { bytes_acked: 5, ..TcpSnapshot::default() },
            last: TcpSnapshot { bytes_acked: 15, min_rtt_us: 20 + id as u32, ..TcpSnapshot::default() },
            merged: None,
        }
    }

    #[test]
    fn connections_are_summed_by_service_and_peer() {
        let mut sums = Sums::default();
        for (id, role, peer) in [(1, Role::Server, 1), (2, Role::Server, 1), (3, Role::Server, 2), (4, Role::Client, 1)]
        {
            sums.add(ended(id, role, peer, id * 1000));
        }
        let stall = FlowStall {
            flow: 2,
            begin_ns: 2000,
            ns: STALL_MIN_NS,
            state: FlowState::InFlight,
            release: Release::RxAck,
            tid: 0,
            unsent_bytes: 0,
            packets_out: 0,
            unread_bytes: 0,
            snd_wnd: 0,
            cwnd: 0,
        };
        let mut stalls = [stall];
        let records = sums.finish(&mut stalls);
        assert_eq!(stalls[0].flow, 1, "its connection is in the sum of the first");
        let merged: Vec<_> = records.iter().map(|r| (r.id, r.connections(), r.wall_ns() / STALL_MIN_NS)).collect();
        assert_eq!(merged, [(1, 2, 4), (3, 1, 2), (4, 1, 2)]);
        let both = &records[0];
        assert_eq!((both.local.port(), both.remote.port(), records[2].local.port()), (80, 0, 0));
        assert_eq!((both.begin_ns, both.end_ns, both.observed_ns), (1000, 2000 + 2 * STALL_MIN_NS, 600));
        let [FlowCell { ns: 600, count: 4, .. }] = both.cells[..] else { panic!("{:?}", both.cells) };
        assert_eq!((both.calls.sends, both.calls.exchanges, both.calls.send_min_bytes), (2, 2, 10));
        assert_eq!((both.first.bytes_acked, both.last.bytes_acked, both.last.min_rtt_us), (0, 20, 21));
    }

    #[test]
    fn connections_without_a_known_process_join_those_of_their_service() {
        let mut sums = Sums::default();
        for (id, pid) in [(1, 0), (2, 7), (3, 8), (4, 8)] {
            sums.add(FlowRecord { pid, ..ended(id, Role::Server, 1, 0) });
        }
        let records = sums.finish(&mut []);
        let mut merged: Vec<_> = records.iter().map(|r| (r.pid, r.connections(), r.calls.sends)).collect();
        merged.sort_unstable();
        assert_eq!(merged, [(7, 1, 1), (8, 3, 3)]);
        assert_eq!(records.iter().map(FlowRecord::wall_ns).sum::<u64>(), 8 * STALL_MIN_NS);
    }

    #[test]
    fn peers_beyond_the_limit_are_summed_by_service() {
        let mut sums = Sums::default();
        for id in 0..SUMS_MAX as u64 + 100 {
            let mut record = ended(1, Role::Server, 1, 0);
            record.id = id;
            record.remote.set_ip(IpAddr::V4(Ipv4Addr::from_bits(0x0a00_0000 + id as u32)));
            sums.add(record);
        }
        let records = sums.finish(&mut []);
        assert_eq!(records.iter().map(FlowRecord::connections).sum::<u64>(), SUMS_MAX as u64 + 100);
        assert_eq!(records.len(), SUMS_MAX + 1);
    }
}

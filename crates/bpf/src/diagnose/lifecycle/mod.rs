//! Decodes the ledgers of sockets, and the processes that have a socket open.
use std::mem::offset_of;
use std::net::SocketAddr;

use parshall_evidence::{FlowCalls, FlowCell, FlowState, Release, TcpSnapshot};
use zerocopy::{FromBytes, Immutable, KnownLayout};

use crate::bytes::socket_addr;
use crate::diagnose::record_head::RecordHead;

const FLOW_STATES: usize = FlowState::ALL.len();
/// `RL_N`: the releases that the programs report. `Release::Sampled` is not one of them.
const RELEASES: usize = Release::ALL.len() - 1;

/// `struct flow_key`.
#[derive(Debug, Clone, Copy, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
#[allow(missing_docs)]
pub struct FlowKey {
    pub saddr: [u8; 16],
    pub daddr: [u8; 16],
    pub sport: u16,
    pub dport: u16,
    pub family: u16,
    pub state: u8,
    pub passive: u8,
    pub netns: u32,
}

/// `struct snapshot`; `_j` fields are jiffies.
#[derive(Debug, Clone, Copy, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
#[allow(missing_docs)]
pub struct SnapshotWire {
    pub at: u64,
    pub bytes_acked: u64,
    pub bytes_received: u64,
    pub segs_out: u32,
    pub segs_in: u32,
    pub data_segs_out: u32,
    pub total_retrans: u32,
    pub total_rto: u32,
    pub busy_j: u32,
    pub rwnd_j: u32,
    pub sndbuf_j: u32,
    pub srtt_us: u32,
    pub min_rtt_us: u32,
    pub rto_j: u32,
    pub cwnd: u32,
    pub ssthresh: u32,
    pub mss: u32,
    pub snd_wnd: u32,
    pub rcv_wnd: u32,
    pub packets_out: u32,
    pub unsent: u32,
    pub unread: u32,
    pub sndbuf: u32,
    pub rcvbuf: u32,
    pub state: u8,
    pub ca_state: u8,
    pub nonagle: u8,
    pub userlocks: u8,
    pub app_limited: u8,
    pub pad: [u8; 3],
}

/// `struct calls`.
#[derive(Debug, Clone, Copy, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
#[allow(missing_docs)]
pub struct CallsWire {
    pub sends: u64,
    pub send_bytes: u64,
    pub small_sends: u64,
    pub write_after_write: u64,
    pub held_sends: u64,
    pub recvs: u64,
    pub recv_bytes: u64,
    pub recv_left_over: u64,
    pub eagain: u64,
    pub exchanges: u64,
    pub send_min: u32,
    pub send_max: u32,
    pub pair_first: u32,
    pub pair_second: u32,
}

/// `struct flow`.
#[derive(Debug, Clone, Copy, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
#[allow(missing_docs)]
pub struct FlowWire {
    pub sk: u64,
    pub cookie: u64,
    pub begin: u64,
    pub run_begin: u64,
    pub last: u64,
    pub run_una: u32,
    pub run_copied: u32,
    pub gen_: u32,
    pub tgid: u32,
    pub tid: u32,
    pub last_send: u32,
    pub run_state: u8,
    pub last_release: u8,
    pub last_op: u8,
    pub passive: u8,
    pub in_send: u8,
    pub late: u8,
    pub sends_in_row: u8,
    pub listener_followed: u8,
    pub run_fields: [u32; 5],
    pub copied: u32,
    pub copied_gen: u32,
    pub arrived: u64,
    pub last_arrival: u64,
    pub recv_since: u64,
    pub send_begin: u64,
    pub head: u32,
    pub has_head: u8,
    pub unknown_calls: u8,
    pub opener: u8,
    pub closed_in: u8,
    pub calls: CallsWire,
    pub ns: [u64; FLOW_STATES * RELEASES],
    pub count: [u32; FLOW_STATES * RELEASES],
}

/// `struct flow_dump`.
#[derive(Debug, Clone, Copy, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
#[allow(missing_docs)]
pub struct FlowDump {
    pub key: FlowKey,
    pub snap: SnapshotWire,
    pub flow: FlowWire,
}

/// `struct flow_end_rec`.
#[derive(Debug, Clone, Copy, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
#[allow(missing_docs)]
pub struct FlowEndWire {
    pub head: RecordHead,
    pub dump: FlowDump,
}

/// `SHORT_CELLS`.
const SHORT_CELLS: usize = 16;

/// `struct flow_cell`.
#[derive(Debug, Clone, Copy, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
#[allow(missing_docs)]
pub struct CellWire {
    pub ns: u64,
    pub count: u32,
    pub cell: u32,
}

/// `struct short_flow_end_rec`: the ledger of a flow that has time in at most 16 cells.
#[derive(Debug, Clone, Copy, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
#[allow(missing_docs)]
pub struct ShortFlowEndWire {
    pub head: RecordHead,
    pub key: FlowKey,
    pub snap: SnapshotWire,
    pub cells: [CellWire; SHORT_CELLS],
    pub n_cells: u32,
    pub pad: u32,
    pub flow: [u8; offset_of!(FlowWire, ns)],
}

impl ShortFlowEndWire {
    /// Converts it to the full form.
    pub fn dump(&self) -> FlowDump {
        let mut bytes = [0; size_of::<FlowWire>()];
        bytes[..self.flow.len()].copy_from_slice(&self.flow);
        let mut flow = FlowWire::read_from_bytes(&bytes).expect("the array has its size");
        for cell in self.cells.iter().take(self.n_cells as usize) {
            if let Some(ns) = flow.ns.get_mut(cell.cell as usize) {
                (*ns, flow.count[cell.cell as usize]) = (cell.ns, cell.count);
            }
        }
        FlowDump { key: self.key, snap: self.snap, flow }
    }
}

/// `struct owner_rec`: a process has a socket open.
#[derive(Debug, Clone, Copy, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
#[allow(missing_docs)]
pub struct Owner {
    pub cookie: u64,
    pub tgid: u32,
    pub fd: u32,
}

impl FlowDump {
    /// The local and the remote address.
    pub fn addresses(&self) -> (SocketAddr, SocketAddr) {
        let key = &self.key;
        (socket_addr(key.family, &key.saddr, key.sport), socket_addr(key.family, &key.daddr, key.dport))
    }

    /// The cells that have time.
    pub fn cells(&self) -> Vec<FlowCell> {
        let mut cells = Vec::new();
        for (s, &state) in FlowState::ALL.iter().enumerate() {
            for (r, &release) in Release::ALL.iter().take(RELEASES).enumerate() {
                let (ns, count) = (self.flow.ns[s * RELEASES + r], self.flow.count[s * RELEASES + r]);
                if ns > 0 {
                    cells.push(FlowCell { state, release, ns, count: u64::from(count) });
                }
            }
        }
        cells
    }

    /// The sends and receives of the application.
    pub fn calls(&self) -> FlowCalls {
        let c = &self.flow.calls;
        FlowCalls {
            sends: c.sends,
            send_bytes: c.send_bytes,
            small_sends: c.small_sends,
            write_after_write: c.write_after_write,
            held_sends: c.held_sends,
            send_min_bytes: c.send_min,
            send_max_bytes: c.send_max,
            last_pair_bytes: (c.pair_first, c.pair_second),
            recvs: c.recvs,
            recv_bytes: c.recv_bytes,
            recv_left_over: c.recv_left_over,
            eagain: c.eagain,
            exchanges: c.exchanges,
        }
    }
}

impl SnapshotWire {
    /// Decodes a snapshot, whose `at_ns` is still CLOCK_MONOTONIC. `hz` is the kernel's tick rate.
    pub fn decode(&self, hz: u64) -> TcpSnapshot {
        let s = self;
        let us = |jiffies: u32| u64::from(jiffies) * 1_000_000 / hz.max(1);
        TcpSnapshot {
            at_ns: s.at,
            state: s.state,
            ca_state: s.ca_state,
            nonagle: s.nonagle,
            userlocks: s.userlocks,
            bytes_acked: s.bytes_acked,
            bytes_received: s.bytes_received,
            segs_out: s.segs_out.into(),
            segs_in: s.segs_in.into(),
            data_segs_out: s.data_segs_out.into(),
            total_retrans: s.total_retrans.into(),
            total_rto: s.total_rto.into(),
            busy_us: us(s.busy_j),
            rwnd_limited_us: us(s.rwnd_j),
            sndbuf_limited_us: us(s.sndbuf_j),
            srtt_us: s.srtt_us,
            // The kernel uses all ones for "no sample yet".
            min_rtt_us: if s.min_rtt_us == u32::MAX { 0 } else { s.min_rtt_us },
            rto_us: us(s.rto_j) as u32,
            cwnd: s.cwnd,
            ssthresh: s.ssthresh,
            mss: s.mss,
            snd_wnd: s.snd_wnd,
            rcv_wnd: s.rcv_wnd,
            packets_out: s.packets_out,
            unsent_bytes: s.unsent,
            unread_bytes: s.unread,
            sndbuf: s.sndbuf,
            rcvbuf: s.rcvbuf,
            app_limited: s.app_limited != 0,
        }
    }
}

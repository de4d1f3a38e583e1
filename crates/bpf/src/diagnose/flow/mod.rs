//! Decodes the stalls that the flow probe reports.
use parshall_evidence::{FlowStall, FlowState, Release};
use zerocopy::{FromBytes, Immutable, KnownLayout};

use crate::diagnose::record_head::RecordHead;

/// `struct flow_stall_rec`.
#[derive(Debug, Clone, Copy, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
#[allow(missing_docs)]
pub struct FlowStallWire {
    pub head: RecordHead,
    pub cookie: u64,
    pub begin: u64,
    pub ns: u64,
    pub unsent: u32,
    pub packets_out: u32,
    pub unread: u32,
    pub snd_wnd: u32,
    pub cwnd: u32,
    pub state: u8,
    pub release: u8,
    pub pad: [u8; 2],
}

impl FlowStallWire {
    /// Decodes a stall, whose `begin_ns` is still CLOCK_MONOTONIC. Returns `None` for an unknown state or release.
    pub fn decode(&self) -> Option<FlowStall> {
        Some(FlowStall {
            flow: self.cookie,
            begin_ns: self.begin,
            ns: self.ns,
            state: *FlowState::ALL.get(usize::from(self.state))?,
            release: *Release::ALL.get(usize::from(self.release))?,
            tid: self.head.tid,
            unsent_bytes: self.unsent,
            packets_out: self.packets_out,
            unread_bytes: self.unread,
            snd_wnd: self.snd_wnd,
            cwnd: self.cwnd,
        })
    }
}

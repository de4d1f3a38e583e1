//! Decoder of the probe of signals that stop a process.
use zerocopy::{FromBytes, Immutable, KnownLayout};

use crate::diagnose::record_head::RecordHead;

/// `struct stop_signal_rec`: a signal was sent to a process of the subject that stops it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
#[allow(missing_docs)]
pub struct StopSignalWire {
    pub head: RecordHead,
    pub tgid: u32,
    pub signal: u32,
    pub sender_tgid: u32,
    pub pad: u32,
    /// Of the sender's process.
    pub sender_comm: [u8; 16],
}

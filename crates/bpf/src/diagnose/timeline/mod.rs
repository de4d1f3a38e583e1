//! Decodes the single intervals off the CPU and the single calls on TCP sockets that the timeline probe reports.
use zerocopy::{FromBytes, Immutable, KnownLayout};

use parshall_evidence::timeline::Frame;

use crate::diagnose::frame::FrameWire;
use crate::diagnose::record_head::RecordHead;

/// `struct off_cpu_rec`: one interval of a thread off the CPU. `head.at` is when it ran again, or when the slice ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
#[allow(missing_docs)]
pub struct OffCpuWire {
    pub head: RecordHead,
    pub begin: u64,
    pub wake: u64,
    pub target: u64,
    pub nr: i32,
    pub fd_number: i32,
    pub tgid: u32,
    pub waker_tid: u32,
    pub prev_tid: u32,
    pub fd: u8,
    pub why: u8,
    pub waker_context: u8,
    pub pad: u8,
}

/// `enum waker_context`, in its order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WakerContext {
    /// This kernel does not show it, or the wake-up was not observed.
    Unknown,
    /// A thread of a process.
    Thread,
    /// A kernel thread.
    KernelThread,
    /// A softirq.
    SoftIrq,
    /// A hardware interrupt or NMI.
    HardIrq,
}

impl OffCpuWire {
    /// The context in which the thread was woken.
    pub fn waker_context(&self) -> WakerContext {
        match self.waker_context {
            1 => WakerContext::Thread,
            2 => WakerContext::KernelThread,
            3 => WakerContext::SoftIrq,
            4 => WakerContext::HardIrq,
            _ => WakerContext::Unknown,
        }
    }
}

/// `struct call_rec`: a call that sent or received data on a TCP socket, or accepted a connection. `head.at` is when it returned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
#[allow(missing_docs)]
pub struct CallWire {
    pub head: RecordHead,
    pub cookie: u64,
    /// When the data of a receive arrived, or when a send began. 0 for an accept: its flow has the time of the handshake.
    pub since: u64,
    pub tgid: u32,
    pub bytes: u32,
    pub op: u8,
    pub protocol: u8,
    /// The `type` of the frame.
    pub kind: u8,
    pub flags: u8,
    pub length: u32,
    pub stream: u32,
    pub second: u32,
}

impl CallWire {
    /// The message that begins with the call, where its form is known. `asks`: the call belongs to the requests of its connection, and
    /// not to the replies.
    pub fn frame(&self, asks: bool) -> Option<Frame> {
        let head = FrameWire {
            protocol: self.protocol,
            kind: self.kind,
            flags: self.flags,
            pad: 0,
            length: self.length,
            stream: self.stream,
            second: self.second,
        };
        head.decode(asks)
    }
}

/// `OP_RECEIVE`.
pub const OP_RECEIVE: u8 = 0;
/// `OP_SEND`.
pub const OP_SEND: u8 = 1;
/// `OP_ACCEPT`.
pub const OP_ACCEPT: u8 = 2;

//! Counters of a loop: system calls and what they carried.
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::counters::Counters;

/// A counter. Drops are counted by `parshall_core::tunnel::DataPath`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Count {
    /// Frames read from the TUN device.
    FramesRead,
    /// Packets in them.
    PacketsRead,
    /// Frames written to the TUN device.
    FramesWritten,
    /// Packets in them.
    PacketsWritten,
    /// Calls that sent datagrams, or that submitted sends.
    SendCalls,
    /// Messages sent: GSO batches, and single datagrams.
    MessagesSent,
    /// Datagrams in them.
    DatagramsSent,
    /// Calls that received datagrams, or that waited for them.
    ReceiveCalls,
    /// Messages received, each with one datagram or with several that the kernel gathered.
    MessagesReceived,
    /// Datagrams in them.
    DatagramsReceived,
    /// GSO batches that the kernel refused. Their datagrams were sent one by one.
    GsoBatchesRefused,
    /// Packets that were too long for the path and were sent in fragments: they may be cut, or their sender got messages enough.
    Fragmented,
}

const KINDS: usize = Count::Fragmented as usize + 1;

/// Counters that one loop writes and anybody reads.
#[derive(Debug)]
pub struct Counts([AtomicU64; KINDS]);

impl Default for Counts {
    fn default() -> Self {
        Self(std::array::from_fn(|_| AtomicU64::new(0)))
    }
}

impl Counts {
    pub fn add(&self, count: Count, n: usize) {
        self.0[count as usize].fetch_add(n as u64, Relaxed);
    }

    pub fn get(&self, count: Count) -> u64 {
        self.0[count as usize].load(Relaxed)
    }

    /// All of them at this moment.
    pub fn read(&self) -> Counters {
        Counters {
            frames_read: self.get(Count::FramesRead),
            packets_read: self.get(Count::PacketsRead),
            frames_written: self.get(Count::FramesWritten),
            packets_written: self.get(Count::PacketsWritten),
            messages_sent: self.get(Count::MessagesSent),
            datagrams_sent: self.get(Count::DatagramsSent),
            messages_received: self.get(Count::MessagesReceived),
            datagrams_received: self.get(Count::DatagramsReceived),
            send_calls: self.get(Count::SendCalls),
            receive_calls: self.get(Count::ReceiveCalls),
            gso_batches_refused: self.get(Count::GsoBatchesRefused),
            packets_fragmented: self.get(Count::Fragmented),
        }
    }
}

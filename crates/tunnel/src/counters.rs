//! Counters of a loop, as `tunnel show` and the metrics have them.
use serde::{Deserialize, Serialize};

/// Counts since the start. A frame is what one read or write of the TUN device moves, and a GSO batch what one UDP message does: both
/// hold several packets where the kernel's offloads are used.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counters {
    pub frames_read: u64,
    pub packets_read: u64,
    pub frames_written: u64,
    pub packets_written: u64,
    pub messages_sent: u64,
    pub datagrams_sent: u64,
    pub messages_received: u64,
    pub datagrams_received: u64,
    /// System calls that sent GSO batches.
    pub send_calls: u64,
    /// System calls that received GSO batches.
    pub receive_calls: u64,
    /// GSO batches that the kernel did not take as such. Their datagrams were sent one by one.
    pub gso_batches_refused: u64,
    /// Packets that were too long for the path, and were sent in fragments.
    pub packets_fragmented: u64,
}

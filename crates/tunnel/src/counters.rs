//! What a loop counts for `tunnel show` and the metrics.
use serde::{Deserialize, Serialize};

/// Counts since the start. A frame is what one read or write of the TUN device moves, and a train what one UDP message does: both
/// hold several packets where the kernel's offloads are used.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counters {
    pub frames_read: u64,
    pub packets_read: u64,
    pub frames_written: u64,
    pub packets_written: u64,
    pub trains_sent: u64,
    pub datagrams_sent: u64,
    pub trains_received: u64,
    pub datagrams_received: u64,
    /// System calls that sent trains.
    pub send_calls: u64,
    /// System calls that received trains.
    pub receive_calls: u64,
    /// Trains that the kernel did not take as such. Their datagrams were sent one by one.
    pub trains_refused: u64,
    /// Packets that were too long for the path to their peer, and whose senders were sent a message.
    pub packets_too_big: u64,
    /// Packets that were too long for the path, and were sent in fragments.
    pub packets_fragmented: u64,
    /// Packets that no datagram can hold.
    pub packets_too_long: u64,
    /// Frames from the TUN device that contradict their headers.
    pub frames_bad: u64,
    /// Frames that the TUN device did not take.
    pub frames_refused: u64,
    /// Datagrams that the sockets did not take.
    pub datagrams_refused: u64,
    /// Packets from the TUN device to an address that is no peer's.
    pub packets_without_peer: u64,
    /// Packets to a peer whose endpoint is unknown.
    pub packets_without_endpoint: u64,
    /// Packets that waited for a session in vain.
    pub packets_without_session: u64,
}

impl Counters {
    /// What was dropped before it was sealed or after it was opened, by cause.
    pub fn drops(&self) -> [(&'static str, u64); 8] {
        [
            ("no-peer", self.packets_without_peer),
            ("no-endpoint", self.packets_without_endpoint),
            ("no-session", self.packets_without_session),
            ("too-big", self.packets_too_big),
            ("too-long", self.packets_too_long),
            ("bad-frame", self.frames_bad),
            ("device-refused", self.frames_refused),
            ("socket-refused", self.datagrams_refused),
        ]
    }
}

//! How long datagrams wait in the sockets. Which of them are bulk is known only once they are opened, so a receive buffer cannot be fair:
//! only the senders of bulk can keep it short for others.
use std::time::{Duration, SystemTime};

use parshall_core::tunnel::Codel;
use parshall_sys::clock::boottime_ns;

/// How long bulk may wait in the long run.
const TARGET_NS: u64 = 5_000_000;

/// Decides which senders are notified that they send too fast.
#[derive(Debug)]
pub struct ReceiveQueue(Codel);

impl Default for ReceiveQueue {
    fn default() -> Self {
        Self(Codel::new(TARGET_NS))
    }
}

impl ReceiveQueue {
    /// Returns whether the sender of a message is notified. It has `bytes` bytes in datagrams of `segment` bytes, and arrived at a time since
    /// 1970.
    pub fn is_congested(&mut self, bytes: usize, segment: usize, arrived: Option<Duration>) -> bool {
        // One datagram by itself is no bulk.
        let Some(arrived) = arrived.filter(|_| bytes > segment) else { return false };
        let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        self.0.notifies(boottime_ns(), since_1970.saturating_sub(arrived).as_nanos() as u64)
    }
}

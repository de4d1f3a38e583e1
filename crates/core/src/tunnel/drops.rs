//! Why packets and datagrams are dropped, and how many were.
use std::array;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Defines the causes in the order of their numbers, with their names.
macro_rules! causes {
    ($($(#[$doc:meta])* $cause:ident = $name:literal,)+) => {
        /// Why a packet or a datagram was dropped.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[repr(u8)]
        pub enum DropCause {
            $($(#[$doc])* $cause,)+
        }

        impl DropCause {
            /// All causes, in the order of their numbers.
            pub const ALL: &[Self] = &[$(Self::$cause,)+];

            /// The name in reports and metrics.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$cause => $name,)+
                }
            }
        }
    };
}

causes! {
    /// A datagram is no message of WireGuard.
    NotWireguard = "not-wireguard",
    /// No session or handshake has its index.
    UnknownSession = "unknown-session",
    /// Its session is too old, or has had too many messages.
    ExpiredSession = "expired-session",
    /// It could not be authenticated.
    Forged = "forged",
    /// Its counter or its timestamp has been seen, or is too old.
    Replayed = "replayed",
    /// Its payload is no IP packet.
    NotIp = "not-ip",
    /// The source address of its packet is not among the peer's allowed addresses.
    WrongSource = "wrong-source",
    /// A handshake of a key that is no peer's.
    UnknownPeer = "unknown-peer",
    /// A handshake under load without a cookie; one was sent, or too many were.
    NoCookie = "no-cookie",
    /// More handshakes of one source or of one peer than are allowed.
    RateLimited = "rate-limited",
    /// A handshake of a peer while the interface is down.
    InterfaceDown = "interface-down",
    /// A router on the way was congested and marked the datagram, and the sender of its packet does not use such marks (RFC 6040).
    Congested = "congested",
    /// A frame of the TUN device that contradicts its header.
    BadFrame = "bad-frame",
    /// A packet for an address that is no peer's.
    NoPeer = "no-peer",
    /// A packet for a peer whose address is unknown.
    NoEndpoint = "no-endpoint",
    /// A packet that waited for a session in vain, or made place for newer ones.
    NoSession = "no-session",
    /// A datagram of this tunnel to a peer, for which the routes lead to that peer.
    RoutingLoop = "routing-loop",
    /// A packet of the flow with the longest queue, because packets come faster than they can be sealed and sent.
    QueueFull = "queue-full",
    /// A packet too long for the path to its peer, whose sender was sent a message.
    TooBig = "too-big",
    /// A packet that no datagram can hold.
    TooLong = "too-long",
    /// A frame that the TUN device did not take.
    DeviceRefused = "device-refused",
    /// A datagram that the send buffer had no space for.
    SendBufferFull = "send-buffer-full",
    /// A datagram for an address without a route.
    Unreachable = "unreachable",
    /// A datagram that could not be sent for another cause.
    SendFailed = "send-failed",
}

/// How many were dropped for each cause, counted by any number of threads.
#[derive(Debug)]
pub struct Drops([AtomicU64; DropCause::ALL.len()]);

impl Default for Drops {
    fn default() -> Self {
        Self(array::from_fn(|_| AtomicU64::new(0)))
    }
}

impl Drops {
    #[allow(missing_docs)]
    pub fn get(&self, cause: DropCause) -> u64 {
        self.0[cause as usize].load(Relaxed)
    }

    /// The causes that there have been, with their counts.
    pub fn seen(&self) -> impl Iterator<Item = (DropCause, u64)> {
        DropCause::ALL.iter().map(|cause| (*cause, self.get(*cause))).filter(|(_, count)| *count > 0)
    }

    pub(super) fn add(&self, cause: DropCause, count: usize) {
        self.0[cause as usize].fetch_add(count as u64, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn each_cause_has_a_name_and_a_count_of_its_own() {
        let drops = Drops::default();
        for (n, cause) in DropCause::ALL.iter().enumerate().skip(1) {
            drops.add(*cause, n);
        }
        let seen: Vec<_> = drops.seen().collect();
        assert_eq!(seen.len(), DropCause::ALL.len() - 1, "the first one was never counted");
        assert!(seen.iter().all(|(cause, count)| *count == *cause as u64));
        assert_eq!(DropCause::ALL.iter().map(|cause| cause.name()).collect::<HashSet<_>>().len(), DropCause::ALL.len());
    }
}

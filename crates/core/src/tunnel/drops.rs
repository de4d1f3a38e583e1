//! Why packets and datagrams are dropped, and how many were.
use std::array;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Why a packet or a datagram was dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum DropCause {
    /// A datagram is no message of WireGuard.
    NotWireguard,
    /// No session or handshake has its index.
    UnknownSession,
    /// Its session is too old, or has had too many messages.
    ExpiredSession,
    /// It could not be authenticated.
    Forged,
    /// Its counter or its timestamp has been seen, or is too old.
    Replayed,
    /// What it carries is no IP packet.
    NotIp,
    /// The source address of its packet is not among the peer's allowed addresses.
    WrongSource,
    /// A handshake of a key that is no peer's.
    UnknownPeer,
    /// A handshake under load without a cookie; one was sent, or too many were.
    NoCookie,
    /// More handshakes of one source or of one peer than are allowed.
    RateLimited,
    /// A handshake of a peer while the interface is down.
    InterfaceDown,
    /// A router on the way was congested and marked the datagram, and the sender of its packet does not use such marks (RFC 6040).
    Congested,
    /// A frame of the TUN device that contradicts its header.
    BadFrame,
    /// A packet for an address that is no peer's.
    NoPeer,
    /// A packet for a peer whose address is unknown.
    NoEndpoint,
    /// A packet that waited for a session in vain, or made place for newer ones.
    NoSession,
    /// A datagram of this tunnel to a peer, for which the routes lead to that peer.
    RoutingLoop,
    /// A packet of the flow with the longest queue, because packets come faster than they can be sealed and sent.
    QueueFull,
    /// A packet too long for the path to its peer, whose sender was sent a message.
    TooBig,
    /// A packet that no datagram can hold.
    TooLong,
    /// A frame that the TUN device did not take.
    DeviceRefused,
    /// A datagram that the send buffer had no space for.
    SendBufferFull,
    /// A datagram for an address without a route.
    Unreachable,
    /// A datagram that could not be sent for another cause.
    SendFailed,
}

impl DropCause {
    /// All causes, in the order of their numbers.
    pub const ALL: [Self; 24] = [
        Self::NotWireguard,
        Self::UnknownSession,
        Self::ExpiredSession,
        Self::Forged,
        Self::Replayed,
        Self::NotIp,
        Self::WrongSource,
        Self::UnknownPeer,
        Self::NoCookie,
        Self::RateLimited,
        Self::InterfaceDown,
        Self::Congested,
        Self::BadFrame,
        Self::NoPeer,
        Self::NoEndpoint,
        Self::NoSession,
        Self::RoutingLoop,
        Self::QueueFull,
        Self::TooBig,
        Self::TooLong,
        Self::DeviceRefused,
        Self::SendBufferFull,
        Self::Unreachable,
        Self::SendFailed,
    ];

    /// The name in reports and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::NotWireguard => "not-wireguard",
            Self::UnknownSession => "unknown-session",
            Self::ExpiredSession => "expired-session",
            Self::Forged => "forged",
            Self::Replayed => "replayed",
            Self::NotIp => "not-ip",
            Self::WrongSource => "wrong-source",
            Self::UnknownPeer => "unknown-peer",
            Self::NoCookie => "no-cookie",
            Self::RateLimited => "rate-limited",
            Self::InterfaceDown => "interface-down",
            Self::Congested => "congested",
            Self::BadFrame => "bad-frame",
            Self::NoPeer => "no-peer",
            Self::NoEndpoint => "no-endpoint",
            Self::NoSession => "no-session",
            Self::RoutingLoop => "routing-loop",
            Self::QueueFull => "queue-full",
            Self::TooBig => "too-big",
            Self::TooLong => "too-long",
            Self::DeviceRefused => "device-refused",
            Self::SendBufferFull => "send-buffer-full",
            Self::Unreachable => "unreachable",
            Self::SendFailed => "send-failed",
        }
    }
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
        DropCause::ALL.into_iter().map(|cause| (cause, self.get(cause))).filter(|(_, count)| *count > 0)
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
        for (n, cause) in DropCause::ALL.into_iter().enumerate().skip(1) {
            assert_eq!(cause as usize, n);
            drops.add(cause, n);
        }
        let seen: Vec<_> = drops.seen().collect();
        assert_eq!(seen.len(), DropCause::ALL.len() - 1, "the first one was never counted");
        assert!(seen.iter().all(|(cause, count)| *count == *cause as u64));
        assert_eq!(DropCause::ALL.map(DropCause::name).into_iter().collect::<HashSet<_>>().len(), DropCause::ALL.len());
    }
}

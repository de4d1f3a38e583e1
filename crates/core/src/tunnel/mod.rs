//! WireGuard without I/O and without a clock: what `parshall tunnel` decides.
//!
//! The state is in two parts, so that packets need neither a lock nor memory of their own:
//!
//! - A [`Device`] has the keys, the peers, the handshakes and the timers. One thread owns it. It is passed handshake messages,
//!   changes of the configuration and the time, and returns messages to send and [`Event`]s.
//! - A [`DataPath`] is what packets need: the routes, the sessions and a [`Link`] for each peer. Any number of threads share
//!   it. [`Link::sealer`] seals packets in place, [`DataPath::open`] opens datagrams in place, in batches. Where packets show
//!   that a handshake is due, they leave a notice and the caller calls [`Device::attend`].
//!
//! Packets without a session are the caller's to keep ([`QUEUED_PACKETS_MAX`] for each peer): [`Refusal::NoSession`] says that a
//! handshake begins, [`Event::Flush`] that the packets can be sent, and [`Event::Discard`] that they will not be.
//!
//! Limits of the path are learned for each peer: [`Path`] plans their sizes, [`too_big`] and [`unreachable()`] make
//! the messages to senders of packets that do not fit, or that nobody takes.
//!
//! Names of endpoints are the caller's to look up ([`Output::lookups`], [`Device::resolved`]).
//!
//! A configuration is read from a file of wg-quick ([`parse_quick`]) or from the socket that `wg` writes to
//! ([`parse_request`]).
//!
//! Names of the protocol are those of the WireGuard paper (<https://www.wireguard.com/papers/wireguard.pdf>); where a rule is
//! only in the kernel's code, the comment says so. Times are nanoseconds of a monotonic clock.
mod allowed_ips;
mod checksum;
mod codel;
mod configure;
mod cookie;
mod crypto;
mod data_path;
mod device;
mod drops;
mod ecn;
mod egress;
mod fair_queue;
mod gso_limit;
mod host_port;
mod icmp;
mod index;
mod keys;
mod link;
mod load;
mod message;
mod mss;
mod name;
mod noise;
mod offload;
mod output;
mod path;
mod peer;
mod peer_id;
mod quick_routes;
mod replay;
mod rp_filter;
mod sealer;
mod session;
mod timestamp;
mod uapi;
mod wg_quick;

pub use allowed_ips::AllowedIps;
pub use codel::Codel;
pub use configure::{DeviceChange, DeviceState, PeerChange, PeerState, PrefixChange};
pub use data_path::{DataPath, Datagram, Outcome, Routes, destination, source, udp_ports};
pub use device::{Device, Limits};
pub use drops::{DropCause, Drops};
pub use ecn::{CE, NOT_ECT, ecn, take_mark};
pub use egress::EgressInterfaces;
pub use fair_queue::FairQueue;
pub use gso_limit::GSO_DATAGRAMS_MAX;
pub use host_port::HostPort;
pub use icmp::{ICMP_LEN_MAX, too_big, unreachable};
pub use keys::{KeyText, PresharedKey, PrivateKey, PublicKey};
pub use link::{Endpoint, Link, Refusal, Traffic};
pub use message::{DATA_OVERHEAD, HEADER_LEN, Kind, TAG_LEN};
pub use mss::clamp_mss;
pub use offload::{BadFrame, Joined, Superframe, VIRTIO_HEADER_LEN, VirtioHeader, has_push, join, prepare_first};
pub use output::{Event, Lookup, Outgoing, Output};
pub use path::{Path, Plan};
pub use peer_id::PeerId;
pub use quick_routes::{TunnelRoute, is_default};
pub use rp_filter::{marks_table, restored_marks, strict_rp_filter};
pub use sealer::Sealer;
pub use session::datagram_len;
pub use uapi::{REQUEST_LEN_MAX, Request, RequestError, answer, parse_request, request_len, write_change, write_state};
pub use wg_quick::{FileError, QuickConfig, QuickPeer, Table, parse_quick};

#[cfg(test)]
mod tests;

use std::time::Duration;

/// Nanoseconds of a monotonic clock.
pub type Ns = u64;

/// A reading of both clocks. Handshakes need the time of day, since initiations carry it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Time {
    /// The monotonic clock.
    pub now: Ns,
    /// The time since 1970 by the system's clock.
    pub unix: Duration,
}

/// A source of random bytes that are fit for keys.
pub trait Random: Send {
    /// Fills all of `bytes`.
    fn fill(&mut self, bytes: &mut [u8]);
}

impl<F: FnMut(&mut [u8]) + Send> Random for F {
    fn fill(&mut self, bytes: &mut [u8]) {
        self(bytes);
    }
}

const SECOND: Ns = 1_000_000_000;

/// An initiator begins a new session after this many messages.
pub const REKEY_AFTER_MESSAGES: u64 = 1 << 60;
/// A session sends and receives no counter from this one on.
pub const REJECT_AFTER_MESSAGES: u64 = u64::MAX - (1 << 13);
/// An initiator begins a new session when it sends in one of this age.
pub const REKEY_AFTER_TIME: Ns = 120 * SECOND;
/// A session of this age neither sends nor receives, and its keys are erased.
pub const REJECT_AFTER_TIME: Ns = 180 * SECOND;
/// How long a handshake is tried before the queued packets are discarded.
pub const REKEY_ATTEMPT_TIME: Ns = 90 * SECOND;
/// The least time between two initiations to one peer.
pub const REKEY_TIMEOUT: Ns = 5 * SECOND;
/// Keepalive delay after receiving data (whitepaper 6.5).
pub const KEEPALIVE_TIMEOUT: Ns = 10 * SECOND;
/// A random part of this length is added to the times of handshakes, so that two ends do not stay in step.
pub const JITTER_MAX: Ns = SECOND / 3;
/// How many packets a caller keeps for a peer while it has no session, as the kernel does.
pub const QUEUED_PACKETS_MAX: usize = 128;

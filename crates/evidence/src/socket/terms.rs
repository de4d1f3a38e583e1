//! The terms of a selection: kinds of socket, states, ends of a connection and networks.
use std::net::IpAddr;

use super::{PROTOCOL_MPTCP, SocketRecord};

pub(super) const AF_UNIX: u8 = 1;
pub(super) const AF_INET: u8 = 2;
pub(super) const IPPROTO_TCP: u16 = 6;

/// A kind of socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u32)]
pub enum Kind {
    /// TCP, MPTCP subflows included.
    Tcp,
    /// UDP and UDP-Lite.
    Udp,
    /// MPTCP connections.
    Mptcp,
    /// UNIX sockets.
    Unix,
}

impl Kind {
    /// Every kind, in the order of its bits in [`Kinds`].
    pub const ALL: [Self; 4] = [Self::Tcp, Self::Udp, Self::Mptcp, Self::Unix];

    /// The name on the command line and in the formats.
    pub fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
            Self::Mptcp => "mptcp",
            Self::Unix => "unix",
        }
    }

    /// The kind of a record.
    pub fn of(record: &SocketRecord) -> Self {
        match (record.family, record.protocol) {
            (AF_UNIX, _) => Self::Unix,
            (_, IPPROTO_TCP) => Self::Tcp,
            (_, PROTOCOL_MPTCP) => Self::Mptcp,
            _ => Self::Udp,
        }
    }
}

/// A set of kinds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kinds(u32);

impl Kinds {
    /// A set of these kinds.
    pub fn of(kinds: impl IntoIterator<Item = Kind>) -> Self {
        Self(kinds.into_iter().fold(0, |bits, kind| bits | 1 << kind as u32))
    }

    /// Whether the set contains `kind`.
    pub fn has(self, kind: Kind) -> bool {
        self.0 & 1 << kind as u32 != 0
    }

    /// One bit per kind, in the order of [`Kind`].
    pub fn bits(self) -> u32 {
        self.0
    }
}

/// The TCP states that this project tests (include/net/tcp_states.h). UDP and UNIX sockets use the same numbers.
#[allow(missing_docs)]
pub mod state {
    pub const ESTABLISHED: u8 = 1;
    pub const SYN_SENT: u8 = 2;
    pub const SYN_RECV: u8 = 3;
    pub const FIN_WAIT1: u8 = 4;
    pub const FIN_WAIT2: u8 = 5;
    pub const TIME_WAIT: u8 = 6;
    pub const CLOSE: u8 = 7;
    pub const CLOSE_WAIT: u8 = 8;
    pub const LAST_ACK: u8 = 9;
    pub const LISTEN: u8 = 10;
    pub const CLOSING: u8 = 11;
    pub const NEW_SYN_RECV: u8 = 12;
    pub const BOUND_INACTIVE: u8 = 13;
}

/// Names of TCP states at the index of their number minus one (include/net/tcp_states.h), as `--state` and every format have them.
pub const STATES: [&str; 13] = [
    "established",
    "syn-sent",
    "syn-recv",
    "fin-wait-1",
    "fin-wait-2",
    "time-wait",
    "closed",
    "close-wait",
    "last-ack",
    "listen",
    "closing",
    "new-syn-recv",
    "bound-inactive",
];

/// The name of a state; `unconnected` for a number that is not a state.
pub fn state_name(state: u8) -> &'static str {
    usize::from(state).checked_sub(1).and_then(|at| STATES.get(at)).copied().unwrap_or("unconnected")
}

/// The number of the state with this name.
pub fn state_named(name: &str) -> Option<u8> {
    STATES.iter().position(|state| *state == name).map(|at| at as u8 + 1)
}

/// The end of a connection that a rule tests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// The local end.
    Local,
    /// The remote end.
    Remote,
    /// The rule holds if it holds for one of the ends.
    Either,
}

impl Side {
    /// Whether the local end is tested.
    pub fn local(self) -> bool {
        self != Self::Remote
    }

    /// Whether the remote end is tested.
    pub fn remote(self) -> bool {
        self != Self::Local
    }
}

/// A network in CIDR form.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Prefix {
    /// The end that must be in it.
    pub side: Side,
    /// The network's address; bits after `length` are 0.
    pub network: IpAddr,
    /// The prefix length in bits.
    pub length: u8,
}

impl Prefix {
    /// Whether an address is in the network. An IPv4 address in IPv6 form counts as IPv4.
    pub fn holds(&self, address: IpAddr) -> bool {
        let shift = |bits: u32| bits.saturating_sub(u32::from(self.length));
        match (self.network, address.to_canonical()) {
            (IpAddr::V4(network), IpAddr::V4(ip)) => {
                (network.to_bits() ^ ip.to_bits()).checked_shr(shift(32)).unwrap_or(0) == 0
            }
            (IpAddr::V6(network), IpAddr::V6(ip)) => {
                (network.to_bits() ^ ip.to_bits()).checked_shr(shift(128)).unwrap_or(0) == 0
            }
            _ => false,
        }
    }
}

/// The local or the remote address of a record.
pub fn address(record: &SocketRecord, remote: bool) -> IpAddr {
    let bytes = if remote { &record.remote_address } else { &record.local_address };
    if record.family == AF_INET { IpAddr::from([bytes[0], bytes[1], bytes[2], bytes[3]]) } else { IpAddr::from(*bytes) }
}

const ESTABLISHED: u32 = 1 << state::ESTABLISHED;
/// The last states that an established connection may have before it closes.
const ENDINGS: u32 = 1 << state::FIN_WAIT1
    | 1 << state::FIN_WAIT2
    | 1 << state::TIME_WAIT
    | 1 << state::CLOSE_WAIT
    | 1 << state::LAST_ACK
    | 1 << state::CLOSING;

/// The last states that sockets in one of `states` may have before they close.
pub fn states_at_the_end(states: u32) -> u32 {
    if states & ESTABLISHED == 0 { states } else { states | ENDINGS }
}

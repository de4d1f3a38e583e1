//! The selection of sockets and fields: one type from the command line to the backends and the BPF programs.
//! Backends apply what they can of it. [`Selection::holds`] and [`Selection::expression_holds`] define its meaning.
use std::net::IpAddr;

use super::expression::{ALL_STATES, Expression, port_rule, prefix_rule};
use super::{Groups, PROTOCOL_MPTCP, SocketRecord};

const AF_UNIX: u8 = 1;
const AF_INET: u8 = 2;
const IPPROTO_TCP: u16 = 6;

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

/// The sockets and fields to read. Several values of one rule mean any of them; different rules must all hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Selection {
    /// Fields to read.
    pub groups: Groups,
    /// Kinds of socket.
    pub kinds: Kinds,
    /// One bit per TCP state, bit 1 for ESTABLISHED; it also holds for UDP and UNIX, whose states use the same numbers.
    pub states: u32,
    /// Inodes of network namespaces; empty: all.
    pub namespaces: Vec<u32>,
    /// Ids of control groups; empty: all.
    pub cgroups: Vec<u64>,
    /// Ports; empty: all.
    pub ports: Vec<(Side, u16)>,
    /// Networks; empty: all.
    pub prefixes: Vec<Prefix>,
    /// Only sockets that changed since the last dump of the same backend. A socket has changed if it is new; if its state, its
    /// buffers, its window or its accept queue changed; if a segment was sent or received, or a byte written or read; or if
    /// its file was closed. Options that an application sets, and timers that send nothing, are not noticed. The walk remembers
    /// at least 200,000 sockets and reports further ones as changed.
    pub changed: bool,
    /// The filter after the flags of the command line. Applied to rows in user space; [`Selection::narrow`] derives what
    /// backends can apply.
    pub expression: Option<Expression>,
    /// Only sockets that one of these processes has open; empty: all. Applied to rows, because backends do not know owners.
    pub pids: Vec<u32>,
    /// Only sockets that a process with one of these commands has open; empty: all. Applied to rows.
    pub commands: Vec<String>,
}

/// TASK_COMM_LEN without the terminating zero: the kernel stores this many bytes of a command.
const COMMAND_BYTES: usize = 15;

impl Default for Selection {
    /// Every TCP socket with all fields.
    fn default() -> Self {
        Self {
            groups: Groups::ALL,
            kinds: Kinds::of([Kind::Tcp]),
            states: u32::MAX,
            namespaces: Vec::new(),
            cgroups: Vec::new(),
            ports: Vec::new(),
            prefixes: Vec::new(),
            changed: false,
            expression: None,
            pids: Vec::new(),
            commands: Vec::new(),
        }
    }
}

/// A command as the kernel stores it, cut between characters.
fn shortened(command: &str) -> &str {
    let mut end = command.len().min(COMMAND_BYTES);
    while !command.is_char_boundary(end) {
        end -= 1;
    }
    &command[..end]
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

impl Selection {
    /// Whether a record is selected, except for `changed`, which depends on the last dump.
    pub fn holds(&self, record: &SocketRecord) -> bool {
        self.holds_in(record, self.states)
    }

    /// Whether the record of a closed socket is selected. Its state is the last one before it closed.
    pub fn holds_closed(&self, record: &SocketRecord) -> bool {
        self.holds_in(record, self.closed_states())
    }

    /// The last states of closed sockets that are selected. A selection of established connections includes their last states.
    pub fn closed_states(&self) -> u32 {
        Self::states_at_the_end(self.states)
    }

    /// The last states that sockets in one of `states` may have before they close.
    pub(super) fn states_at_the_end(states: u32) -> u32 {
        if states & ESTABLISHED == 0 { states } else { states | ENDINGS }
    }

    /// Whether rows are selected by the processes that have the socket open.
    pub fn selects_owners(&self) -> bool {
        !self.pids.is_empty() || !self.commands.is_empty()
    }

    /// Whether there are rules that no backend applies, so that rows must be tested.
    pub fn filters_rows(&self) -> bool {
        self.expression.is_some() || self.selects_owners()
    }

    /// Whether the expression holds for the record. With `closed`, the record is of a closed socket and its state is the last
    /// one before it closed; `state established` then also holds for the last states of established connections.
    pub fn expression_holds(&self, record: &SocketRecord, closed: bool) -> bool {
        self.expression.as_ref().is_none_or(|expression| expression.holds(record, closed))
    }

    /// Whether `pids` and `commands` hold for a socket with these owners (process id, command).
    pub fn owners_hold<'a>(&self, owners: impl Iterator<Item = (u32, &'a str)> + Clone) -> bool {
        let named = |name: &str, command: &str| command == name || command == shortened(name);
        (self.pids.is_empty() || owners.clone().any(|(pid, _)| self.pids.contains(&pid)))
            && (self.commands.is_empty()
                || owners.clone().any(|(_, command)| self.commands.iter().any(|name| named(name, command))))
    }

    /// Adds rules that backends can apply and that follow from the expression. They never exclude what it selects.
    pub fn narrow(&mut self) {
        let Some(expression) = &self.expression else { return };
        let states = expression.states();
        if states & ALL_STATES != ALL_STATES {
            self.states = if self.states == u32::MAX { states } else { self.states & states };
        }
        let parts = match expression {
            Expression::All(parts) => parts.as_slice(),
            other => std::slice::from_ref(other),
        };
        if self.ports.is_empty() {
            self.ports = parts.iter().find_map(|part| part.each(&port_rule)).unwrap_or_default();
        }
        if self.prefixes.is_empty() {
            self.prefixes = parts.iter().find_map(|part| part.each(&prefix_rule)).unwrap_or_default();
        }
    }

    fn holds_in(&self, record: &SocketRecord, states: u32) -> bool {
        let any = |side: Side, test: &dyn Fn(bool) -> bool| side.local() && test(false) || side.remote() && test(true);
        let port = |remote: bool| if remote { record.remote_port } else { record.local_port };
        self.kinds.has(Kind::of(record))
            && 1u32.checked_shl(u32::from(record.state)).is_some_and(|bit| states & bit != 0)
            && (self.namespaces.is_empty() || self.namespaces.contains(&record.netns))
            && (self.cgroups.is_empty() || self.cgroups.contains(&record.cgroup_id))
            && (self.ports.is_empty() || self.ports.iter().any(|(side, n)| any(*side, &|remote| port(remote) == *n)))
            && (self.prefixes.is_empty()
                || record.family != AF_UNIX
                    && self.prefixes.iter().any(|p| any(p.side, &|remote| p.holds(address(record, remote)))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> SocketRecord {
        let mut record = SocketRecord {
            family: AF_INET,
            protocol: IPPROTO_TCP,
            state: 1,
            local_port: 443,
            remote_port: 50_000,
            netns: 7,
            cgroup_id: 9,
            ..Default::default()
        };
        record.local_address[..4].copy_from_slice(&[10, 0, 0, 1]);
        record.remote_address[..4].copy_from_slice(&[192, 168, 1, 2]);
        record
    }

    #[test]
    fn established_selects_closed_connections_that_were_established() {
        let established = Selection { states: ESTABLISHED, ..Selection::default() };
        let ended = |state| established.holds_closed(&SocketRecord { state, ..record() });
        assert!(ended(1) && ended(5) && ended(9));
        assert!(!ended(2) && !ended(10), "an attempt that failed, a listener");
        assert!(!established.holds(&SocketRecord { state: 5, ..record() }));
        let listeners = Selection { states: 1 << 10, ..Selection::default() };
        assert!(!listeners.holds_closed(&SocketRecord { state: 9, ..record() }));
    }

    #[test]
    fn each_rule_selects_and_excludes() {
        let all = Selection::default();
        assert!(all.holds(&record()));
        let prefix = |side, text: &str, length| Prefix { side, network: text.parse().unwrap(), length };
        let kept = [
            Selection { states: 1 << 1, ..all.clone() },
            Selection { namespaces: vec![1, 7], ..all.clone() },
            Selection { cgroups: vec![9], ..all.clone() },
            Selection { ports: vec![(Side::Either, 443)], ..all.clone() },
            Selection { ports: vec![(Side::Remote, 1), (Side::Local, 443)], ..all.clone() },
            Selection { prefixes: vec![prefix(Side::Remote, "192.168.0.0", 16)], ..all.clone() },
            Selection { prefixes: vec![prefix(Side::Either, "0.0.0.0", 0)], ..all.clone() },
        ];
        for selection in kept {
            assert!(selection.holds(&record()), "{selection:?}");
        }
        let left = [
            Selection { kinds: Kinds::of([Kind::Udp, Kind::Unix]), ..all.clone() },
            Selection { states: !(1 << 1), ..all.clone() },
            Selection { namespaces: vec![8], ..all.clone() },
            Selection { cgroups: vec![8], ..all.clone() },
            Selection { ports: vec![(Side::Remote, 443)], ..all.clone() },
            Selection { prefixes: vec![prefix(Side::Local, "192.168.0.0", 16)], ..all.clone() },
            Selection { prefixes: vec![prefix(Side::Either, "::", 0)], ..all },
        ];
        for selection in left {
            assert!(!selection.holds(&record()), "{selection:?}");
        }
    }

    #[test]
    fn an_ipv4_peer_of_an_ipv6_socket_counts_as_ipv4() {
        let mut record = SocketRecord { family: 10, protocol: IPPROTO_TCP, state: 1, ..Default::default() };
        record.remote_address = "::ffff:10.1.2.3".parse::<std::net::Ipv6Addr>().unwrap().octets();
        let prefix = Prefix { side: Side::Remote, network: "10.0.0.0".parse().unwrap(), length: 8 };
        assert!(Selection { prefixes: vec![prefix], ..Default::default() }.holds(&record));
    }

    #[test]
    fn state_names_map_back_to_numbers() {
        for (at, name) in STATES.iter().enumerate() {
            assert_eq!(state_named(name), Some(at as u8 + 1));
            assert_eq!(state_name(at as u8 + 1), *name);
        }
        assert_eq!(state_name(0), "unconnected");
        assert_eq!(state_name(200), "unconnected");
    }
}

//! The selection of sockets and fields: one type from the command line to the backends and the BPF programs.
//! Backends apply what they can of it. [`Selection::holds`] and [`Selection::expression_holds`] define its meaning.
use super::expression::{ALL_STATES, Expression, port_rule, prefix_rule};
use super::terms::{AF_UNIX, states_at_the_end};
use super::{Groups, SocketRecord};

pub use super::terms::{Kind, Kinds, Prefix, STATES, Side, address, state, state_name, state_named};

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
        states_at_the_end(self.states)
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
    use super::super::terms::{AF_INET, IPPROTO_TCP};
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
        let established = Selection { states: 1 << state::ESTABLISHED, ..Selection::default() };
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

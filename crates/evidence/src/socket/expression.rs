//! A parsed filter in the language of `ss`: an expression over states, addresses and ports.
use std::net::IpAddr;

use super::SocketRecord;
use super::terms::state::BOUND_INACTIVE;
use super::terms::{AF_UNIX, Prefix, Side, address, states_at_the_end};

/// All states except BOUND_INACTIVE, which is selected only by its name.
pub const ALL_STATES: u32 = !(1 << BOUND_INACTIVE);

/// A comparison of two numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Compare {
    Equal,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

/// A condition on one property of a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Term {
    /// The state is in this set. Bit 1 is ESTABLISHED.
    State(u32),
    /// The address is in this network.
    Address {
        /// Tests the remote address instead of the local one.
        remote: bool,
        /// The network's address; bits after `length` are 0.
        network: IpAddr,
        /// The prefix length in bits.
        length: u8,
    },
    /// The comparison of the socket's port with `port` holds.
    Port {
        /// Tests the remote port instead of the local one.
        remote: bool,
        /// The socket's port is on its left side.
        compare: Compare,
        /// The right side of the comparison.
        port: u16,
    },
}

/// An expression over sockets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Expression {
    /// All of these hold. An empty list holds.
    All(Vec<Expression>),
    /// At least one of these holds.
    Any(Vec<Expression>),
    /// This does not hold.
    Not(Box<Expression>),
    /// A single condition.
    Is(Term),
}

fn side(remote: bool) -> Side {
    if remote { Side::Remote } else { Side::Local }
}

pub(super) fn port_rule(term: &Term) -> Option<(Side, u16)> {
    match *term {
        Term::Port { remote, compare: Compare::Equal, port } => Some((side(remote), port)),
        _ => None,
    }
}

pub(super) fn prefix_rule(term: &Term) -> Option<Prefix> {
    match *term {
        Term::Address { remote, network, length } => Some(Prefix { side: side(remote), network, length }),
        _ => None,
    }
}

impl Expression {
    pub(super) fn holds(&self, record: &SocketRecord, closed: bool) -> bool {
        match self {
            Self::All(parts) => parts.iter().all(|part| part.holds(record, closed)),
            Self::Any(parts) => parts.iter().any(|part| part.holds(record, closed)),
            Self::Not(part) => !part.holds(record, closed),
            Self::Is(term) => term.holds(record, closed),
        }
    }

    /// The states in which it can hold.
    pub(super) fn states(&self) -> u32 {
        match self {
            Self::All(parts) => parts.iter().fold(ALL_STATES | 1 << BOUND_INACTIVE, |all, part| all & part.states()),
            Self::Any(parts) => parts.iter().fold(0, |any, part| any | part.states()),
            Self::Not(part) => match &**part {
                Self::Is(Term::State(states)) => !states & ALL_STATES,
                Self::Not(part) => part.states(),
                _ => u32::MAX,
            },
            Self::Is(Term::State(states)) => *states,
            Self::Is(_) => u32::MAX,
        }
    }

    /// The rule of each alternative. `None` if there is an alternative without one.
    pub(super) fn each<T>(&self, rule: &dyn Fn(&Term) -> Option<T>) -> Option<Vec<T>> {
        match self {
            Self::Any(parts) => {
                let rules: Option<Vec<Vec<T>>> = parts.iter().map(|part| part.each(rule)).collect();
                Some(rules?.into_iter().flatten().collect())
            }
            Self::Is(term) => Some(vec![rule(term)?]),
            Self::All(parts) if parts.len() == 1 => parts[0].each(rule),
            Self::All(_) | Self::Not(_) => None,
        }
    }
}

impl Term {
    fn holds(&self, record: &SocketRecord, closed: bool) -> bool {
        match *self {
            Self::State(states) => {
                let states = if closed { states_at_the_end(states) } else { states };
                1u32.checked_shl(u32::from(record.state)).is_some_and(|bit| states & bit != 0)
            }
            Self::Address { remote, network, length } => {
                let prefix = Prefix { side: side(remote), network, length };
                record.family != AF_UNIX && prefix.holds(address(record, remote))
            }
            Self::Port { remote, compare, port } => {
                let found = if remote { record.remote_port } else { record.local_port };
                record.family != AF_UNIX
                    && match compare {
                        Compare::Equal => found == port,
                        Compare::Less => found < port,
                        Compare::LessOrEqual => found <= port,
                        Compare::Greater => found > port,
                        Compare::GreaterOrEqual => found >= port,
                    }
            }
        }
    }
}

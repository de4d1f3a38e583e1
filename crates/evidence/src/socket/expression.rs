//! A filter in the language of `ss`, parsed: an expression over states, addresses and ports.
use std::net::IpAddr;

use super::SocketRecord;
use super::selection::state::BOUND_INACTIVE;
use super::selection::{Prefix, Selection, Side, address};

const AF_UNIX: u8 = 1;
/// All states except BOUND_INACTIVE, which is dumped only if it is named.
pub const ALL_STATES: u32 = !(1 << BOUND_INACTIVE);

/// How two numbers compare.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Compare {
    Equal,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

/// One statement about a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Term {
    /// Its state has its bit set, bit 1 for ESTABLISHED.
    State(u32),
    /// An end is in this network.
    Address {
        /// The other end, not the local one.
        remote: bool,
        /// The network's address; bits after `length` are 0.
        network: IpAddr,
        /// Its length in bits.
        length: u8,
    },
    /// A port compares so with a number.
    Port {
        /// The other end's, not the local one.
        remote: bool,
        /// How.
        compare: Compare,
        /// With what.
        port: u16,
    },
}

/// An expression over sockets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Expression {
    /// Every part holds.
    All(Vec<Expression>),
    /// One of the parts holds.
    Any(Vec<Expression>),
    /// The part does not hold.
    Not(Box<Expression>),
    /// A statement.
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

    /// States in which it may hold.
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

    /// The rule of each alternative, if it has nothing but alternatives with a rule.
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
                let states = if closed { Selection::states_at_the_end(states) } else { states };
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

//! A filter as `ss` has it: an expression over states, addresses and ports, and rules about who holds a socket. It is applied to
//! rows in user space; what of it the kernel side can apply, it gets as a part of the selection.
mod parse;

pub use parse::{FilterError, parse};

use std::net::IpAddr;

use parshall_evidence::socket::SocketRecord;

use super::row::Owner;
use super::selection::state::BOUND_INACTIVE;
use super::selection::{Prefix, Selection, Side, address};

const AF_UNIX: u8 = 1;
/// All states but that of a socket that only has a port: that one is looked for only if it is named.
const ALL_STATES: u32 = !(1 << BOUND_INACTIVE);

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

/// What a row must be beside what the selection says.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Filter {
    /// Holds for it.
    pub expression: Option<Expression>,
    /// One of these processes holds it; empty: any or none.
    pub pids: Vec<u32>,
    /// A process with one of these commands holds it; empty: any or none.
    pub commands: Vec<String>,
}

/// The kernel keeps so many bytes of a command.
const COMMAND_BYTES: usize = 15;

impl Filter {
    /// Whether nothing is ruled out.
    pub fn is_empty(&self) -> bool {
        self.expression.is_none() && !self.wants_owners()
    }

    /// Whether it is decided by who holds a socket.
    pub fn wants_owners(&self) -> bool {
        !self.pids.is_empty() || !self.commands.is_empty()
    }

    /// Whether the expression holds for the record. `closed`: the record is of a socket that has closed, whose state is the
    /// last one before the end; established connections are then asked for in the states in which they end, too.
    pub fn expression_holds(&self, record: &SocketRecord, closed: bool) -> bool {
        self.expression.as_ref().is_none_or(|expression| expression.holds(record, closed))
    }

    /// Whether the rules about processes hold.
    pub fn owners_hold(&self, owners: &[Owner]) -> bool {
        let named = |command: &str, owner: &Owner| {
            let mut end = command.len().min(COMMAND_BYTES);
            while !command.is_char_boundary(end) {
                end -= 1;
            }
            *owner.command == *command || *owner.command == command[..end]
        };
        (self.pids.is_empty() || owners.iter().any(|owner| self.pids.contains(&owner.pid)))
            && (self.commands.is_empty() || owners.iter().any(|o| self.commands.iter().any(|name| named(name, o))))
    }

    /// Puts into a selection what the kernel side can apply of this. Nothing that the filter wants is left out.
    pub fn narrow(&self, selection: &mut Selection) {
        let Some(expression) = &self.expression else { return };
        let states = expression.states();
        if states & ALL_STATES != ALL_STATES {
            selection.states = if selection.states == u32::MAX { states } else { selection.states & states };
        }
        let parts = match expression {
            Expression::All(parts) => parts.as_slice(),
            other => std::slice::from_ref(other),
        };
        if selection.ports.is_empty() {
            selection.ports = parts.iter().find_map(|part| part.each(&port_rule)).unwrap_or_default();
        }
        if selection.prefixes.is_empty() {
            selection.prefixes = parts.iter().find_map(|part| part.each(&prefix_rule)).unwrap_or_default();
        }
    }
}

fn side(remote: bool) -> Side {
    if remote { Side::Remote } else { Side::Local }
}

fn port_rule(term: &Term) -> Option<(Side, u16)> {
    match *term {
        Term::Port { remote, compare: Compare::Equal, port } => Some((side(remote), port)),
        _ => None,
    }
}

fn prefix_rule(term: &Term) -> Option<Prefix> {
    match *term {
        Term::Address { remote, network, length } => Some(Prefix { side: side(remote), network, length }),
        _ => None,
    }
}

impl Expression {
    fn holds(&self, record: &SocketRecord, closed: bool) -> bool {
        match self {
            Self::All(parts) => parts.iter().all(|part| part.holds(record, closed)),
            Self::Any(parts) => parts.iter().any(|part| part.holds(record, closed)),
            Self::Not(part) => !part.holds(record, closed),
            Self::Is(term) => term.holds(record, closed),
        }
    }

    /// States in which it may hold.
    fn states(&self) -> u32 {
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
    fn each<T>(&self, rule: &dyn Fn(&Term) -> Option<T>) -> Option<Vec<T>> {
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

#[cfg(test)]
mod tests;

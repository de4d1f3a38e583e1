//! The vocabulary of `parshall sockets`: what is said of a socket, which parts of it were asked for, and how complete a dump is.
pub mod expression;
mod group;
mod record;
pub mod selection;

pub use group::{Group, Groups};
pub use record::{FIELDS, Field, SocketRecord, Visitor, Width};
pub use selection::{Kind, Kinds, Prefix, Selection, Side};

use serde::{Deserialize, Serialize};

/// Version of the rows that every format writes; its number rises when a field changes its meaning.
pub const SOCKETS_SCHEMA: &str = "parshall.sockets/1";

/// `record_flags`: the record is of a socket that has closed; its counters are final, its state is the one before the end.
pub const FLAG_CLOSED: u16 = 1;

/// `protocol` of MPTCP (IPPROTO_MPTCP).
pub const PROTOCOL_MPTCP: u16 = 262;

/// Sockets of one portion of a dump, read in place: what they borrow is overwritten by the next portion.
#[derive(Debug, Clone, Copy)]
pub struct Batch<'a> {
    /// The sockets.
    pub records: &'a [SocketRecord],
    /// Names of UNIX sockets, one after the other; `name_at` and `name_len` of a record say which is its own.
    pub names: &'a [u8],
}

impl<'a> Batch<'a> {
    /// The name of a UNIX socket of this batch (abstract names begin with a zero byte); empty when it has none.
    pub fn name(&self, record: &SocketRecord) -> &'a [u8] {
        let at = record.name_at as usize;
        self.names.get(at..at + usize::from(record.name_len)).unwrap_or_default()
    }
}

/// How complete a dump is. Nothing is missing silently: `expected = emitted + filtered + torn + dropped`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Completeness {
    /// Sockets that were met.
    pub expected: u64,
    /// Records given out.
    pub emitted: u64,
    /// Sockets that the selection left out after they were met.
    pub filtered: u64,
    /// Records that changed their identity while they were read, again and again, and were left out.
    pub torn: u64,
    /// Records for which there was no room, or that could not be read.
    pub dropped: u64,
    /// Times that a chain or a message stream was changed under the reader and was read again.
    pub interrupted: u64,
    /// Chains longer than the bound, whose rest was not read.
    pub chains_cut: u64,
    /// Namespaces seen.
    pub namespaces: u64,
    /// Namespaces that vanished or refused while they were read.
    pub namespaces_lost: u64,
}

impl std::ops::AddAssign for Completeness {
    fn add_assign(&mut self, other: Self) {
        self.expected += other.expected;
        self.emitted += other.emitted;
        self.filtered += other.filtered;
        self.torn += other.torn;
        self.dropped += other.dropped;
        self.interrupted += other.interrupted;
        self.chains_cut += other.chains_cut;
        self.namespaces += other.namespaces;
        self.namespaces_lost += other.namespaces_lost;
    }
}

/// `struct socket_record` and `SOCKET_GROUP_...` for the kernel side, from the same list as [`SocketRecord`].
pub fn c_header() -> String {
    let mut text =
        String::from("/* Written by the build from crates/evidence/src/socket; change it there. */\n#pragma once\n\n");
    for group in Group::ALL {
        text += &format!("#define SOCKET_GROUP_{} (1u << {})\n", group.name().to_uppercase(), group as u32);
    }
    text += &format!("#define SOCKET_FLAG_CLOSED {FLAG_CLOSED}\n\nstruct socket_record {{\n");
    for field in FIELDS {
        let (kind, suffix) = match field.width {
            Width::U64 => ("unsigned long long", ""),
            Width::U32 => ("unsigned int", ""),
            Width::U16 => ("unsigned short", ""),
            Width::U8 => ("unsigned char", ""),
            Width::Bytes16 => ("unsigned char", "[16]"),
        };
        text += &format!("\t{kind} {}{suffix};\n", field.name);
    }
    text += &format!(
        "}};\n\n_Static_assert(sizeof(struct socket_record) == {}, \"no padding\");\n",
        size_of::<SocketRecord>()
    );
    text
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn numbers_and_names_are_unique() {
        let numbers: BTreeSet<u32> = FIELDS.iter().map(|f| f.number).collect();
        let names: BTreeSet<&str> = FIELDS.iter().map(|f| f.name).collect();
        assert_eq!((numbers.len(), names.len()), (FIELDS.len(), FIELDS.len()));
    }

    #[test]
    fn a_visitor_sees_what_is_not_zero() {
        struct Seen(Vec<(u32, u64)>);
        impl Visitor for Seen {
            fn uint(&mut self, number: u32, _: &'static str, value: u64) {
                self.0.push((number, value));
            }
            fn bytes(&mut self, number: u32, _: &'static str, value: &[u8; 16]) {
                self.0.push((number, u64::from(value[0])));
            }
        }
        let record = SocketRecord { rtt_us: 7, local_address: [9; 16], ..Default::default() };
        let mut seen = Seen(Vec::new());
        record.visit(&mut seen);
        assert_eq!(seen.0, [(42, 7), (170, 9)]);
    }

    #[test]
    fn a_name_outside_the_batch_is_empty() {
        let record = SocketRecord { name_at: 3, name_len: 9, ..Default::default() };
        assert_eq!(Batch { records: &[], names: b"short" }.name(&record), b"");
    }
}

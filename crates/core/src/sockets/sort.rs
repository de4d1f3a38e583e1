//! The order of rows: by any integer field of the record, by rates, by addresses, or by names.
use std::cmp::Reverse;
use std::net::IpAddr;

use parshall_evidence::socket::{FIELDS, Field, Group, Visitor, Width};

use super::row::Row;
use super::schema::{Wire, wire};
use parshall_evidence::socket::selection::address;
use parshall_evidence::socket::selection::state::LISTEN;

/// One key of an order. Numbers descend, names and addresses ascend, and rows without a name come last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SortKey {
    what: What,
    reversed: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum What {
    Number(u32),
    Sent,
    Received,
    Local,
    Remote,
    Netns,
    Cgroup,
    Owner,
    Listens,
}

/// Short names of fields. `retrans` is the column of the table, so it hides the field `retrans` (segments in flight).
const SHORT: &[(&str, &str)] = &[
    ("rqueue", "rqueue_bytes"),
    ("wqueue", "wqueue_bytes"),
    ("rtt", "rtt_us"),
    ("min-rtt", "min_rtt_us"),
    ("rto", "rto_us"),
    ("cwnd", "snd_cwnd"),
    ("retrans", "total_retrans"),
    ("sent", "bytes_sent"),
    ("received", "bytes_received"),
    ("delivery-rate", "delivery_bytes_per_s"),
    ("pacing-rate", "pacing_bytes_per_s"),
    ("port", "local_port"),
];

const NAMES: &[(&str, What)] = &[
    ("sent-rate", What::Sent),
    ("received-rate", What::Received),
    ("local", What::Local),
    ("remote", What::Remote),
    ("netns", What::Netns),
    ("cgroup", What::Cgroup),
    ("owner", What::Owner),
];

impl SortKey {
    /// Listeners behind all others: who reads the end of a long table sees what is served.
    pub const LISTENERS_LAST: Self = Self { what: What::Listens, reversed: false };

    /// Finds a key by its short name or by the name of its field, with `_` or `-`. A leading `-` reverses the order.
    pub fn named(name: &str) -> Option<Self> {
        if let Some(what) = named(name) {
            return Some(Self { what, reversed: false });
        }
        let what = named(name.strip_prefix('-')?)?;
        Some(Self { what, reversed: true })
    }

    /// The group of fields that must be read for this key.
    pub fn group(self) -> Option<Group> {
        match self.what {
            What::Number(number) => FIELDS.iter().find(|field| field.number == number).map(|field| field.group),
            What::Sent | What::Received => Some(Group::Traffic),
            What::Cgroup => Some(Group::Cgroup),
            What::Owner => Some(Group::Owner),
            What::Local | What::Remote | What::Netns | What::Listens => None,
        }
    }

    /// The names that an error message suggests. The names of fields are valid too.
    pub fn names() -> impl Iterator<Item = &'static str> {
        SHORT.iter().map(|(name, _)| *name).chain(NAMES.iter().map(|(name, _)| *name))
    }
}

fn named(name: &str) -> Option<What> {
    if let Some((_, what)) = NAMES.iter().find(|(n, _)| *n == name) {
        return Some(*what);
    }
    let long = SHORT.iter().find(|(short, _)| *short == name).map_or(name, |(_, long)| long);
    let is_number = |field: &&Field| field.width != Width::Bytes16 && wire(field.number) != Wire::Absent;
    let field = FIELDS.iter().filter(is_number).find(|f| f.name == long || f.name == long.replace('-', "_"))?;
    Some(What::Number(field.number))
}

/// Sorts rows by keys, and rows with equal keys by addresses, ports and namespace. So the result does not depend on the order
/// of the dump, which is not defined.
pub fn sort(rows: &mut [Row<'_>], keys: &[SortKey]) {
    rows.sort_by_cached_key(|row| Rank::of(row, keys));
}

/// The sort value of a row: ranks compare as [`sort`] orders their rows.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rank {
    values: Box<[Value]>,
    local: End,
    remote: End,
    netns: u32,
    inode: u32,
}

impl Rank {
    /// The rank of a row by these keys.
    pub fn of(row: &Row<'_>, keys: &[SortKey]) -> Self {
        Self {
            values: keys.iter().map(|key| Value::of(*key, row)).collect(),
            local: End::of(row, false),
            remote: End::of(row, true),
            netns: row.record.netns,
            inode: row.record.inode,
        }
    }
}

/// One end of a socket. IPv4 addresses come before IPv6 addresses.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct End {
    address: IpAddr,
    port: u16,
}

impl End {
    fn of(row: &Row<'_>, remote: bool) -> Self {
        let port = if remote { row.record.remote_port } else { row.record.local_port };
        Self { address: address(row.record, remote).to_canonical(), port }
    }
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Value {
    Down(Reverse<u64>),
    Up(u64),
    /// Whether the name is empty, and the name.
    Name(bool, Box<str>),
    NameDown(bool, Reverse<Box<str>>),
    End(End),
    EndDown(Reverse<End>),
}

impl Value {
    fn of(key: SortKey, row: &Row<'_>) -> Self {
        let number = |n: u64| if key.reversed { Self::Up(n) } else { Self::Down(Reverse(n)) };
        let name = |s: &str| {
            if key.reversed {
                Self::NameDown(s.is_empty(), Reverse(s.into()))
            } else {
                Self::Name(s.is_empty(), s.into())
            }
        };
        let end = |end: End| if key.reversed { Self::EndDown(Reverse(end)) } else { Self::End(end) };
        match key.what {
            What::Number(wanted) => number(value(row, wanted)),
            What::Listens => Self::Up(u64::from(row.record.state == LISTEN)),
            What::Sent => number(row.rates.map_or(0, |r| r.sent_bytes_per_s)),
            What::Received => number(row.rates.map_or(0, |r| r.received_bytes_per_s)),
            What::Local => end(End::of(row, false)),
            What::Remote => end(End::of(row, true)),
            What::Netns => name(row.netns),
            What::Cgroup => name(row.cgroup),
            What::Owner => name(row.owners.first().map_or("", |o| &o.command)),
        }
    }
}

/// The value of an integer field.
fn value(row: &Row<'_>, wanted: u32) -> u64 {
    struct Find {
        wanted: u32,
        found: u64,
    }
    impl Visitor for Find {
        fn uint(&mut self, number: u32, _: &'static str, value: u64) {
            if number == self.wanted {
                self.found = value;
            }
        }
        fn bytes(&mut self, _: u32, _: &'static str, _: &[u8; 16]) {}
    }
    let mut find = Find { wanted, found: 0 };
    row.record.visit(&mut find);
    find.found
}

#[cfg(test)]
mod tests {
    use parshall_evidence::socket::SocketRecord;

    use super::*;

    fn order(keys: &[&str], records: &[SocketRecord]) -> Vec<u16> {
        let keys: Vec<SortKey> = keys.iter().map(|k| SortKey::named(k).unwrap()).collect();
        let mut rows: Vec<Row<'_>> = records.iter().map(Row::bare).collect();
        sort(&mut rows, &keys);
        rows.iter().map(|r| r.record.local_port).collect()
    }

    fn record(local_port: u16, rtt_us: u32, snd_cwnd: u32) -> SocketRecord {
        SocketRecord { family: 2, local_port, rtt_us, snd_cwnd, ..Default::default() }
    }

    #[test]
    fn numbers_fall_and_ties_go_on() {
        let records = [record(3, 10, 1), record(1, 20, 1), record(2, 10, 9), record(4, 10, 1)];
        assert_eq!(order(&["rtt"], &records), [1, 2, 3, 4]);
        assert_eq!(order(&["rtt", "snd_cwnd"], &records), [1, 2, 3, 4]);
        assert_eq!(order(&["cwnd", "-rtt_us"], &records), [2, 3, 4, 1]);
        assert_eq!(order(&["-local"], &records), [4, 3, 2, 1]);
        assert_eq!(order(&[], &records), [1, 2, 3, 4]);
    }

    #[test]
    fn listeners_come_last() {
        let listener = SocketRecord { state: LISTEN, ..record(1, 0, 0) };
        let mut rows: Vec<Row<'_>> = [&listener].into_iter().map(Row::bare).collect();
        let others = [record(3, 0, 0), record(2, 0, 0)];
        rows.extend(others.iter().map(Row::bare));
        sort(&mut rows, &[SortKey::LISTENERS_LAST]);
        assert_eq!(rows.iter().map(|row| row.record.local_port).collect::<Vec<_>>(), [2, 3, 1]);
    }

    #[test]
    fn rows_without_a_name_come_last_either_way() {
        let records = [record(1, 0, 0), record(2, 0, 0), record(3, 0, 0)];
        for (key, wanted) in [("netns", [3, 1, 2]), ("-netns", [1, 3, 2])] {
            let mut rows: Vec<Row<'_>> = records.iter().map(Row::bare).collect();
            (rows[0].netns, rows[2].netns) = ("b", "a");
            sort(&mut rows, &[SortKey::named(key).unwrap()]);
            assert_eq!(rows.iter().map(|row| row.record.local_port).collect::<Vec<_>>(), wanted, "{key}");
        }
    }

    #[test]
    fn a_key_names_the_group_that_it_needs() {
        let group = |name| SortKey::named(name).unwrap().group();
        assert_eq!(
            [group("retrans"), group("owner"), group("-rtt")],
            [Group::Loss, Group::Owner, Group::Rtt].map(Some)
        );
        assert_eq!(group("netns"), None);
    }

    #[test]
    fn only_listed_names_and_integer_fields_are_keys() {
        for name in SortKey::names().chain(["total_retrans", "total-retrans"]) {
            assert!(SortKey::named(name).is_some(), "{name}");
        }
        for name in ["", "-", "congestion", "local_address", "name_at", "--rtt"] {
            assert_eq!(SortKey::named(name), None, "{name}");
        }
    }
}

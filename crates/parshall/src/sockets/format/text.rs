//! A table for people: the columns of `ss -tinp` that matter, and on request a second line with the rest.
//!
//! Columns are as wide as the widest cell of a portion, and never narrower than before; a column of which no row has
//! anything to say is left out. Nothing from the host can move the cursor: control characters are replaced.
use std::fmt::Write;

use parshall_core::sockets::schema::{Wire, wire};
use parshall_core::sockets::selection::state::LISTEN;
use parshall_core::sockets::selection::{address, state_name};
use parshall_core::sockets::{Dump, Kind, Row, Seen, words};
use parshall_core::words::{bytes, count, duration};
use parshall_evidence::socket::{Completeness, FIELDS, Group, SocketRecord, Visitor};

use super::Encoder;
use crate::report::clean;

/// A column: its heading, whether its cells stand to the right, and what it says of a row.
struct Column {
    heading: &'static str,
    right: bool,
    cell: fn(&Row<'_>, &mut String),
}

const fn left(heading: &'static str, cell: fn(&Row<'_>, &mut String)) -> Column {
    Column { heading, right: false, cell }
}

const fn right(heading: &'static str, cell: fn(&Row<'_>, &mut String)) -> Column {
    Column { heading, right: true, cell }
}

const COLUMNS: [Column; 15] = [
    left("SEEN", |row, out| {
        if row.seen != Seen::Open {
            out.push_str(row.seen.name());
        }
    }),
    left("KIND", |row, out| out.push_str(Kind::of(row.record).name())),
    left("STATE", |row, out| out.push_str(state_name(row.record.state))),
    right("RECV-Q", |row, out| {
        let record = row.record;
        put(out, if record.state == LISTEN { record.accept_queue } else { record.rqueue_bytes });
    }),
    right("SEND-Q", |row, out| {
        let record = row.record;
        put(out, if record.state == LISTEN { record.accept_limit } else { record.wqueue_bytes });
    }),
    left("LOCAL", local),
    left("REMOTE", remote),
    right("RTT", |row, out| some(out, row.record.rtt_us > 0, || duration(f64::from(row.record.rtt_us) * 1e3))),
    right("CWND", |row, out| some(out, row.record.snd_cwnd > 0, || row.record.snd_cwnd.to_string())),
    right("RESENT", |row, out| some(out, row.record.total_retrans > 0, || count(u64::from(row.record.total_retrans)))),
    right("SENT", |row, out| some(out, row.record.bytes_sent > 0, || bytes(row.record.bytes_sent as f64))),
    right("RECEIVED", |row, out| some(out, row.record.bytes_received > 0, || bytes(row.record.bytes_received as f64))),
    left("CC", |row, out| out.push_str(&congestion(row.record))),
    left("NETNS", |row, out| out.push_str(&clean(row.netns))),
    left("OWNER", owner),
];

/// A table.
#[derive(Debug, Default)]
pub struct Text {
    /// A second line for each socket.
    wide: bool,
    /// Widths in columns of the screen; 0: the column is not there.
    widths: [usize; COLUMNS.len()],
    /// The dump whose heading was printed.
    headed: Option<u64>,
    rows: u64,
}

impl Text {
    /// A table, with a second line for each socket or without.
    pub fn new(wide: bool) -> Self {
        Self { wide, ..Self::default() }
    }

    fn line<'a>(&self, cells: impl Iterator<Item = (usize, &'a str)>, out: &mut Vec<u8>) {
        let begin = out.len();
        for (at, cell) in cells {
            if self.widths[at] == 0 {
                continue;
            }
            if out.len() > begin {
                out.extend_from_slice(b"  ");
            }
            let padding = self.widths[at].saturating_sub(cell.chars().count());
            let spaces = std::iter::repeat_n(b' ', padding);
            if COLUMNS[at].right {
                out.extend(spaces);
                out.extend_from_slice(cell.as_bytes());
            } else {
                out.extend_from_slice(cell.as_bytes());
                out.extend(spaces);
            }
        }
        while out.len() > begin && out.last() == Some(&b' ') {
            out.pop();
        }
        out.push(b'\n');
    }
}

impl Encoder for Text {
    fn begin(&mut self, _: &mut Vec<u8>) {}

    fn rows(&mut self, dump: &Dump, rows: &[Row<'_>], out: &mut Vec<u8>) {
        if rows.is_empty() {
            return;
        }
        let before = self.widths;
        let mut cell = String::new();
        for row in rows {
            for (column, width) in COLUMNS.iter().zip(&mut self.widths) {
                cell.clear();
                (column.cell)(row, &mut cell);
                *width = cell.chars().count().max(*width);
            }
        }
        for (column, width) in COLUMNS.iter().zip(&mut self.widths).filter(|(_, width)| **width > 0) {
            *width = column.heading.len().max(*width);
        }
        if self.headed != Some(dump.sequence) || before != self.widths {
            self.line(COLUMNS.iter().map(|column| column.heading).enumerate(), out);
            self.headed = Some(dump.sequence);
        }
        let mut cells: [String; COLUMNS.len()] = Default::default();
        for row in rows {
            for (column, cell) in COLUMNS.iter().zip(&mut cells) {
                cell.clear();
                (column.cell)(row, cell);
            }
            self.line(cells.iter().map(String::as_str).enumerate(), out);
            if self.wide {
                details(row, out);
            }
        }
        self.rows += rows.len() as u64;
    }

    fn end(&mut self, dump: &Dump, completeness: &Completeness, out: &mut Vec<u8>) {
        let rows = std::mem::take(&mut self.rows);
        out.extend_from_slice(footer(dump, completeness, rows).as_bytes());
        self.headed = None;
    }

    fn finish(&mut self, _: &mut Vec<u8>) {}
}

fn put(out: &mut String, number: u32) {
    // Writing to memory cannot fail.
    let _ = write!(out, "{number}");
}

fn some(out: &mut String, there: bool, text: impl FnOnce() -> String) {
    if there {
        out.push_str(&text());
    }
}

fn congestion(record: &SocketRecord) -> String {
    let name = &record.congestion;
    let length = name.iter().position(|b| *b == 0).unwrap_or(name.len());
    clean(&String::from_utf8_lossy(&name[..length]))
}

fn local(row: &Row<'_>, out: &mut String) {
    if Kind::of(row.record) == Kind::Unix {
        let name = row.name.strip_prefix(b"\0").inspect(|_| out.push('@')).unwrap_or(row.name);
        if name.is_empty() {
            let _ = write!(out, "#{}", row.record.inode);
        } else {
            out.push_str(&clean(&String::from_utf8_lossy(name)));
        }
    } else {
        endpoint(row.record, false, out);
    }
}

fn remote(row: &Row<'_>, out: &mut String) {
    if Kind::of(row.record) != Kind::Unix {
        endpoint(row.record, true, out);
    } else if row.record.peer_inode > 0 {
        let _ = write!(out, "#{}", row.record.peer_inode);
    }
}

fn endpoint(record: &SocketRecord, is_remote: bool, out: &mut String) {
    let address = address(record, is_remote).to_canonical();
    let port = if is_remote { record.remote_port } else { record.local_port };
    let _ = match (address.is_unspecified(), address.is_ipv6()) {
        (true, _) => write!(out, "*:"),
        (false, true) => write!(out, "[{address}]:"),
        (false, false) => write!(out, "{address}:"),
    };
    let _ = if port == 0 { write!(out, "*") } else { write!(out, "{port}") };
}

fn owner(row: &Row<'_>, out: &mut String) {
    if let Some(first) = row.owners.first() {
        let _ = write!(out, "{} pid {} fd {}", clean(&first.command), first.pid, first.fd);
        if row.owners.len() > 1 {
            let _ = write!(out, " +{}", row.owners.len() - 1);
        }
    }
}

/// Fields that the table shows, and those that say nothing to people.
const IN_TABLE: &[&str] = &[
    "rqueue_bytes",
    "wqueue_bytes",
    "accept_queue",
    "accept_limit",
    "rtt_us",
    "snd_cwnd",
    "total_retrans",
    "bytes_sent",
    "bytes_received",
    "peer_inode",
];

fn is_detail(number: u32) -> bool {
    FIELDS.iter().find(|f| f.number == number).is_some_and(|field| {
        wire(number) != Wire::Absent
            && (field.group != Group::Identity || matches!(field.name, "netns" | "interface" | "inode"))
            && !IN_TABLE.contains(&field.name)
    })
}

/// The second line: what else is not zero.
fn details(row: &Row<'_>, out: &mut Vec<u8>) {
    let mut line = String::from("   ");
    row.record.visit(&mut Details { out: &mut line });
    for (name, text) in [("cgroup", row.cgroup), ("container", row.container), ("pod", row.pod)] {
        if !text.is_empty() {
            let _ = write!(line, " {name} {}", clean(text));
        }
    }
    if let Some(rates) = &row.rates {
        let _ = write!(
            line,
            " sending {}/s receiving {}/s",
            bytes(rates.sent_bytes_per_s as f64),
            bytes(rates.received_bytes_per_s as f64)
        );
    }
    let line = line.trim_end();
    if !line.is_empty() {
        out.extend_from_slice(line.as_bytes());
        out.push(b'\n');
    }
}

struct Details<'a> {
    out: &'a mut String,
}

impl Visitor for Details<'_> {
    fn uint(&mut self, number: u32, name: &'static str, value: u64) {
        let none = matches!((number, value), (8 | 9, u64::MAX) | (44, 0xffff_ffff) | (51, 0x7fff_ffff));
        if none || !is_detail(number) {
            return;
        }
        if let Some(word) = words::of(number).and_then(|w| w.of(value)) {
            let _ = write!(self.out, " {name} {word}");
            return;
        }
        let units = [("_bytes_per_s", 0.0), ("_us", 1e3), ("_ms", 1e6), ("_bytes", 0.0)];
        let unit = units.iter().find_map(|(unit, ns)| Some((name.strip_suffix(unit)?, *unit, *ns)));
        let _ = match unit {
            Some((short, "_bytes_per_s", _)) => write!(self.out, " {short} {}/s", bytes(value as f64)),
            Some((short, "_bytes", _)) => write!(self.out, " {short} {}", bytes(value as f64)),
            Some((short, _, ns)) => write!(self.out, " {short} {}", duration(value as f64 * ns)),
            None => write!(self.out, " {name} {value}"),
        };
    }

    fn bytes(&mut self, _: u32, _: &'static str, _: &[u8; 16]) {}
}

fn footer(dump: &Dump, c: &Completeness, rows: u64) -> String {
    let mut text = format!("{} sockets", count(rows));
    if c.emitted != rows {
        let _ = write!(text, " of {} records", count(c.emitted));
    }
    let _ = write!(text, " · {} · {} namespaces", dump.backend, count(c.namespaces));
    let losses = [
        (c.torn, "torn"),
        (c.dropped, "dropped"),
        (c.chains_cut, "chains cut"),
        (c.namespaces_lost, "namespaces lost"),
    ];
    let missing: Vec<String> =
        losses.iter().filter(|(n, _)| *n > 0).map(|(n, what)| format!("{} {what}", count(*n))).collect();
    if missing.is_empty() {
        text += " · complete";
    } else {
        let _ = write!(text, " · INCOMPLETE: {}", missing.join(", "));
    }
    if c.filtered > 0 {
        let _ = write!(text, " · {} left out by the selection", count(c.filtered));
    }
    if c.interrupted > 0 {
        let _ = write!(text, " · read again {} times", count(c.interrupted));
    }
    text.push('\n');
    text
}

//! A table for people: the most used columns of `ss -tinp`, and on request a second line with the other fields.
//!
//! The rows of a dump are printed at its end, when the widths of the columns and the empty columns are known, below one heading.
//! Sockets that close between two dumps are printed at once, in the columns of the dump before. Control characters in names
//! are replaced, so that no process on the host can move the terminal's cursor.
use std::fmt::Write;
use std::time::{Duration, UNIX_EPOCH};

use parshall_core::sockets::schema::{Wire, wire};
use parshall_core::sockets::{Dump, Row, Seen, value_names};
use parshall_core::units::{bytes, count, duration};
use parshall_evidence::socket::Kind;
use parshall_evidence::socket::selection::state::LISTEN;
use parshall_evidence::socket::selection::{address, state_name};
use parshall_evidence::socket::{Completeness, FIELDS, Group, Groups, SocketRecord, Visitor};

use super::encoder::Encoder;
use parshall_host::output::clean;
use parshall_host::utc::iso;

struct Column {
    heading: &'static str,
    right_aligned: bool,
    /// Appends the cell of a row.
    cell: fn(&Row<'_>, &mut String),
}

const fn left(heading: &'static str, cell: fn(&Row<'_>, &mut String)) -> Column {
    Column { heading, right_aligned: false, cell }
}

const fn right(heading: &'static str, cell: fn(&Row<'_>, &mut String)) -> Column {
    Column { heading, right_aligned: true, cell }
}

/// Columns that have a width before any row: a stream needs the first two for sockets that close after a dump.
const TIME: usize = 0;
const SEEN: usize = 1;
const OWNER: usize = 15;

const COLUMNS: [Column; 16] = [
    // The time of the dump, which `Text::add` fills in.
    left("TIME", |_, _| {}),
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
    right("RTT", |row, out| if_any(out, row.record.rtt_us > 0, || duration(f64::from(row.record.rtt_us) * 1e3))),
    right("CWND", |row, out| if_any(out, row.record.snd_cwnd > 0, || row.record.snd_cwnd.to_string())),
    right("RETRANS", |row, out| {
        if_any(out, row.record.total_retrans > 0, || count(u64::from(row.record.total_retrans)))
    }),
    right("SENT", |row, out| if_any(out, row.record.bytes_sent > 0, || bytes(row.record.bytes_sent as f64))),
    right("RECEIVED", |row, out| {
        if_any(out, row.record.bytes_received > 0, || bytes(row.record.bytes_received as f64))
    }),
    left("CC", |row, out| out.push_str(&congestion(row.record))),
    left("NETNS", |row, out| out.push_str(&clean(row.netns))),
    left("OWNER", owner),
];

/// The groups of fields that the table shows without a second line.
pub fn groups() -> Groups {
    Groups::of([
        Group::Queues,
        Group::Rtt,
        Group::Cwnd,
        Group::Loss,
        Group::Traffic,
        Group::Congestion,
        Group::Unix,
        // IPV6_V6ONLY tells `[::]` from `*`.
        Group::Attributes,
    ])
}

/// Which columns and lines a table has.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TableStyle {
    /// A second line for each socket.
    pub wide: bool,
    /// The columns of a stream: when a row was read, and how the socket changed since the last dump.
    pub stream: bool,
    /// The column of owners, even if no row has one.
    pub owners: bool,
}

#[derive(Debug, Default)]
pub struct Text {
    style: TableStyle,
    /// Widths in characters; 0 for a column that is not printed.
    widths: [usize; COLUMNS.len()],
    /// Cells of the rows of a dump that has not ended, each followed by [`CELL_END`]. The cells of a row are followed by its
    /// second line.
    cells: String,
    rows: u64,
    /// Bytes of `cells` that are printed.
    printed: usize,
    heading_printed: bool,
    /// Sockets that closed since the last dump.
    closed: u64,
}

/// A unit separator: cells have no control characters.
const CELL_END: char = '\x1f';
/// The offset of the time of day in a time of RFC 3339.
const TIME_OF_DAY: usize = 11;
/// Bytes of cells that are printed together.
const PORTION: usize = 64 << 10;

impl Text {
    pub fn new(style: TableStyle) -> Self {
        let mut widths = [0; COLUMNS.len()];
        let widest_seen = Seen::Changed.name().len();
        for (at, shown, width) in [(TIME, style.stream, 4), (SEEN, style.stream, widest_seen), (OWNER, style.owners, 5)]
        {
            widths[at] = if shown { width } else { 0 };
        }
        Self { style, widths, ..Self::default() }
    }

    /// Stores the cells of a row and widens their columns.
    fn add(&mut self, time: &str, row: &Row<'_>) {
        for (at, (column, width)) in COLUMNS.iter().zip(&mut self.widths).enumerate() {
            let begin = self.cells.len();
            if at == TIME {
                self.cells.push_str(time);
            } else {
                (column.cell)(row, &mut self.cells);
            }
            let needed = self.cells[begin..].chars().count();
            if needed > 0 {
                *width = needed.max(column.heading.len()).max(*width);
            }
            self.cells.push(CELL_END);
        }
        if self.style.wide {
            details(row, &mut self.cells);
        }
        self.cells.push(CELL_END);
        self.rows += 1;
    }

    /// Prints a portion of the stored rows; false when there are no more.
    fn print_some(&mut self, out: &mut Vec<u8>) -> bool {
        let cells = std::mem::take(&mut self.cells);
        let until = self.printed.saturating_add(PORTION);
        while self.printed < until.min(cells.len()) {
            let mut rest = &cells[self.printed..];
            let mut next = || {
                let (cell, after) = rest.split_once(CELL_END).unwrap_or((rest, ""));
                rest = after;
                cell
            };
            self.line((0..COLUMNS.len()).map(|at| (at, next())), out);
            out.extend_from_slice(next().as_bytes());
            self.printed = cells.len() - rest.len();
        }
        if self.printed < cells.len() {
            self.cells = cells;
            return true;
        }
        (self.printed, self.heading_printed) = (0, false);
        false
    }

    fn heading(&self, out: &mut Vec<u8>) {
        self.line(COLUMNS.iter().map(|column| column.heading).enumerate(), out);
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
            if COLUMNS[at].right_aligned {
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

    /// Prints sockets that closed since the last dump.
    fn closed(&mut self, time: &str, rows: &[Row<'_>], out: &mut Vec<u8>) {
        let columns = |widths: [usize; COLUMNS.len()]| widths.map(|width| width > 0);
        let before = columns(self.widths);
        rows.iter().for_each(|row| self.add(time, row));
        if columns(self.widths) != before {
            self.heading(out);
        }
        while self.print_some(out) {}
        self.rows -= rows.len() as u64;
        self.closed += rows.len() as u64;
    }
}

impl Encoder for Text {
    fn begin(&mut self, _: &mut Vec<u8>) {}

    fn rows(&mut self, dump: &Dump, rows: &[Row<'_>], out: &mut Vec<u8>) {
        let moment = iso(UNIX_EPOCH + Duration::from_nanos(dump.at_unix_ns));
        let time = if self.style.stream { moment[TIME_OF_DAY..].trim_end_matches('Z') } else { "" };
        if rows.first().is_some_and(|row| row.seen == Seen::Closed) {
            self.closed(time, rows, out);
        } else {
            rows.iter().for_each(|row| self.add(time, row));
        }
    }

    fn drain(&mut self, out: &mut Vec<u8>) -> bool {
        if self.rows > 0 && !std::mem::replace(&mut self.heading_printed, true) {
            self.heading(out);
        }
        self.print_some(out)
    }

    fn end(&mut self, dump: &Dump, completeness: &Completeness, out: &mut Vec<u8>) {
        if !self.cells.is_empty() {
            while self.drain(out) {}
        }
        let (rows, closed) = (std::mem::take(&mut self.rows), std::mem::take(&mut self.closed));
        out.extend_from_slice(footer(dump, completeness, rows, closed).as_bytes());
    }

    fn finish(&mut self, _: &mut Vec<u8>) {}
}

fn put(out: &mut String, number: u32) {
    // Writing to memory cannot fail.
    let _ = write!(out, "{number}");
}

fn if_any(out: &mut String, any: bool, text: impl FnOnce() -> String) {
    if any {
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
    // As `ss` does: 0.0.0.0 is any address of IPv4, [::] any of IPv6, * any of both.
    let both = address.is_unspecified() && address.is_ipv6() && record.ipv6_only == 0;
    let _ = match (both, address.is_ipv6()) {
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

/// Fields that have a column of their own.
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

/// The second line: the other fields that are not zero.
fn details(row: &Row<'_>, out: &mut String) {
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
        out.push_str(line);
        out.push('\n');
    }
}

struct Details<'a> {
    out: &'a mut String,
}

impl Visitor for Details<'_> {
    fn uint(&mut self, number: u32, name: &'static str, value: u64) {
        if !is_detail(number) {
            return;
        }
        if let Some(value) = value_names::of(number).and_then(|names| names.name(value)) {
            let _ = write!(self.out, " {name} {value}");
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

/// A number with its noun, such as `3 sockets` or `1 namespace`.
fn counted(number: u64, what: &str) -> String {
    format!("{} {what}{}", count(number), if number == 1 { "" } else { "s" })
}

fn footer(dump: &Dump, c: &Completeness, rows: u64, closed: u64) -> String {
    let mut text = if c.emitted > rows {
        format!("{} of {}", count(rows), counted(c.emitted, "socket"))
    } else {
        counted(rows, "socket")
    };
    let _ = write!(text, " · {} · {}", dump.backend, counted(c.namespaces, "namespace"));
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
        let _ = write!(text, " · read again {}", counted(c.interrupted, "time"));
    }
    if closed > 0 {
        let _ = write!(text, " · {} closed since the last dump", count(closed));
    }
    let _ = write!(text, " · {}", iso(UNIX_EPOCH + Duration::from_nanos(dump.at_unix_ns)));
    text.push('\n');
    text
}

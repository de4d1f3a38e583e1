//! JSON lines: one object per socket, and one at the end of each dump. `docs/sockets-schema.md` describes them.
//!
//! Encoded without serde_json: the names of the fields are known at compile time, so that a number costs two copies.
use std::net::Ipv6Addr;

use parshall_core::sockets::row::Seen;
use parshall_core::sockets::schema::{Wire, is_identifier, wire};
use parshall_core::sockets::value_names::{self, ValueNames};
use parshall_core::sockets::{Dump, Owner, Rates, Row};
use parshall_core::text::{is_printable, json_escape};
use parshall_evidence::socket::Kind;
use parshall_evidence::socket::{Completeness, FIELDS, SOCKETS_SCHEMA, Visitor};

use super::encoder::Encoder;

const AF_INET: u8 = 2;

#[derive(Debug, Default)]
pub struct Json {
    shared: Vec<u8>,
}

impl Encoder for Json {
    fn begin(&mut self, _: &mut Vec<u8>) {}

    fn rows(&mut self, dump: &Dump, rows: &[Row<'_>], out: &mut Vec<u8>) {
        self.dump(dump);
        for row in rows {
            out.extend_from_slice(&self.shared);
            write_row(row, out);
            out.extend_from_slice(b"}\n");
        }
    }

    fn end(&mut self, dump: &Dump, completeness: &Completeness, out: &mut Vec<u8>) {
        self.dump(dump);
        out.extend_from_slice(&self.shared);
        out.extend_from_slice(b",\"schema\":\"");
        out.extend_from_slice(SOCKETS_SCHEMA.as_bytes());
        out.extend_from_slice(b"\",\"completeness\":{");
        let c = completeness;
        let values = [
            ("expected", c.expected),
            ("emitted", c.emitted),
            ("filtered", c.filtered),
            ("torn", c.torn),
            ("dropped", c.dropped),
            ("interrupted", c.interrupted),
            ("chains_cut", c.chains_cut),
            ("namespaces", c.namespaces),
            ("namespaces_lost", c.namespaces_lost),
        ];
        members(out, &values);
        out.extend_from_slice(b"}}\n");
    }

    fn finish(&mut self, _: &mut Vec<u8>) {}
}

impl Json {
    /// Encodes the members with which all rows of a dump begin.
    fn dump(&mut self, dump: &Dump) {
        self.shared.clear();
        let out = &mut self.shared;
        out.extend_from_slice(b"{\"at_unix_ns\":");
        digits(out, dump.at_unix_ns);
        out.extend_from_slice(b",\"sequence\":");
        digits(out, dump.sequence);
        member_text(out, "host", &dump.host);
        member_text(out, "backend", dump.backend);
    }
}

fn write_row(row: &Row<'_>, out: &mut Vec<u8>) {
    member_plain(out, "kind", Kind::of(row.record).name());
    if row.seen != Seen::Open {
        member_plain(out, "seen", row.seen.name());
    }
    if row.socket != 0 {
        member_hex(out, "socket", row.socket);
    }
    row.record.visit(&mut Fields { out, ipv4: row.record.family == AF_INET });
    if !row.name.is_empty() {
        write_name(out, row.name);
    }
    member_text(out, "netns_name", row.netns);
    member_text(out, "cgroup", row.cgroup);
    member_text(out, "container", row.container);
    member_text(out, "pod", row.pod);
    write_owners(out, row.owners);
    if let Some(rates) = &row.rates {
        write_rates(out, rates);
    }
}

struct Fields<'a> {
    out: &'a mut Vec<u8>,
    ipv4: bool,
}

impl Visitor for Fields<'_> {
    #[inline(always)]
    fn uint(&mut self, number: u32, _: &'static str, value: u64) {
        if matches!(wire(number), Wire::Absent) {
            return;
        }
        field_key(self.out, number);
        match value_names::of(number) {
            _ if is_identifier(number) => hex(self.out, value),
            None => digits(self.out, value),
            Some(names) => write_named(self.out, names, value),
        }
    }

    #[inline(always)]
    fn bytes(&mut self, number: u32, _: &'static str, value: &[u8; 16]) {
        field_key(self.out, number);
        if wire(number) == Wire::Address {
            self.out.push(b'"');
            write_address(self.out, value, self.ipv4);
            self.out.push(b'"');
        } else {
            let length = value.iter().position(|b| *b == 0).unwrap_or(16);
            write_lossy(self.out, &value[..length]);
        }
    }
}

/// `,"NAME":` of a field of the record, in an array of fixed size: copying that needs neither a loop nor a call.
struct FieldKey {
    text: [u8; FieldKey::CAPACITY],
    length: usize,
}

impl FieldKey {
    const CAPACITY: usize = 32;

    const fn new(name: &[u8]) -> Self {
        let mut text = [0; Self::CAPACITY];
        (text[0], text[1], text[name.len() + 2], text[name.len() + 3]) = (b',', b'"', b'"', b':');
        let mut at = 0;
        while at < name.len() {
            text[at + 2] = name[at];
            at += 1;
        }
        Self { text, length: name.len() + 4 }
    }
}

/// Indexed by the number of the field.
static FIELD_KEYS: [FieldKey; 256] = {
    let mut keys = [const { FieldKey::new(b"") }; 256];
    let mut at = 0;
    while at < FIELDS.len() {
        keys[FIELDS[at].number as usize] = FieldKey::new(FIELDS[at].name.as_bytes());
        at += 1;
    }
    keys
};

#[inline(always)]
fn field_key(out: &mut Vec<u8>, number: u32) {
    let key = &FIELD_KEYS[number as usize];
    let begin = out.len();
    out.extend_from_slice(&key.text);
    out.truncate(begin + key.length);
}

#[inline(always)]
fn key(out: &mut Vec<u8>, name: &str) {
    out.reserve(name.len() + 24);
    out.extend_from_slice(b",\"");
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b"\":");
}

/// The name of a value, or the number itself where it has none.
fn write_named(out: &mut Vec<u8>, names: ValueNames, value: u64) {
    match names.name(value) {
        Some(name) => plain(out, name),
        None => digits(out, value),
    }
}

/// Writes a member whose text needs no escapes.
fn member_plain(out: &mut Vec<u8>, name: &str, value: &str) {
    key(out, name);
    plain(out, value);
}

fn plain(out: &mut Vec<u8>, value: &str) {
    out.push(b'"');
    out.extend_from_slice(value.as_bytes());
    out.push(b'"');
}

/// Writes a member unless its text is empty.
fn member_text(out: &mut Vec<u8>, name: &str, value: &str) {
    if !value.is_empty() {
        key(out, name);
        write_text(out, value);
    }
}

/// Writes an identifier as 16 hexadecimal digits.
fn member_hex(out: &mut Vec<u8>, name: &str, value: u64) {
    key(out, name);
    hex(out, value);
}

fn hex(out: &mut Vec<u8>, value: u64) {
    let mut text = *b"\"0000000000000000\"";
    for (at, digit) in text[1..17].iter_mut().enumerate() {
        *digit = b"0123456789abcdef"[(value >> (60 - 4 * at)) as usize & 15];
    }
    out.extend_from_slice(&text);
}

#[inline]
fn digits(out: &mut Vec<u8>, value: u64) {
    match value {
        // Half of all numbers have one digit.
        0..10 => out.push(b'0' + value as u8),
        10..100 => out.extend_from_slice(&[b'0' + (value / 10) as u8, b'0' + (value % 10) as u8]),
        _ => out.extend_from_slice(itoa::Buffer::new().format(value).as_bytes()),
    }
}

/// Writes the members of an object that are not 0.
fn members(out: &mut Vec<u8>, values: &[(&str, u64)]) {
    let mut first = true;
    for (name, value) in values.iter().filter(|(_, value)| *value != 0) {
        if !std::mem::take(&mut first) {
            out.push(b',');
        }
        out.push(b'"');
        out.extend_from_slice(name.as_bytes());
        out.extend_from_slice(b"\":");
        digits(out, *value);
    }
}

fn write_owners(out: &mut Vec<u8>, owners: &[Owner]) {
    if owners.is_empty() {
        return;
    }
    out.extend_from_slice(b",\"owners\":[");
    for (at, owner) in owners.iter().enumerate() {
        out.extend_from_slice(if at == 0 { b"{\"pid\":" } else { b",{\"pid\":" });
        digits(out, u64::from(owner.pid));
        out.extend_from_slice(b",\"fd\":");
        digits(out, u64::from(owner.fd));
        member_text(out, "command", &owner.command);
        out.push(b'}');
    }
    out.push(b']');
}

fn write_rates(out: &mut Vec<u8>, rates: &Rates) {
    out.extend_from_slice(b",\"rates\":{");
    let values = [
        ("interval_us", rates.interval_us),
        ("sent_bytes_per_s", rates.sent_bytes_per_s),
        ("received_bytes_per_s", rates.received_bytes_per_s),
        ("segs_out_per_s", rates.segs_out_per_s),
        ("segs_in_per_s", rates.segs_in_per_s),
        ("retrans", rates.retrans),
    ];
    members(out, &values);
    out.push(b'}');
}

fn write_address(out: &mut Vec<u8>, bytes: &[u8; 16], ipv4: bool) {
    use std::io::Write;
    if ipv4 {
        for (at, byte) in bytes[..4].iter().enumerate() {
            if at > 0 {
                out.push(b'.');
            }
            digits(out, u64::from(*byte));
        }
    } else {
        let address = Ipv6Addr::from(*bytes);
        // Writing to memory cannot fail.
        let _ = write!(out, "{address}");
    }
}

/// Writes the name of a UNIX socket, and also its bytes in hexadecimal if it is not UTF-8.
fn write_name(out: &mut Vec<u8>, name: &[u8]) {
    key(out, "name");
    write_lossy(out, name);
    if std::str::from_utf8(name).is_err() {
        key(out, "name_hex");
        out.push(b'"');
        for byte in name {
            out.extend_from_slice(&[
                b"0123456789abcdef"[usize::from(byte >> 4)],
                b"0123456789abcdef"[usize::from(byte & 15)],
            ]);
        }
        out.push(b'"');
    }
}

fn write_lossy(out: &mut Vec<u8>, bytes: &[u8]) {
    match std::str::from_utf8(bytes) {
        Ok(text) => write_text(out, text),
        Err(_) => write_text(out, &String::from_utf8_lossy(bytes)),
    }
}

/// Writes a string with its quotes (RFC 8259, section 7).
fn write_text(out: &mut Vec<u8>, text: &str) {
    out.push(b'"');
    let mut rest = text;
    while let Some(at) = rest.bytes().position(|byte| !matches!(byte, 0x20..0x7f) || matches!(byte, b'"' | b'\\')) {
        // The byte before it is ASCII, so a character begins there.
        let (plain, special) = rest.split_at(at);
        let c = special.chars().next().unwrap_or_default();
        out.extend_from_slice(plain.as_bytes());
        match c {
            '"' | '\\' => out.extend_from_slice(&[b'\\', c as u8]),
            '\n' => out.extend_from_slice(b"\\n"),
            '\t' => out.extend_from_slice(b"\\t"),
            c if is_printable(c) => out.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes()),
            c => out.extend_from_slice(json_escape(c).as_bytes()),
        }
        rest = &special[c.len_utf8()..];
    }
    out.extend_from_slice(rest.as_bytes());
    out.push(b'"');
}

//! The published schema of a row: the fields that it has beside those of the record, and the documents generated from both
//! lists: the protobuf schema, its variant for ClickHouse, and the reference of fields.
//!
//! Numbers below 200 belong to the record ([`FIELDS`]). A number is never reused.
use parshall_evidence::socket::{FIELDS, Field, SOCKETS_SCHEMA, Width};

/// Numbers of the fields in [`EXTRAS`].
#[allow(missing_docs)]
pub mod number {
    pub const AT_UNIX_NS: u32 = 200;
    pub const SEQUENCE: u32 = 201;
    pub const HOST: u32 = 202;
    pub const SOCKET: u32 = 203;
    pub const SEEN: u32 = 204;
    pub const BACKEND: u32 = 205;
    pub const NAME: u32 = 206;
    pub const NETNS_NAME: u32 = 207;
    pub const CGROUP: u32 = 208;
    pub const CONTAINER: u32 = 209;
    pub const POD: u32 = 210;
    pub const OWNERS: u32 = 211;
    pub const RATES: u32 = 212;
    pub const COMPLETENESS: u32 = 213;
}

/// The encoding of a field in protobuf.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wire {
    /// An integer of variable length (`uint32`, enums).
    Varint,
    /// Four bytes (`fixed32`).
    Fixed32,
    /// Eight bytes (`fixed64`).
    Fixed64,
    /// 4 bytes for IPv4, 16 for IPv6 (`bytes`).
    Address,
    /// Text (`string`).
    Text,
    /// Not written.
    Absent,
}

/// The encoding of each field of the record, by its number.
///
/// Fields of 32 and 64 bits have a fixed length: encoding sixty varints costs several times as much as copying them, and saves
/// a fifth of the bytes.
const WIRES: [Wire; 256] = {
    let mut wires = [Wire::Varint; 256];
    let mut at = 0;
    while at < FIELDS.len() {
        let field = &FIELDS[at];
        wires[field.number as usize] = match (field.number, field.width) {
            // The name itself is written instead of `name_at` and `name_len`; `reserved` is always 0.
            (114 | 129 | 163, _) => Wire::Absent,
            (172, _) => Wire::Text,
            (_, Width::Bytes16) => Wire::Address,
            (_, Width::U64) => Wire::Fixed64,
            (_, Width::U32) => Wire::Fixed32,
            (_, Width::U16 | Width::U8) => Wire::Varint,
        };
        at += 1;
    }
    wires
};

/// The encoding of a field; [`Wire::Varint`] for numbers that do not belong to the record.
#[inline(always)]
pub const fn wire(number: u32) -> Wire {
    if number < 256 { WIRES[number as usize] } else { Wire::Varint }
}

/// Whether the field is an address in memory, which text formats write in hexadecimal.
pub const fn is_identifier(number: u32) -> bool {
    number == 1
}

/// A field of a row that is not part of the record, or a field of a message in such a field.
#[derive(Debug, Clone, Copy)]
pub struct Extra {
    /// Its name, the same in every format.
    pub name: &'static str,
    /// Its number in the protobuf schema.
    pub number: u32,
    /// Its protobuf type.
    pub kind: &'static str,
    /// Its meaning, as the published schema prints it.
    pub doc: &'static str,
}

const fn extra(number: u32, kind: &'static str, name: &'static str, doc: &'static str) -> Extra {
    Extra { name, number, kind, doc }
}

/// The fields of a row that are not part of the record.
pub const EXTRAS: &[Extra] = &[
    extra(number::AT_UNIX_NS, "fixed64", "at_unix_ns", "when the dump began, in nanoseconds since 1970"),
    extra(number::SEQUENCE, "uint64", "sequence", "number of the dump, from 1 at the start of the process"),
    extra(number::HOST, "string", "host", "name of the host"),
    extra(
        number::SOCKET,
        "fixed64",
        "socket",
        "key of the socket: the same in every dump, and a new one when the kernel reuses its memory; 0: unknown",
    ),
    extra(number::SEEN, "Seen", "seen", "what happened to the socket since the last dump"),
    extra(number::BACKEND, "string", "backend", "the backend that read the sockets: walk, iter, netlink"),
    extra(number::NAME, "bytes", "name", "UNIX: name of the socket; abstract names begin with a zero byte"),
    extra(number::NETNS_NAME, "string", "netns_name", "name of the network namespace, if it has one"),
    extra(number::CGROUP, "string", "cgroup", "path of the control group"),
    extra(number::CONTAINER, "string", "container", "container, if the path of the control group names one"),
    extra(number::POD, "string", "pod", "pod, if the path of the control group names one"),
    extra(number::OWNERS, "repeated Owner", "owners", "descriptors of the socket"),
    extra(number::RATES, "Rates", "rates", "traffic of the socket since the last dump"),
    extra(
        number::COMPLETENESS,
        "Completeness",
        "completeness",
        "only in the last row of a dump, which describes no socket: how complete the dump is",
    ),
];

/// The fields of a descriptor.
pub const OWNER: &[Extra] = &[
    extra(1, "uint32", "pid", "process id in the initial PID namespace"),
    extra(2, "uint32", "fd", "the descriptor"),
    extra(3, "string", "command", "command of the process, of which the kernel stores 15 bytes"),
];

/// The fields of a socket's traffic since the last dump.
pub const RATES: &[Extra] = &[
    extra(1, "uint64", "interval_us", "time between the two dumps"),
    extra(2, "uint64", "sent_bytes_per_s", "data bytes sent per second, retransmissions included"),
    extra(3, "uint64", "received_bytes_per_s", "data bytes received per second"),
    extra(4, "uint64", "segs_out_per_s", "segments sent per second"),
    extra(5, "uint64", "segs_in_per_s", "segments received per second"),
    extra(6, "uint64", "retrans", "segments retransmitted since the last dump"),
];

/// The fields of [`Completeness`](parshall_evidence::socket::Completeness).
pub const COMPLETENESS: &[Extra] = &[
    extra(1, "uint64", "expected", "sockets that the backend found"),
    extra(2, "uint64", "emitted", "records that the backend returned"),
    extra(3, "uint64", "filtered", "sockets that the backend found and the selection excluded"),
    extra(4, "uint64", "torn", "records left out because the socket changed its identity while it was read"),
    extra(5, "uint64", "dropped", "records that did not fit a buffer, or could not be read"),
    extra(6, "uint64", "interrupted", "restarts of a hash chain or a message stream that changed while it was read"),
    extra(7, "uint64", "chains_cut", "hash chains longer than the limit, of which the rest was not read"),
    extra(8, "uint64", "namespaces", "namespaces that were read"),
    extra(9, "uint64", "namespaces_lost", "namespaces that ended or refused access while they were read"),
];

const SEEN: &[Extra] = &[
    extra(0, "", "SEEN_OPEN", "open; whether it was in the last dump is not known"),
    extra(1, "", "SEEN_NEW", "it was not in the last dump"),
    extra(2, "", "SEEN_CHANGED", "it was in the last dump, and has changed"),
    extra(3, "", "SEEN_SAME", "it was in the last dump, and has not changed"),
    extra(4, "", "SEEN_CLOSED", "it has closed; the counters are final"),
];

const ABOUT_ROWS: &str = "\
// A file or stream is a sequence of rows, each preceded by its length as a varint. Integers that are 0 and empty strings are
// left out. The last row of a dump describes no socket: it has the fields of the dump and `completeness`.
";

const ABOUT_ENVELOPE: &str = "\
// One message to a broker: rows of one dump. The last row of the last envelope of a dump has `completeness`.
";

/// The protobuf type of a field of the record.
fn kind(field: &Field) -> &'static str {
    match wire(field.number) {
        Wire::Fixed64 => "fixed64",
        Wire::Fixed32 => "fixed32",
        Wire::Address => "bytes",
        Wire::Text => "string",
        Wire::Varint | Wire::Absent => "uint32",
    }
}

fn message(text: &mut String, indent: &str, name: &str, fields: &[Extra]) {
    *text += &format!("\n{indent}message {name} {{\n");
    for field in fields {
        *text += &format!("{indent}  // {}\n{indent}  {} {} = {};\n", field.doc, field.kind, field.name, field.number);
    }
    *text += &format!("{indent}}}\n");
}

fn row(text: &mut String, indent: &str) {
    *text += &format!("{indent}message Row {{\n");
    let absent: Vec<&Field> = FIELDS.iter().filter(|f| wire(f.number) == Wire::Absent).collect();
    let numbers: Vec<String> = absent.iter().map(|f| f.number.to_string()).collect();
    let names: Vec<String> = absent.iter().map(|f| format!("\"{}\"", f.name)).collect();
    *text += &format!("{indent}  reserved {};\n", numbers.join(", "));
    *text += &format!("{indent}  reserved {};\n", names.join(", "));
    for field in FIELDS.iter().filter(|f| wire(f.number) != Wire::Absent) {
        *text += &format!("{indent}  // {}\n{indent}  {} {} = {};\n", field.doc, kind(field), field.name, field.number);
    }
    for field in EXTRAS {
        *text += &format!("{indent}  // {}\n{indent}  {} {} = {};\n", field.doc, field.kind, field.name, field.number);
    }
    *text += &format!("{indent}}}\n");
}

fn parts(text: &mut String) {
    message(text, "", "Owner", OWNER);
    message(text, "", "Rates", RATES);
    message(text, "", "Completeness", COMPLETENESS);
    *text += "\nenum Seen {\n";
    for value in SEEN {
        *text += &format!("  // {}\n  {} = {};\n", value.doc, value.name, value.number);
    }
    *text += "}\n";
}

fn head() -> String {
    format!(
        "// Schema {SOCKETS_SCHEMA}. Generated from the list of fields in crates/evidence/src/socket/record.rs; change it there.\n\
         syntax = \"proto3\";\n\npackage parshall.sockets.v1;\n\n"
    )
}

/// The published schema, `proto/parshall/sockets/v1/sockets.proto`.
pub fn proto() -> String {
    let mut text = head() + ABOUT_ROWS;
    row(&mut text, "");
    text += &format!("\n{ABOUT_ENVELOPE}message Envelope {{\n  repeated Row rows = 1;\n}}\n");
    parts(&mut text);
    text
}

/// The schema of the same bytes for ClickHouse, `proto/parshall/sockets/v1/clickhouse.proto`: its format ProtobufList finds
/// the row only inside a message named Envelope.
pub fn proto_clickhouse() -> String {
    let mut text = head() + ABOUT_ENVELOPE + "message Envelope {\n";
    row(&mut text, "  ");
    text += "  repeated Row rows = 1;\n}\n";
    parts(&mut text);
    text
}

const INTRODUCTION: &str = "\
A row describes one socket at one moment. Every format writes the same fields under the same names. An integer that is 0 and
an empty string mean that the field does not apply or that its group is not selected (`--fields`). Protobuf and JSON leave
them out; Parquet writes them, because its columns are not optional.

The number in the name (`parshall.sockets/1`, `parshall.sockets.v1`) rises when a field changes its meaning or is removed. New
fields do not change it: readers must ignore fields that they do not know. A protobuf number is never reused.

| format | content |
|---|---|
| JSON | one object per socket and line. Names for the values listed under *Named values*; addresses as text; `address` and `socket` as 16 hexadecimal digits; all other numbers exact, up to 2^64 - 1. The bytes of a UNIX name that is not UTF-8 are in `name_hex` too |
| protobuf | `proto/parshall/sockets/v1/sockets.proto`: a sequence of `Row`, each preceded by its length as a varint. To brokers: one `Envelope` per message |
| Parquet | one row per socket; integers as unsigned columns of their width, addresses as text, named values as in JSON, `owners` a list, `rates` optional. Several small row groups, zstd |

**The end of a dump** says how complete it is. JSON: a line with `completeness` and `schema`. Protobuf: a `Row` with
only the fields of the dump and `completeness`. Parquet: an entry `parshall.sockets/1/dump/SEQUENCE` of the file's
key-value metadata with that JSON line. Always: expected = emitted + filtered + torn + dropped.

JSON and Parquet have one more field: `kind`, which is `tcp`, `udp`, `mptcp` or `unix`.
";

/// The unit of a field, by its name.
fn unit(name: &str) -> &'static str {
    let units = [
        ("_bytes_per_s", "bytes/s"),
        ("_per_s", "1/s"),
        ("_ns", "ns"),
        ("_us", "us"),
        ("_ms", "ms"),
        ("_bytes", "bytes"),
    ];
    match name {
        "bytes_sent" | "bytes_acked" | "bytes_received" | "bytes_retrans" | "rcv_ssthresh" | "rcv_space"
        | "snd_wnd" | "rcv_wnd" | "snd_mss" | "rcv_mss" | "advmss" | "pmtu" => "bytes",
        "snd_cwnd" | "snd_ssthresh" | "unacked" | "sacked" | "lost" | "retrans" | "segs_out" | "segs_in"
        | "data_segs_out" | "data_segs_in" | "delivered" | "delivered_ce" | "received_ce" | "total_retrans"
        | "reordering" => "segments",
        _ if name.starts_with("mptcp_bytes") => "bytes",
        _ => units.iter().find(|(end, _)| name.ends_with(end)).map_or("", |(_, unit)| unit),
    }
}

fn extras(text: &mut String, title: &str, fields: &[Extra]) {
    *text += &format!("\n{title}\n\n| field | number | type | unit | meaning |\n|---|---|---|---|---|\n");
    for field in fields {
        *text += &format!(
            "| `{}` | {} | {} | {} | {} |\n",
            field.name,
            field.number,
            field.kind,
            unit(field.name),
            field.doc
        );
    }
}

/// The documented schema, `docs/sockets-schema.md`.
pub fn document() -> String {
    let mut text = format!("# The rows of `parshall sockets`: schema `{SOCKETS_SCHEMA}`\n\n");
    text += "<!-- Generated from the list of fields in crates/evidence/src/socket/record.rs by `make bless`. -->\n\n";
    text += INTRODUCTION;
    text +=
        "\n## Fields of the socket\n\n| field | number | type | unit | group | meaning |\n|---|---|---|---|---|---|\n";
    for field in FIELDS.iter().filter(|f| wire(f.number) != Wire::Absent) {
        text += &format!(
            "| `{}` | {} | {} | {} | {} | {} |\n",
            field.name,
            field.number,
            kind(field),
            unit(field.name),
            field.group.name(),
            field.doc
        );
    }
    extras(&mut text, "## Fields of the row", EXTRAS);
    extras(&mut text, "### `owners`", OWNER);
    extras(&mut text, "### `rates`", RATES);
    extras(&mut text, "### `completeness`", COMPLETENESS);
    text +=
        "\n## Named values\n\nJSON and Parquet write these names. A value without a name is written as a number.\n\n";
    text += "| field | values |\n|---|---|\n";
    for field in FIELDS {
        if let Some(names) = super::value_names::of(field.number) {
            let names: Vec<String> = names.all().iter().map(|(number, name)| format!("{number} {name}")).collect();
            text += &format!("| `{}` | {} |\n", field.name, names.join(", "));
        }
    }
    let seen: Vec<String> = SEEN.iter().map(|v| format!("{} {}", v.number, v.name.to_lowercase())).collect();
    text += &format!("| `seen` | {} (JSON and Parquet without `seen_`) |\n", seen.join(", "));
    text
}

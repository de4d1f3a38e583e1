//! Decodes the output of the encoders with independent decoders: a reader of protobuf by the text of the published schema, and
//! serde_json. Also compares the published documents, which `BLESS=1 cargo test -p parshall-sockets` rewrites.
mod contrib;
mod published;

use std::path::{Path, PathBuf};

use parshall_core::sockets::schema::{self, Wire, wire};
use parshall_core::sockets::{Dump, Row, value_names};
use parshall_core::text::is_printable;
use parshall_evidence::socket::{Completeness, FIELDS, SocketRecord, Visitor};
use proptest::prelude::*;

use self::published::{Message, Schema, messages};
use super::Encoder;
use super::json::Json;
use super::protobuf::Protobuf;
use super::text::{TableStyle, Text};
use crate::sink::delivery::Chunk;
use crate::sink::kafka::envelope::{EnvelopeBuilder, Framing};
use crate::testkit::peers::python;
use crate::testkit::samples::{self, Owned, any_row};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn golden(path: &Path, got: &str) {
    if std::env::var_os("BLESS").is_some() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, got).unwrap();
    }
    let want = std::fs::read_to_string(path).unwrap_or_default();
    assert!(want == got, "{} differs; BLESS=1 rewrites it. Got:\n{got}", path.display());
}

#[test]
fn the_published_documents_are_those_of_the_fields() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    // The tests that read the schema come here first, so that they see it rewritten.
    ONCE.call_once(documents);
}

fn documents() {
    let proto = root().join("proto/parshall/sockets/v1");
    golden(&proto.join("sockets.proto"), &schema::proto());
    golden(&proto.join("clickhouse.proto"), &schema::proto_clickhouse());
    golden(&root().join("docs/sockets-schema.md"), &schema::document());
}

fn published(file: &str) -> Schema {
    the_published_documents_are_those_of_the_fields();
    let path = root().join("proto/parshall/sockets/v1").join(file);
    Schema::parse(&std::fs::read_to_string(path).expect("the published schema"))
}

/// The fields of a record by their names.
fn fields(record: &SocketRecord) -> Vec<(u32, &'static str, u64, Option<[u8; 16]>)> {
    struct All(Vec<(u32, &'static str, u64, Option<[u8; 16]>)>);
    impl Visitor for All {
        fn uint(&mut self, number: u32, name: &'static str, value: u64) {
            self.0.push((number, name, value, None));
        }
        fn bytes(&mut self, number: u32, name: &'static str, value: &[u8; 16]) {
            self.0.push((number, name, 0, Some(*value)));
        }
    }
    let mut all = All(Vec::new());
    record.visit(&mut all);
    all.0.retain(|(number, ..)| wire(*number) != Wire::Absent);
    all.0
}

fn check_message(message: &Message<'_>, dump: &Dump, row: &Row<'_>) {
    assert_eq!(message.number("at_unix_ns"), dump.at_unix_ns);
    assert_eq!(message.number("sequence"), dump.sequence);
    assert_eq!(message.text("host"), dump.host.as_bytes());
    assert_eq!(message.text("backend"), dump.backend.as_bytes());
    let mut written = 0;
    for (number_, name, value, bytes) in fields(row.record) {
        match bytes {
            None => assert_eq!(message.number(name), value, "{name}"),
            Some(bytes) if wire(number_) == Wire::Address => {
                let length = if row.record.family == 2 { 4 } else { 16 };
                assert_eq!(message.text(name), &bytes[..length], "{name}");
            }
            Some(bytes) => {
                let length = bytes.iter().position(|b| *b == 0).unwrap_or(16);
                let ascii = bytes[..length].is_ascii();
                assert_eq!(message.text(name), if ascii { &bytes[..length] } else { &[] }, "{name}");
            }
        }
        written += usize::from(message.has(name));
    }
    let own = message.fields().filter(|field| field.number < 200).count();
    assert_eq!(own, written, "nothing but the fields of the record");
    assert_eq!(message.number("socket"), row.socket);
    assert_eq!(message.number("seen"), row.seen as u64);
    for (name, want) in [("name", row.name), ("netns_name", row.netns.as_bytes()), ("cgroup", row.cgroup.as_bytes())] {
        assert_eq!(message.text(name), want);
    }
    assert_eq!(message.text("container"), row.container.as_bytes());
    assert_eq!(message.text("pod"), row.pod.as_bytes());
    let owners = message.messages("owners");
    assert_eq!(owners.len(), row.owners.len());
    for (got, want) in owners.iter().zip(row.owners) {
        assert_eq!((got.number("pid"), got.number("fd")), (u64::from(want.pid), u64::from(want.fd)));
        assert_eq!(got.text("command"), want.command.as_bytes());
    }
    let rates = message.messages("rates");
    assert_eq!(rates.len(), usize::from(row.rates.is_some()));
    if let (Some(want), [got]) = (row.rates, rates.as_slice()) {
        assert_eq!(got.number("interval_us"), want.interval_us);
        assert_eq!(got.number("sent_bytes_per_s"), want.sent_bytes_per_s);
        assert_eq!(got.number("received_bytes_per_s"), want.received_bytes_per_s);
        assert_eq!(got.number("segs_out_per_s"), want.segs_out_per_s);
        assert_eq!(got.number("segs_in_per_s"), want.segs_in_per_s);
        assert_eq!(got.number("retrans"), want.retrans);
    }
}

fn check_end(message: &Message<'_>, dump: &Dump, want: &Completeness) {
    assert_eq!(message.number("sequence"), dump.sequence);
    assert_eq!(message.fields().count(), 5, "the identity of the dump and its account: {message:?}");
    let got = message.messages("completeness")[0];
    let json = serde_json::to_value(want).unwrap();
    for (name, value) in json.as_object().unwrap() {
        assert_eq!(got.number(name), value.as_u64().unwrap(), "{name}");
    }
}

#[test]
fn a_stream_is_read_by_the_published_schema() {
    let schema = published("sockets.proto");
    let dump = samples::dump();
    proptest!(|(rows in prop::collection::vec(any_row(), 0..5))| {
        let mut out = Vec::new();
        let mut encoder = Protobuf::default();
        let borrowed: Vec<Row<'_>> = rows.iter().map(Owned::row).collect();
        encoder.rows(&dump, &borrowed, &mut out);
        encoder.end(&dump, &samples::completeness(), &mut out);
        let messages = messages(&out);
        prop_assert_eq!(messages.len(), rows.len() + 1);
        for (bytes, row) in messages.iter().zip(&borrowed) {
            check_message(&schema.read("Row", bytes).expect("it decodes"), &dump, row);
        }
        let end = schema.read("Row", messages.last().unwrap()).expect("it decodes");
        check_end(&end, &dump, &samples::completeness());
    });
}

/// [`published`] reads what Google's compiler and library of protobuf read.
#[test]
#[ignore = "make test-all"]
fn google_reads_the_same_by_the_published_schema() {
    let schema = published("sockets.proto");
    let directory = tempfile::tempdir().unwrap();
    let (proto, stream) = (root().join("proto"), directory.path().join("stream"));
    let words = [
        proto.to_str().unwrap(),
        "parshall/sockets/v1/sockets.proto",
        "parshall.sockets.v1.Row",
        stream.to_str().unwrap(),
    ];
    let Some(mut reader) = python("tables", "protobuf_read.py", &words, "rows by Google's protobuf") else { return };
    let (dump, rows) = (samples::dump(), rows_of_all_kinds());
    let rows: Vec<Row<'_>> = rows.iter().map(Owned::row).collect();
    let (mut encoder, mut out) = (Protobuf::default(), Vec::new());
    encoder.rows(&dump, &rows, &mut out);
    encoder.end(&dump, &samples::completeness(), &mut out);
    std::fs::write(&stream, &out).unwrap();
    let output = reader.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let google: Vec<serde_json::Value> = output
        .stdout
        .split(|b| *b == b'\n')
        .filter(|l| !l.is_empty())
        .map(|l| serde_json::from_slice(l).unwrap())
        .collect();
    let ours: Vec<_> = messages(&out).iter().map(|m| schema.read("Row", m).expect("it decodes").json()).collect();
    assert_eq!((ours.len(), &google), (rows.len() + 1, &ours));
}

#[test]
fn every_field_has_its_number_in_both_schemas() {
    let (plain, nested) = (published("sockets.proto"), published("clickhouse.proto"));
    let (plain, nested) = (plain.fields("Row"), nested.fields("Envelope.Row"));
    for field in FIELDS.iter().filter(|f| wire(f.number) != Wire::Absent) {
        for row in [plain, nested] {
            let declared = row.iter().find(|f| f.name == field.name);
            assert_eq!(declared.map(|f| f.number), Some(field.number), "{}", field.name);
        }
    }
    assert_eq!(plain.len(), nested.len());
}

#[test]
fn envelopes_keep_their_cap_to_the_byte() {
    let schema = published("sockets.proto");
    let dump = samples::dump();
    proptest!(|(rows in prop::collection::vec(any_row(), 0..12), cap in 1024usize..3000, delimited: bool)| {
        let framing = if delimited { Framing::Delimited } else { Framing::Bare };
        let mut builder = EnvelopeBuilder::new(cap, framing);
        let mut chunks: Vec<Chunk> = Vec::new();
        for row in &rows {
            let (before, had) = (builder.wire_bytes(), chunks.len());
            builder.row(&dump, &row.row(), &mut |chunk| chunks.push(chunk));
            prop_assert!(builder.wire_bytes() <= cap);
            if let Some(given) = chunks.get(had) {
                prop_assert_eq!(given.bytes.len(), before, "what was promised is what is given");
            }
        }
        builder.end(&dump, &samples::completeness(), &mut |chunk| chunks.push(chunk));
        let mut kept = 0;
        for chunk in &chunks {
            prop_assert!(chunk.bytes.len() <= cap);
            let body = if delimited { messages(&chunk.bytes)[0] } else { &chunk.bytes };
            let message = schema.read("Envelope", body).expect("it decodes");
            let sockets = message.messages("rows").iter().filter(|row| !row.has("completeness")).count() as u64;
            prop_assert_eq!(u64::from(chunk.rows), sockets);
            kept += sockets;
        }
        prop_assert_eq!(kept + builder.too_large(), rows.len() as u64);
        prop_assert!(!chunks.is_empty());
    });
}

#[test]
fn a_row_larger_than_the_cap_is_refused_and_one_that_just_fits_is_not() {
    let dump = samples::dump();
    let row = Owned { record: samples::connection(1), name: vec![b'x'; 4000], ..Default::default() };
    let mut size = EnvelopeBuilder::new(1 << 20, Framing::Bare);
    size.row(&dump, &row.row(), &mut |_| panic!("nothing is full"));
    let needed = size.wire_bytes();
    for (cap, fits) in [(needed, 1), (needed - 1, 0)] {
        let mut builder = EnvelopeBuilder::new(cap, Framing::Bare);
        builder.row(&dump, &row.row(), &mut |_| panic!("nothing was there before"));
        assert_eq!((builder.rows(), builder.too_large()), (fits, u64::from(1 - fits)));
    }
}

#[test]
fn another_dump_begins_another_envelope() {
    let record = samples::connection(1);
    let mut chunks = Vec::new();
    let mut builder = EnvelopeBuilder::new(1 << 20, Framing::Bare);
    for sequence in [1, 1, 2] {
        let dump = Dump { sequence, ..samples::dump() };
        builder.row(&dump, &Row::bare(&record), &mut |chunk| chunks.push(chunk));
    }
    builder.flush(&mut |chunk| chunks.push(chunk));
    let got: Vec<_> = chunks.iter().map(|c| (c.sequence, c.rows)).collect();
    assert_eq!(got, [(1, 2), (2, 1)]);
}

#[test]
fn json_lines_are_json_whatever_the_host_calls_things() {
    let dump = samples::dump();
    proptest!(|(row in any_row())| {
        let mut out = Vec::new();
        Json::default().rows(&dump, &[row.row()], &mut out);
        prop_assert_eq!(out.iter().filter(|b| **b == b'\n').count(), 1, "one line");
        prop_assert!(out.iter().all(|b| *b >= 0x20 && *b != 0x7f || *b == b'\n'));
        let value: serde_json::Value = serde_json::from_slice(&out).expect("it is JSON");
        for (number, name, want, bytes) in fields(&row.record) {
            let got = &value[name];
            match value_names::of(number).and_then(|names| names.name(want)) {
                _ if bytes.is_some() => prop_assert!(got.is_string(), "{name}"),
                _ if name == "address" => prop_assert_eq!(got, &serde_json::json!(format!("{want:016x}"))),
                Some(word) => prop_assert_eq!(got, &serde_json::json!(word)),
                None => prop_assert_eq!(got.as_u64(), Some(want), "{}", name),
            }
        }
        let texts = ["netns_name", "cgroup", "container", "pod"];
        for (name, want) in texts.iter().zip(&row.texts) {
            prop_assert_eq!(value[name].as_str().unwrap_or_default(), want);
        }
        prop_assert_eq!(value["name"].as_str().unwrap_or_default(), String::from_utf8_lossy(&row.name));
        let hex: String = row.name.iter().map(|b| format!("{b:02x}")).collect();
        let is_text = std::str::from_utf8(&row.name).is_ok();
        prop_assert_eq!(value["name_hex"].as_str().unwrap_or_default(), if is_text { "" } else { &hex });
        let owners = value["owners"].as_array().map_or(0, Vec::len);
        prop_assert_eq!(owners, row.owners.len());
        for (at, owner) in row.owners.iter().enumerate() {
            let got = &value["owners"][at];
            prop_assert_eq!(got["pid"].as_u64(), Some(u64::from(owner.pid)));
            prop_assert_eq!(got["command"].as_str().unwrap_or_default(), &*owner.command);
        }
        prop_assert_eq!(value["rates"].is_object(), row.rates.is_some());
    });
}

#[test]
fn json_says_addresses_and_ends_with_the_account() {
    let dump = samples::dump();
    let mut out = Vec::new();
    let mut encoder = Json::default();
    encoder.rows(&dump, &[Row::bare(&samples::connection(258))], &mut out);
    encoder.end(&dump, &samples::completeness(), &mut out);
    let lines: Vec<serde_json::Value> =
        out.split(|b| *b == b'\n').filter(|l| !l.is_empty()).map(|l| serde_json::from_slice(l).unwrap()).collect();
    assert_eq!(lines[0]["local_address"], "10.0.0.1");
    assert_eq!(lines[0]["remote_address"], "10.1.1.2");
    assert_eq!((&lines[0]["kind"], &lines[0]["state"]), (&"tcp".into(), &"established".into()));
    assert_eq!(lines[0]["congestion"], "cubic");
    assert_eq!(lines[1]["schema"], "parshall.sockets/1");
    let account = &lines[1]["completeness"];
    assert_eq!((&account["expected"], &account["torn"]), (&12.into(), &1.into()));
    assert_eq!(account["filtered"], serde_json::Value::Null, "zeros are left out");
}

/// Rows of all kinds of socket, for tables.
fn rows_of_all_kinds() -> Vec<Owned> {
    let owner = |command: &str, pid| parshall_core::sockets::Owner { pid, fd: 5, command: command.into() };
    let connection = |seed| samples::connection(seed);
    let busy = Owned {
        record: SocketRecord { total_retrans: 1234, wqueue_bytes: 8640, ..connection(77) },
        owners: vec![owner("nginx", 812), owner("nginx", 813)],
        rates: Some(parshall_core::sockets::Rates {
            interval_us: 5_000_000,
            sent_bytes_per_s: 2048,
            ..Default::default()
        }),
        texts: ["blue".into(), "/kubepods/x".into(), "0123456789ab".into(), "pod-1".into()],
        ..Default::default()
    };
    let listener = SocketRecord {
        state: 10,
        accept_queue: 3,
        accept_limit: 4096,
        local_address: [0; 16],
        local_port: 443,
        family: 10,
        protocol: 6,
        ..Default::default()
    };
    let ipv6 = SocketRecord {
        family: 10,
        local_address: "2001:db8::1".parse::<std::net::Ipv6Addr>().unwrap().octets(),
        remote_address: "2001:db8:1:2:3:4:5:6".parse::<std::net::Ipv6Addr>().unwrap().octets(),
        ..connection(5)
    };
    let unix = SocketRecord { family: 1, state: 1, sock_type: 1, inode: 777, peer_inode: 778, ..Default::default() };
    vec![
        busy,
        Owned { record: listener, owners: vec![owner("evil\u{1b}[2J\n", 9)], ..Default::default() },
        Owned { record: ipv6, ..Default::default() },
        Owned { record: unix, name: b"\0bus/\xff\x1b[31m".to_vec(), ..Default::default() },
        Owned { record: SocketRecord { inode: 9, peer_inode: 0, ..unix }, ..Default::default() },
    ]
}

#[test]
fn tables_are_as_before() {
    let rows = rows_of_all_kinds();
    let rows: Vec<Row<'_>> = rows.iter().map(Owned::row).collect();
    for (name, wide) in [("table", false), ("wide", true)] {
        let mut out = Vec::new();
        let mut encoder = Text::new(TableStyle { wide, ..TableStyle::default() });
        encoder.rows(&samples::dump(), &rows, &mut out);
        encoder.end(
            &samples::dump(),
            &Completeness { emitted: 5, expected: 5, namespaces: 3, ..Default::default() },
            &mut out,
        );
        encoder.end(&samples::dump(), &samples::completeness(), &mut out);
        let page = String::from_utf8(out).expect("UTF-8");
        golden(&Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/golden/{name}.txt")), &page);
    }
}

#[test]
fn tables_carry_no_control_characters() {
    proptest!(|(rows in prop::collection::vec(any_row(), 1..4))| {
        let rows: Vec<Row<'_>> = rows.iter().map(Owned::row).collect();
        let mut out = Vec::new();
        let mut table = Text::new(TableStyle { wide: true, stream: true, owners: true });
        table.rows(&samples::dump(), &rows, &mut out);
        table.end(&samples::dump(), &samples::completeness(), &mut out);
        let page = String::from_utf8(out).expect("UTF-8");
        prop_assert!(page.chars().all(|c| c == '\n' || is_printable(c)), "{:?}", page);
        prop_assert!((2 + rows.len()..=3 + 2 * rows.len()).contains(&page.lines().count()));
    });
}

fn lines(out: &mut Vec<u8>) -> Vec<String> {
    String::from_utf8(std::mem::take(out)).expect("UTF-8").lines().map(str::to_owned).collect()
}

#[test]
fn a_dump_has_one_heading_however_many_portions_it_comes_in() {
    let narrow = SocketRecord { rtt_us: 0, congestion: [0; 16], ..samples::connection(1) };
    let wide = SocketRecord { rtt_us: 123_456, remote_address: samples::ipv4([192, 168, 100, 200]), ..narrow };
    let (mut table, mut out) = (Text::new(TableStyle::default()), Vec::new());
    for record in [&narrow, &wide, &narrow] {
        table.rows(&samples::dump(), &[Row::bare(record)], &mut out);
    }
    let account = Completeness { expected: 3, emitted: 3, namespaces: 1, ..Completeness::default() };
    table.end(&samples::dump(), &account, &mut out);
    let lines = lines(&mut out);
    assert_eq!(lines.len(), 5, "a heading, three rows and the account: {lines:#?}");
    let at = lines[0].find("CWND").expect("a column");
    for row in &lines[1..4] {
        assert!(row.as_bytes()[at + 3].is_ascii_digit(), "columns stand under their headings: {lines:#?}");
    }
    assert_eq!(lines[4], "3 sockets · walk · 1 namespace · complete · 2026-11-21T08:36:47.123Z");
}

#[test]
fn a_long_table_comes_in_portions_that_are_the_same_as_all_of_it() {
    let records: Vec<SocketRecord> = (0..3000).map(samples::connection).collect();
    let rows: Vec<Row<'_>> = records.iter().map(Row::bare).collect();
    let page = |in_portions: bool| {
        let (mut table, mut out, mut portions) =
            (Text::new(TableStyle { wide: true, ..TableStyle::default() }), Vec::new(), 0);
        rows.chunks(256).for_each(|rows| table.rows(&samples::dump(), rows, &mut out));
        assert!(out.is_empty(), "columns are not known before the end");
        while in_portions && table.drain(&mut out) {
            portions += 1;
        }
        table.end(&samples::dump(), &samples::completeness(), &mut out);
        (out, portions)
    };
    let ((whole, _), (pieces, portions)) = (page(false), page(true));
    assert!(whole == pieces && portions > 10, "{portions}");
    assert_eq!(lines(&mut whole.clone()).len(), 1 + 2 * 3000 + 1);
}

#[test]
fn a_stream_tells_the_time_and_what_closed_stands_under_the_heading_before() {
    let record = samples::connection(1);
    let (mut table, mut out) = (Text::new(TableStyle { stream: true, ..TableStyle::default() }), Vec::new());
    let account = |emitted| Completeness { expected: emitted, emitted, namespaces: 2, ..Completeness::default() };
    table.rows(&samples::dump(), &[Row::bare(&record)], &mut out);
    table.end(&samples::dump(), &account(1), &mut out);
    let first = lines(&mut out);
    assert!(first[0].starts_with("TIME          SEEN     KIND"), "{first:#?}");
    assert!(first[1].starts_with("08:36:47.123"), "{first:#?}");
    let closed = Row { seen: parshall_core::sockets::Seen::Closed, ..Row::bare(&record) };
    table.rows(&samples::dump(), &[closed, closed], &mut out);
    let between = lines(&mut out);
    assert!(between.len() == 2 && between[0].starts_with("08:36:47.123  closed   tcp"), "{between:#?}");
    table.end(&samples::dump(), &account(0), &mut out);
    let second = lines(&mut out);
    assert_eq!(second.len(), 1);
    assert!(second[0].starts_with("0 sockets · walk · 2 namespaces · complete · 2 closed since the last dump · "));
}

#[test]
fn any_address_of_ipv4_of_ipv6_and_of_both_look_different() {
    let listener = |family, ipv6_only| SocketRecord {
        family,
        ipv6_only,
        protocol: 6,
        state: 10,
        local_port: 80,
        ..Default::default()
    };
    let (mut table, mut out) = (Text::new(TableStyle { owners: true, ..TableStyle::default() }), Vec::new());
    for record in [listener(2, 0), listener(10, 1), listener(10, 0)] {
        table.rows(&samples::dump(), &[Row::bare(&record)], &mut out);
    }
    table.end(&samples::dump(), &samples::completeness(), &mut out);
    let lines = lines(&mut out);
    assert!(lines[0].ends_with("OWNER"), "who asked for owners sees that there are none: {lines:#?}");
    for (row, (local, remote)) in
        lines[1..].iter().zip([("0.0.0.0:80", "0.0.0.0:*"), ("[::]:80", "[::]:*"), ("*:80", "*:*")])
    {
        assert!(row.contains(&format!(" {local} ")) && row.ends_with(remote), "{local}: {lines:#?}");
    }
    assert!(lines.last().expect("an account").starts_with("3 of 10 sockets"), "{lines:#?}");
}

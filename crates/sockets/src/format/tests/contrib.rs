//! The files for users in `contrib/` follow from the published lists: rewritten with `BLESS=1`, and tried with the programs
//! that read them (ClickHouse by chdb, DuckDB).
use parshall_evidence::socket::Completeness;
use std::path::{Path, PathBuf};

use parshall_core::sockets::Row;
use parshall_core::sockets::schema::{self, EXTRAS, Extra, Wire, wire};
use parshall_core::sockets::value_names;
use parshall_evidence::socket::{FIELDS, Field, SOCKETS_SCHEMA, Width};

use crate::format::Encoder;
use crate::format::parquet::Parquet;
use crate::sink::kafka::envelope::{EnvelopeBuilder, Framing};
use crate::testkit::peers::python;
use crate::testkit::samples::{self, Owned};

fn contrib(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../contrib").join(name)
}

/// A column of a table: name and ClickHouse's type.
type Column = (String, String);

fn number(field: &Field) -> &'static str {
    match (wire(field.number), field.width) {
        (Wire::Address | Wire::Text, _) => "String",
        (_, Width::U64) => "UInt64",
        (_, Width::U32) => "UInt32",
        (_, Width::U16) => "UInt16",
        _ => "UInt8",
    }
}

fn tuple(parts: &[Extra]) -> String {
    let parts = parts.iter().map(|part| format!("{} {}", part.name, kind(part)));
    parts.collect::<Vec<_>>().join(", ")
}

fn kind(extra: &Extra) -> String {
    match extra.kind {
        "fixed64" | "uint64" => "UInt64".into(),
        "uint32" => "UInt32".into(),
        "Seen" => {
            "Enum8('SEEN_OPEN' = 0, 'SEEN_NEW' = 1, 'SEEN_CHANGED' = 2, 'SEEN_SAME' = 3, 'SEEN_CLOSED' = 4)".into()
        }
        "repeated Owner" => format!("Nested({})", tuple(schema::OWNER)),
        "Rates" => format!("Tuple({})", tuple(schema::RATES)),
        "Completeness" => format!("Tuple({})", tuple(schema::COMPLETENESS)),
        _ if matches!(extra.name, "host" | "backend" | "netns_name" | "cgroup" | "container" | "pod") => {
            "LowCardinality(String)".into()
        }
        _ => "String".into(),
    }
}

/// Columns in the shape of the protobuf schema.
fn messages() -> Vec<Column> {
    let extras = EXTRAS.iter().map(|extra| (extra.name.to_owned(), kind(extra)));
    let fields = FIELDS.iter().filter(|f| wire(f.number) != Wire::Absent);
    extras.chain(fields.map(|f| (f.name.to_owned(), number(f).to_owned()))).collect()
}

/// Columns in the shape of the Parquet files, where numbers with names are words.
fn files() -> Vec<Column> {
    let column = |extra: &Extra| match extra.name {
        "at_unix_ns" => (extra.name.to_owned(), "DateTime64(9, 'UTC')".to_owned()),
        "seen" => (extra.name.to_owned(), "LowCardinality(String)".to_owned()),
        "owners" => (extra.name.to_owned(), format!("Array(Tuple({}))", tuple(schema::OWNER))),
        _ => (extra.name.to_owned(), kind(extra)),
    };
    let extras = EXTRAS.iter().filter(|extra| extra.name != "completeness").map(column);
    let field = |f: &Field| {
        let word = value_names::of(f.number).is_some() || f.name == "congestion";
        (f.name.to_owned(), if word { "LowCardinality(String)".into() } else { number(f).to_owned() })
    };
    let fields = FIELDS.iter().filter(|f| wire(f.number) != Wire::Absent).map(field);
    extras.chain([("kind".into(), "LowCardinality(String)".into())]).chain(fields).collect()
}

fn list(columns: &[Column]) -> String {
    columns.iter().map(|(name, kind)| format!("    `{name}` {kind}")).collect::<Vec<_>>().join(",\n")
}

fn clickhouse() -> String {
    let (messages, files) = (messages(), files());
    let address = |name: &str| {
        format!(
            "if(length({name}_address) = 4, IPv4ToIPv6(reinterpretAsUInt32(reverse({name}_address))), \
             CAST(toFixedString({name}_address, 16), 'IPv6'))"
        )
    };
    let (local, remote) = (address("local"), address("remote"));
    let queued = list(&messages);
    let (messages, files) = (list(&messages), list(&files));
    format!(
        "\
-- ClickHouse tables for the output of `parshall sockets`, schema {SOCKETS_SCHEMA}.
-- Generated from the list of fields. A column has the name of its field, which is described in
-- proto/parshall/sockets/v1/sockets.proto.

-- Rows from Kafka. The last row of a dump is not a socket (its `family` is 0): it has the counts of the dump in `completeness`.
CREATE TABLE IF NOT EXISTS sockets
(
{messages},
    `at` DateTime64(9, 'UTC') MATERIALIZED fromUnixTimestamp64Nano(toInt64(at_unix_ns), 'UTC'),
    `local` IPv6 MATERIALIZED {local},
    `remote` IPv6 MATERIALIZED {remote}
)
ENGINE = MergeTree
PARTITION BY toDate(fromUnixTimestamp64Nano(toInt64(at_unix_ns), 'UTC'), 'UTC')
ORDER BY (host, netns, local_port, socket, at_unix_ns);

-- The consumer. parshall must write length-delimited messages, and proto/parshall/sockets/v1/clickhouse.proto must be in the
-- server's format_schema_path. A message has many rows.
CREATE TABLE IF NOT EXISTS sockets_queue
(
{queued}
)
ENGINE = Kafka
SETTINGS kafka_broker_list = 'localhost:9092',
    kafka_topic_list = 'sockets',
    kafka_group_name = 'clickhouse',
    kafka_format = 'ProtobufList',
    kafka_schema = 'clickhouse:Row';

CREATE MATERIALIZED VIEW IF NOT EXISTS sockets_feed TO sockets AS SELECT * FROM sockets_queue;

-- Rows of Parquet files, in which addresses and enumerations are text.
--   clickhouse-client --query \"INSERT INTO sockets_files FORMAT Parquet\" < FILE
CREATE TABLE IF NOT EXISTS sockets_files
(
{files}
)
ENGINE = MergeTree
PARTITION BY toDate(at_unix_ns)
ORDER BY (host, netns, local_port, socket, at_unix_ns);
"
    )
}

#[test]
fn the_tables_follow_the_published_fields() {
    let path = contrib("clickhouse/sockets.sql");
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(&path, clickhouse()).unwrap();
    }
    assert_eq!(std::fs::read_to_string(path).unwrap(), clickhouse(), "BLESS=1 rewrites it");
}

#[test]
fn the_dashboard_queries_only_existing_metrics() {
    use crate::sink::prometheus;
    use crate::sink::prometheus::self_metrics::Status;
    use parshall_core::sockets::aggregate::{Aggregator, Settings};

    let status = Status::new(None);
    status.aggregates(std::sync::Arc::new(Aggregator::new(Settings::default()).end(1, &Completeness::default())));
    let text = prometheus::text(&status).unwrap();
    let families: std::collections::HashSet<&str> =
        text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next()).collect();
    let dashboard = std::fs::read_to_string(contrib("grafana/parshall-sockets.json")).unwrap();
    let dashboard: serde_json::Value = serde_json::from_str(&dashboard).unwrap();
    let mut queried = 0;
    for panel in dashboard["panels"].as_array().unwrap() {
        for target in panel["targets"].as_array().into_iter().flatten() {
            let expression = target["expr"].as_str().unwrap();
            let words = expression.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
            for word in words.filter(|word| word.starts_with(prometheus::PREFIX)) {
                let family = ["_total", "_bucket", "_sum", "_count"].iter().find_map(|end| word.strip_suffix(end));
                assert!(families.contains(word) || family.is_some_and(|f| families.contains(f)), "{word}");
                queried += 1;
            }
        }
    }
    assert!(queried > 20, "{queried}");
}

/// ClickHouse (chdb) reads the same rows as protobuf and as Parquet into the tables of `contrib`; DuckDB reads the Parquet file.
#[test]
#[ignore = "make test-all"]
fn clickhouse_and_duckdb_read_every_row() {
    const ROWS: u64 = 20_000;
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    let words = [at.to_str().unwrap(), &ROWS.to_string()];
    let Some(mut reader) = python("tables", "tables_read.py", &words, "rows by ClickHouse and DuckDB") else { return };
    let dump = samples::dump();
    let owned: Vec<Owned> = (0..ROWS)
        .map(|n| Owned {
            record: samples::connection(n),
            socket: n + 1,
            texts: ["blue".into(), format!("/pods/{}", n % 7), String::new(), "é".into()],
            ..Default::default()
        })
        .collect();
    let rows: Vec<Row<'_>> = owned.iter().map(Owned::row).collect();
    let mut builder = EnvelopeBuilder::new(100_000, Framing::Delimited);
    let mut envelopes = Vec::new();
    for row in &rows {
        builder.row(&dump, row, &mut |chunk| envelopes.push(chunk.bytes));
    }
    builder.end(&dump, &samples::completeness(), &mut |chunk| envelopes.push(chunk.bytes));
    for (i, envelope) in envelopes.iter().enumerate() {
        std::fs::write(at.join(format!("{i}.message")), &**envelope).unwrap();
    }
    let (mut parquet, mut file) = (Parquet::default(), Vec::new());
    parquet.begin(&mut file);
    parquet.rows(&dump, &rows, &mut file);
    parquet.end(&dump, &samples::completeness(), &mut file);
    parquet.finish(&mut file);
    std::fs::write(at.join("rows.parquet"), file).unwrap();
    std::fs::write(at.join("clickhouse.proto"), schema::proto_clickhouse()).unwrap();
    std::fs::write(at.join("sockets.sql"), clickhouse()).unwrap();
    let output = reader.output().unwrap();
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{stdout}{stderr}");
    let sum: u64 = owned.iter().map(|o| o.record.bytes_sent).sum();
    for reader in ["clickhouse protobuf", "clickhouse parquet", "duckdb parquet"] {
        let line = format!("{reader}: {ROWS} rows, {ROWS} sockets, bytes_sent {sum}, host web-1, cubic");
        assert!(stdout.lines().any(|l| l == line), "{line} is not in\n{stdout}{stderr}");
    }
}

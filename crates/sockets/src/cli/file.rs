//! Reads the file of `parshall sockets stream -c`: TOML with a table for each sink.
use std::path::Path;

use parshall_core::text::position;
use parshall_host::error::UserError;

use crate::sink::SinkTables;
use crate::sink::request::SinkRequest;

/// Reads the file.
///
/// # Errors
/// The file cannot be read, or has an error; the first one is reported with its line and column.
pub fn read(path: &Path) -> Result<Vec<Box<dyn SinkRequest>>, UserError> {
    let text = std::fs::read_to_string(path).map_err(|error| {
        UserError::new(format!("cannot read {}: {error}", path.display()), "give the path of a TOML file of sinks")
    })?;
    parse(&text).map_err(|UserError { what, hint }| UserError::new(format!("{}: {what}", path.display()), hint))
}

/// The sinks of a file's text.
fn parse(text: &str) -> Result<Vec<Box<dyn SinkRequest>>, UserError> {
    let tables: SinkTables = toml::from_str(text).map_err(|error| {
        let (line, column) = position(text, error.span().map_or(0, |span| span.start));
        let (what, hint) = error.message().split_once('\n').unwrap_or((error.message(), "see docs/sockets.md, Sinks"));
        UserError::new(format!("{line}:{column} {what}"), hint)
    })?;
    tables.validate()
}

#[cfg(test)]
mod tests {
    use super::*;

    const FULL: &str = r#"
[stdout]
format = "json"

[[files]]
directory = "/var/lib/parshall/sockets"
format = "parquet"
rotate-size = "64MiB"
rotate-every = "10m"
keep = "1GiB"

[[kafka]]
brokers = ["kafka1:9093", "kafka2:9093"]
topic = "sockets"
compression = "lz4"
key = "namespace"
message-size = "500KB"
login = { mechanism = "scram-sha-512", user = "collector", password = "secret" }
tls = { ca = "/etc/ssl/kafka.pem" }
spool = { directory = "/var/spool/parshall", size = "1GiB" }

[[otlp]]
url = "http://collector:4318"
headers = { "X-Tenant" = "blue" }
series = { by = ["local_port", "cgroup"], max = 100 }

[prometheus]
listen = "[::1]:9999"
"#;

    #[test]
    fn every_sink_is_read() {
        let sinks = parse(FULL).unwrap();
        let said: Vec<String> = sinks.iter().map(|sink| format!("{sink:?}")).collect();
        for (sink, values) in said.iter().zip([
            &["Stdout", "Json"][..],
            &["rotate_bytes: 67108864", "keep_bytes: 1073741824", "format: Parquet"],
            &[
                "message_bytes: 500000",
                "compression: Lz4",
                "key: Namespace",
                "user: \"collector\"",
                "max_bytes: 1073741824",
            ],
            &["(\"X-Tenant\", \"blue\")", "series_max: 100", "chosen: [Cgroup, LocalPort]"],
            &["listen: [::1]:9999"],
        ]) {
            values.iter().for_each(|value| assert!(sink.contains(value), "{value}: {sink}"));
        }
        let kinds: Vec<&str> = sinks.iter().map(|sink| sink.kind()).collect();
        assert_eq!(kinds, ["stdout", "files", "kafka", "otlp", "prometheus"]);
        assert!(!said[2].contains("secret"));
    }

    #[test]
    fn errors_have_a_position_and_a_hint() {
        for (text, what, hint) in [
            ("", "it names no sink", "[[kafka]]"),
            ("[[files]]\nformat = \"json\"\n", "1:1 missing field `directory`", "docs"),
            ("[stdout]\nformat = \"jsn\"\n", "2:10 there is no format `jsn`", "json, protobuf"),
            ("[stdout]\nformat = \"json\"\ncolour = 1\n", "3:1 unknown field `colour`", "docs"),
            (
                "[[kafka]]\nbrokers = []\ntopic = \"t\"\nqueue = \"much\"\n",
                "4:9 `much` is not a number of bytes",
                "64KiB",
            ),
            ("[prometheus]\nlisten = \"here\"\n", "2:10 invalid socket address", "docs"),
            ("[prometheus]\nseries = { by = [\"colour\"] }\n", "there is no label `colour`", "cgroup"),
            ("[prometheus]\nseries = { v4-bits = 40 }\n", "`v4-bits` is 40", "0 to 32"),
            ("[[otlp]]\nurl = \"x\"\ntls = { cert = \"a\" }\n", "one of `cert` and `key`", "both"),
            ("[prometheus]\nprofile-token-file = \"/dev/null\"\n", "no token in /dev/null", "openssl"),
            ("[prometheus]\nprofile-token-file = \"/no/such\"\n", "cannot read the token", "may read"),
            ("[[kafka]\n", "1:9", ""),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.what.contains(what) && error.hint.contains(hint), "{text}: {error:?}");
        }
    }
}

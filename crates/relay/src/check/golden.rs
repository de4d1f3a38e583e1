//! Golden tests: the configurations in `tests/golden` and the output of `relay check` for them, which
//! `BLESS=1 cargo test -p parshall-relay` rewrites.
use std::path::{Path, PathBuf};

use parshall_core::relay::config::row::{Row, Takes};
use parshall_core::relay::config::{Global, Listener};

use super::super::load::{lines, understand};
use super::{json, text};
use parshall_host::output::TextStyle;

/// The configurations. Those whose names begin with `errors` have errors.
const FILES: [&str; 7] = [
    "full.toml",
    "plain.toml",
    "plain.conf",
    "errors.toml",
    "errors.conf",
    "errors-syntax.toml",
    "errors-combined.toml",
];

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden")
}

fn golden(name: &str, got: &str) {
    let path = folder().join(name);
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(&path, got).unwrap();
    }
    let want = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(want == got, "{name} differs; BLESS=1 rewrites it. Got:\n{got}");
}

#[test]
fn output_for_configurations() {
    for name in FILES {
        let loaded = understand(&std::fs::read(folder().join(name)).unwrap());
        assert_eq!(loaded.config.is_err(), name.starts_with("errors"), "{name}: {:#?}", loaded.config);
        let page = match &loaded.config {
            Ok(config) => text::text(Path::new(name), config, TextStyle { width: 100, ..TextStyle::default() }),
            Err(errors) => lines(Path::new(name), errors),
        };
        assert!(page.lines().all(|line| line == line.trim_end()), "{page}");
        golden(&format!("{name}.txt"), &page);
        golden(&format!("{name}.json"), &json::json(Path::new(name), &loaded).unwrap());
    }
}

#[test]
fn an_error_in_bytes_that_are_not_utf8_has_a_position() {
    let loaded = understand(b"# x\nthr\xc3\xa9\xff");
    let error = &loaded.config.unwrap_err()[0];
    assert_eq!((error.line, error.column), (2, 5));
}

#[test]
fn control_characters_of_a_file_are_not_printed() {
    let loaded = understand(b"[[listener]]\nlisten = \"\\u001b[2J\\u202e:1\"\n\"\\u001b\\u202ek\" = 1\n");
    let page = lines(Path::new("a\u{1b}b"), &loaded.config.unwrap_err());
    assert!(page.chars().all(|c| c == '\n' || parshall_core::text::is_printable(c)), "{page:?}");
}

/// The lines before the parts of docs/relay.md that are made from the table of settings.
const PROCESS: &str = "# How the process runs. All of these may be left out.\n";
const LISTENER: &str = "# Its settings. A value without a remark about its default is the default.\n";

fn reference<S: 'static>(rows: impl Iterator<Item = &'static Row<S>>) -> String {
    let (mut out, mut table) = (String::new(), "");
    for row in rows {
        if row.table() != table {
            table = row.table();
            out.push_str(&format!("\n[listener.{table}]\n"));
        }
        let mut help = row.help.to_owned();
        if let Takes::Names(names) = row.field.takes() {
            help.push_str(&format!("; one of {}", names.join(", ")));
        }
        if !row.more.default.is_empty() {
            help.push_str(&format!("; default: {}", row.more.default));
        }
        if row.more.at_start {
            help.push_str("; not changed by a reload");
        }
        // The listener of the example is one for TCP.
        let line = if row.more.udp_only.is_some() { format!("# {}", row.line()) } else { row.line() };
        out.push_str(&format!("{line:<34} # {help}\n"));
    }
    out
}

#[test]
fn the_document_has_the_table_of_settings() {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/relay.md");
    let document = std::fs::read_to_string(&path).unwrap();
    let mut wanted = document.clone();
    for (marker, end, text) in [
        (PROCESS, "\n# Defaults of all listeners", reference(Global::ROWS.iter())),
        (LISTENER, "\n# A range is one listener", reference(Listener::rows())),
    ] {
        let start = wanted.find(marker).expect("the marker") + marker.len();
        let end = start + wanted[start..].find(end).expect("what follows");
        wanted.replace_range(start..end, &text);
    }
    if std::env::var_os("BLESS").is_some() {
        return std::fs::write(&path, &wanted).unwrap();
    }
    assert!(document == wanted, "docs/relay.md differs from the table of settings; BLESS=1 rewrites it");
}

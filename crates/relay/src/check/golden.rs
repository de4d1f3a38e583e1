//! Golden tests: the files in `tests/golden` and what is said of them. `BLESS=1 cargo test -p parshall-relay` rewrites
//! the answers.
use std::path::{Path, PathBuf};

use super::super::load::{lines, understand};
use super::{json, text};
use parshall_host::output::TextStyle;

/// Those with mistakes are named so.
const FILES: [&str; 7] = [
    "full.toml",
    "plain.toml",
    "plain.conf",
    "mistakes.toml",
    "mistakes.conf",
    "mistakes-syntax.toml",
    "mistakes-combined.toml",
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
fn files_and_what_is_said_of_them() {
    for name in FILES {
        let loaded = understand(&std::fs::read(folder().join(name)).unwrap());
        assert_eq!(loaded.config.is_err(), name.starts_with("mistakes"), "{name}: {:#?}", loaded.config);
        let page = match &loaded.config {
            Ok(config) => text::text(Path::new(name), config, TextStyle { color: false, width: 100 }),
            Err(mistakes) => lines(Path::new(name), mistakes),
        };
        assert!(page.lines().all(|line| line == line.trim_end()), "{page}");
        golden(&format!("{name}.txt"), &page);
        golden(&format!("{name}.json"), &json::json(Path::new(name), &loaded).unwrap());
    }
}

#[test]
fn a_file_that_is_not_text_has_a_place_too() {
    let loaded = understand(b"# x\nthr\xc3\xa9\xff");
    let mistake = &loaded.config.unwrap_err()[0];
    assert_eq!((mistake.line, mistake.column), (2, 5));
}

#[test]
fn a_hostile_file_cannot_move_the_cursor() {
    let loaded = understand(b"[[listener]]\nlisten = \"\\u001b[2J:1\"\n\"\\u001bk\" = 1\n");
    let page = lines(Path::new("a\u{1b}b"), &loaded.config.unwrap_err());
    assert!(!page.chars().any(|c| c.is_control() && c != '\n'), "{page:?}");
}

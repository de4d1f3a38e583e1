//! Golden tests: every sample at three widths. `BLESS=1 cargo test -p parshall-diagnose` rewrites the files.
use parshall_core::report::Detail;
use parshall_core::text::is_printable;
use parshall_host::output::{Charset, TextStyle, columns};
use serde_json::Value;

use super::{json, markdown, text};
use crate::testkit::golden::golden;
use crate::testkit::reports;

const BOTH: [Detail; 2] = [Detail::Short, Detail::Full];

fn style(width: usize) -> TextStyle {
    TextStyle { width, ..TextStyle::default() }
}

fn fits(name: &str, width: usize, page: &str) {
    for line in page.lines() {
        assert!(columns(line) <= width, "{name} at {width}: {line}");
        assert_eq!(line, line.trim_end(), "{name} at {width} has trailing space");
    }
}

#[test]
fn text_at_three_widths() {
    for (name, report) in reports::all() {
        for width in [80, 100, 120] {
            let page = text(&report, style(width), Detail::Short);
            fits(name, width, &page);
            golden(&format!("{name}.{width}.txt"), &page);
        }
        let page = text(&report, style(100), Detail::Full);
        fits(name, 100, &page);
        golden(&format!("{name}.full.txt"), &page);
    }
}

#[test]
fn ascii_where_there_is_no_more() {
    for (name, report) in reports::all() {
        let ascii = TextStyle { charset: Charset::Ascii, ..style(80) };
        for detail in BOTH {
            let page = text(&report, ascii, detail);
            assert!(page.is_ascii(), "{name}: {page}");
            fits(name, 80, &page);
        }
        golden(&format!("{name}.ascii.txt"), &text(&report, ascii, Detail::Short));
    }
}

#[test]
fn markdown_of_every_sample() {
    for (name, report) in reports::all() {
        golden(&format!("{name}.md"), &markdown(&report, Detail::Full));
        assert!(markdown(&report, Detail::Short).len() < markdown(&report, Detail::Full).len(), "{name}");
    }
}

#[test]
fn no_text_of_a_report_is_markup() {
    let hostile = "<img src=x> [a](b) **b** `c` @someone #1 |x|\u{1b}";
    for (name, report) in reports::all() {
        let document = serde_json::to_value(&report).unwrap();
        with_each_string(&document, hostile, &mut |changed| {
            let Ok(report) = serde_json::from_value::<parshall_evidence::Report>(changed.clone()) else { return };
            let page = markdown(&report, Detail::Full);
            for line in page.lines() {
                // Text between backticks is code, whatever it is.
                let outside: String = if line.contains("`` ") { String::new() } else { line.to_owned() };
                for wrong in ["<img", "[a](", " **b**", "@someone", " #1", "|x|", "\u{1b}"] {
                    assert!(!outside.contains(wrong), "{name}: {line}");
                }
            }
        });
    }
}

#[test]
fn json_is_stable_and_reads_back() {
    for (name, report) in reports::all() {
        let document = json(&report).unwrap();
        let back: parshall_evidence::Report = serde_json::from_str(&document).unwrap();
        assert_eq!(back, report);
        golden(&format!("{name}.json"), &document);
    }
}

#[test]
fn colour_adds_nothing_but_escapes() {
    for (_, report) in reports::all() {
        let plain = text(&report, style(100), Detail::Full);
        let mut colored = text(&report, TextStyle { color: true, ..style(100) }, Detail::Full);
        assert_ne!(plain, colored);
        for code in ["\x1b[2m", "\x1b[1m", "\x1b[1;32m", "\x1b[1;33m", "\x1b[1;31m", "\x1b[0m"] {
            colored = colored.replace(code, "");
        }
        assert_eq!(plain, colored);
    }
}

/// Calls `with` for each document that differs from this one in one of its strings.
fn with_each_string(document: &Value, hostile: &str, with: &mut impl FnMut(&Value)) {
    fn paths(value: &Value, path: String, found: &mut Vec<String>) {
        match value {
            Value::String(_) => found.push(path),
            Value::Array(items) => items.iter().enumerate().for_each(|(i, v)| paths(v, format!("{path}/{i}"), found)),
            Value::Object(map) => map.iter().for_each(|(key, v)| paths(v, format!("{path}/{key}"), found)),
            _ => {}
        }
    }
    let mut found = Vec::new();
    paths(document, String::new(), &mut found);
    for path in found {
        let mut changed = document.clone();
        *changed.pointer_mut(&path).unwrap() = Value::String(hostile.to_owned());
        with(&changed);
    }
}

#[test]
fn no_text_of_a_report_moves_the_cursor_or_reverses_a_line() {
    let hostile = "x\u{1b}]0;title\u{7}\u{1b}[2J\ra\u{202e}txt.exe\u{2028}\u{9b}";
    let mut checked = 0;
    for (name, report) in reports::all() {
        let document = serde_json::to_value(&report).unwrap();
        with_each_string(&document, hostile, &mut |changed| {
            // Words of a fixed list are none that a host chooses.
            let Ok(report) = serde_json::from_value::<parshall_evidence::Report>(changed.clone()) else { return };
            checked += 1;
            let texts = BOTH.map(|detail| text(&report, style(100), detail));
            for page in texts.into_iter().chain([json(&report).unwrap()]) {
                let wrong = page.lines().find(|line| !line.chars().all(is_printable));
                assert_eq!(wrong, None, "{name}");
            }
        });
    }
    assert!(checked > 200, "{checked}");
}

#[test]
fn an_empty_report_prints_at_any_width() {
    for width in [1, 20, 60] {
        let page = text(&reports::empty(), TextStyle { color: true, ..style(width) }, Detail::Full);
        assert!(page.contains("INSUFFICIENT EVIDENCE"));
    }
}

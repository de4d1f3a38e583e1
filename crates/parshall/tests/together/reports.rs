//! Reports over all recordings: short ones fit a screen, all fit the width, and none contradicts itself.
use parshall_core::report::Detail;
use parshall_diagnose::report;
use parshall_evidence::Status;
use parshall_host::output::{Charset, TextStyle, columns};

use crate::judged::{self, Judged};

const WIDTH: usize = 100;

/// The most lines of a short report.
fn most(status: Status) -> usize {
    match status {
        Status::Healthy | Status::AtCapacity => 24,
        Status::Cause | Status::NoDominantCause | Status::InsufficientEvidence => 40,
    }
}

/// The longest word decides where a line cannot be broken: a command or a symbol is copied as a whole.
fn fits(line: &str) -> bool {
    let command = line.contains(":  parshall ");
    columns(line) <= WIDTH || command || line.split_whitespace().any(|word| columns(word) > WIDTH / 2)
}

#[test]
fn short_reports_fit_a_screen_and_all_fit_the_width() {
    let style = TextStyle { width: WIDTH, ..TextStyle::default() };
    let ascii = TextStyle { charset: Charset::Ascii, ..style };
    let mut longest = [("", 0, String::new()), ("", 0, String::new())];
    let mut wrong = Vec::new();
    for Judged { name, report, .. } in judged::all() {
        let status = report.verdict.status;
        let short = report::text(report, style, Detail::Short);
        let (kind, at) = if status == Status::Cause { ("cause", 1) } else { ("no cause", 0) };
        let lines = short.lines().count();
        if lines > longest[at].1 {
            longest[at] = (kind, lines, name.clone());
        }
        if lines > most(status) {
            wrong.push(format!("{name}: {lines} lines\n{short}"));
        }
        for page in [short, report::text(report, style, Detail::Full)] {
            wrong.extend(page.lines().filter(|line| !fits(line)).map(|line| format!("{name}: too wide: {line}")));
        }
        if !report::text(report, ascii, Detail::Full).is_ascii() {
            wrong.push(format!("{name}: not ASCII"));
        }
    }
    println!("longest reports: {longest:?}");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(longest.iter().all(|(_, lines, _)| *lines > 0), "reports of both kinds: {longest:?}");
}

#[test]
fn no_report_denies_what_is_on_record() {
    for Judged { name, report, .. } in judged::all() {
        let blind = &report.blind;
        assert!(!blind.iter().any(|note| note.contains("contradicts itself")), "{name}: {blind:#?}");
    }
}

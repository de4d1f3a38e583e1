//! The binary from outside: what goes to stdout and stderr, and with which exit code.
#![allow(clippy::unwrap_used)] // A panic in a test is its report.

use std::io::Read;
use std::process::{Command, Output, Stdio};

fn parshall(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_parshall")).args(arguments).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[test]
fn help_and_version_are_data() {
    for arguments in [&["--help"][..], &["--version"], &["attach", "--help"], &["run", "-h"], &["doctor", "--help"]] {
        let out = parshall(arguments);
        assert_eq!(out.status.code(), Some(0), "{arguments:?}");
        assert!(!out.stdout.is_empty() && out.stderr.is_empty(), "{arguments:?}");
    }
}

#[test]
fn wrong_usage_is_two_lines_on_stderr_and_code_2() {
    let cases = [
        &[][..],
        &["atach"],
        &["attach"],
        &["attach", "--port", "http"],
        &["run"],
        &["show"],
        &["attach", "--all", "--for", "1"],
    ];
    for arguments in cases {
        let out = parshall(arguments);
        let stderr = text(&out.stderr);
        assert_eq!(out.status.code(), Some(2), "{arguments:?}: {stderr}");
        assert!(out.stdout.is_empty());
        let lines: Vec<&str> = stderr.lines().collect();
        assert_eq!(lines.len(), 2, "{stderr}");
        assert!(lines[0].starts_with("error: ") && lines[1].starts_with("hint: "), "{stderr}");
    }
}

#[test]
fn a_failure_is_code_1() {
    let out = parshall(&["show", "/nonexistent/case.json"]);
    assert_eq!(out.status.code(), Some(1));
    assert!(text(&out.stderr).starts_with("error: "), "{}", text(&out.stderr));
    assert!(text(&out.stderr).lines().count() == 2);
}

#[test]
fn a_reader_that_leaves_is_no_error() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_parshall"))
        .args(["doctor", "--format", "json"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let mut stderr = String::new();
    child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0), "{stderr}");
    assert_eq!(stderr, "");
}

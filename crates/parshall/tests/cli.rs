//! Black-box tests of the binary: stdout, stderr and exit codes.
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
fn help_and_version_go_to_stdout() {
    for arguments in [
        &["--help"][..],
        &["--version"],
        &["attach", "--help"],
        &["help", "attach"],
        &["run", "-h"],
        &["doctor", "--help"],
    ] {
        let out = parshall(arguments);
        assert_eq!(out.status.code(), Some(0), "{arguments:?}");
        assert!(!out.stdout.is_empty() && out.stderr.is_empty(), "{arguments:?}");
    }
}

#[test]
fn an_unknown_log_level_is_wrong_usage() {
    let bin = env!("CARGO_BIN_EXE_parshall");
    let out = Command::new(bin).args(["-v", "lab", "list"]).env("PARSHALL_LOG", "loud").output().unwrap();
    let stderr = text(&out.stderr);
    assert_eq!((out.status.code(), stderr.lines().count()), (Some(2), 2), "{stderr}");
    assert!(stderr.starts_with("error: PARSHALL_LOG: `loud` is not a level\nhint: "), "{stderr}");
    let quiet = Command::new(bin).args(["lab", "list", "-qq"]).output().unwrap();
    assert_eq!((quiet.status.code(), quiet.stderr.len()), (Some(0), 0));
}

#[test]
fn wrong_usage_is_two_lines_on_stderr_and_exit_code_2() {
    let cases = [
        &[][..],
        &["atach"],
        &["attach"],
        &["attach", "--port", "http"],
        &["run"],
        &["lab", "run"],
        &["help", "atach"],
        &["attach", "--all", "--for", ""],
        &["sockets", "stream", "--count", "0"],
        &["show"],
        &["attach", "--all", "--for", "1"],
        &["relay"],
        &["relay", "127.0.0.1:9000"],
        &["relay", "check"],
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
fn a_failure_is_exit_code_1() {
    let out = parshall(&["show", "/nonexistent/case.json"]);
    assert_eq!(out.status.code(), Some(1));
    assert!(text(&out.stderr).starts_with("error: "), "{}", text(&out.stderr));
    assert!(text(&out.stderr).lines().count() == 2);
}

#[test]
fn a_closed_stdout_pipe_is_no_error() {
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

#[test]
fn relay_check_describes_a_configuration_or_locates_its_errors() {
    let scratch = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = scratch.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let right = file("right", "127.0.0.1 9000 10.0.0.2 9001\n");
    let out = parshall(&["relay", "check", &right]);
    assert_eq!((out.status.code(), text(&out.stderr)), (Some(0), String::new()));
    assert!(text(&out.stdout).contains("tcp 127.0.0.1:9000 → 10.0.0.2:9001"), "{}", text(&out.stdout));

    let wrong = file("wrong", "[[listener]]\nlisten = \"127.0.0.1:9000\"\ntarget = \"10.0.0.2\"\nenginge = \"copy\"\n");
    let out = parshall(&["relay", "check", &wrong]);
    assert_eq!((out.status.code(), text(&out.stdout)), (Some(2), String::new()));
    let stderr = text(&out.stderr);
    let lines: Vec<&str> = stderr.lines().collect();
    assert_eq!(lines.len(), 4, "{stderr}");
    assert!(lines[0].starts_with(&format!("{wrong}:3:10: ")) && lines[1].starts_with("hint: "), "{stderr}");
    assert!(lines[2].starts_with(&format!("{wrong}:4:1: ")) && lines[3].contains("`engine`"), "{stderr}");
    // `parshall relay` reports the same errors.
    let out = parshall(&["relay", "-c", &wrong]);
    assert_eq!((out.status.code(), text(&out.stderr)), (Some(2), stderr));

    let out = parshall(&["relay", "check", &wrong, "--format", "json"]);
    let document: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!((out.status.code(), text(&out.stderr)), (Some(2), String::new()));
    assert_eq!(document["errors"].as_array().unwrap().len(), 2);

    let missing = scratch.path().join("missing");
    for path in [missing.to_str().unwrap(), scratch.path().to_str().unwrap()] {
        let out = parshall(&["relay", "check", path]);
        assert_eq!(out.status.code(), Some(1));
        assert!(text(&out.stderr).starts_with(&format!("error: cannot read {path}")), "{}", text(&out.stderr));
        assert_eq!(text(&out.stderr).lines().count(), 2);
    }
}

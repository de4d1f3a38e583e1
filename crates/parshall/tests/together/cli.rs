//! Black-box tests of the binary: stdout, stderr and exit codes.

use std::io::Read;
use std::process::{Command, Stdio};

use crate::common::{PARSHALL, Scratch, finish, parshall};

#[test]
fn help_and_version_go_to_stdout() {
    for arguments in [
        &[][..],
        &["--help"],
        &["--version"],
        &["attach", "--help"],
        &["help", "attach"],
        &["run", "-h"],
        &["doctor", "--help"],
    ] {
        let done = parshall(arguments);
        assert_eq!((done.code, done.stderr.as_str()), (Some(0), ""), "{arguments:?}");
        assert!(!done.stdout.is_empty(), "{arguments:?}");
    }
}

#[test]
fn an_unknown_log_level_is_wrong_usage() {
    let done = finish(Command::new(PARSHALL).args(["-v", "lab", "list"]).env("PARSHALL_LOG", "loud"));
    assert_eq!((done.code, done.error_and_hint().0), (Some(2), "error: PARSHALL_LOG: `loud` is not a level"));
    let quiet = parshall(&["lab", "list", "-qq"]);
    assert_eq!((quiet.code, quiet.stderr.as_str()), (Some(0), ""));
}

#[test]
fn wrong_usage_is_two_lines_on_stderr_and_exit_code_2() {
    let cases = [
        &["lab"][..],
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
        let done = parshall(arguments);
        done.error_and_hint();
        assert_eq!(done.code, Some(2), "{arguments:?}: {done:?}");
    }
}

#[test]
fn a_failure_is_exit_code_1() {
    let done = parshall(&["show", "/nonexistent/case.json"]);
    done.error_and_hint();
    assert_eq!(done.code, Some(1));
}

#[test]
fn a_closed_stdout_pipe_is_no_error() {
    let mut child = Command::new(PARSHALL)
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
    let scratch = Scratch::new();
    let file = |name: &str, text: &str| {
        let path = scratch.file(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let right = file("right", "127.0.0.1 9000 10.0.0.2 9001\n");
    let done = parshall(&["relay", "check", &right]);
    assert_eq!((done.code, done.stderr.as_str()), (Some(0), ""));
    assert!(done.stdout.contains("tcp 127.0.0.1:9000 → 10.0.0.2:9001"), "{done:?}");

    let wrong = file("wrong", "[[listener]]\nlisten = \"127.0.0.1:9000\"\ntarget = \"10.0.0.2\"\nenginge = \"copy\"\n");
    let done = parshall(&["relay", "check", &wrong]);
    assert_eq!((done.code, done.stdout.as_str()), (Some(2), ""));
    let lines: Vec<&str> = done.stderr.lines().collect();
    assert_eq!(lines.len(), 4, "{done:?}");
    assert!(lines[0].starts_with(&format!("{wrong}:3:10: ")) && lines[1].starts_with("hint: "), "{done:?}");
    assert!(lines[2].starts_with(&format!("{wrong}:4:1: ")) && lines[3].contains("`engine`"), "{done:?}");
    // `parshall relay` reports the same errors.
    let run = parshall(&["relay", "-c", &wrong]);
    assert_eq!((run.code, run.stderr), (Some(2), done.stderr));

    let done = parshall(&["relay", "check", &wrong, "--format", "json"]);
    let document: serde_json::Value = serde_json::from_str(&done.stdout).unwrap();
    assert_eq!((done.code, done.stderr.as_str()), (Some(2), ""));
    assert_eq!(document["errors"].as_array().unwrap().len(), 2);

    for path in [scratch.file("missing"), scratch.file("")] {
        let path = path.to_str().unwrap();
        let done = parshall(&["relay", "check", path]);
        assert!(done.error_and_hint().0.starts_with(&format!("error: cannot read {path}")), "{done:?}");
        assert_eq!(done.code, Some(1));
    }
}

//! `run`: a command from its start to its end, what passes through, and which exit code comes back.
#![allow(clippy::unwrap_used)] // A panic in a test is its report.

mod common;

use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

use common::{PARSHALL, Scratch, begin, has, parshall, service_py, verdict};
use parshall_evidence::Status;

const CAUSE: &str = "nagle-delayed-ack";

/// Server and client are children of the command and hold all of its sockets.
fn forks(rounds: &str) -> Vec<String> {
    ["python3", &service_py(), "fork", "--rounds", rounds].map(str::to_owned).to_vec()
}

fn run(options: &[&str], command: &[String]) -> common::Done {
    let command = command.iter().map(String::as_str);
    let arguments: Vec<&str> =
        ["run"].into_iter().chain(options.iter().copied()).chain(["--"]).chain(command).collect();
    parshall(&arguments)
}

fn sh(script: &str) -> Vec<String> {
    ["sh", "-c", script].map(str::to_owned).to_vec()
}

#[test]
fn in_text_the_output_of_the_command_comes_first() {
    let what = "run: sockets of children";
    if !has(&["python3"], what) || !common::btf(what) {
        return;
    }
    let _alone = common::alone();
    let done = run(&[], &forks("40"));
    assert_eq!(done.code, Some(0), "{done:?}");
    let said = done.stdout.find("both children are done\n").expect("stdout of the command");
    let told = done.stdout.find("parshall · ").expect("the report");
    assert!(said < told, "{}", done.stdout);
    assert!(done.stdout.contains("(nagle-delayed-ack, confidence "), "{}", done.stdout);
}

#[test]
fn in_json_stdout_is_one_document() {
    let what = "run --format json";
    if !has(&["python3"], what) || !common::btf(what) {
        return;
    }
    let _alone = common::alone();
    let done = run(&["--format", "json"], &forks("40"));
    let report = done.report();
    assert!(done.stderr.contains("both children are done\n"), "{done:?}");
    assert_eq!(verdict(&report), CAUSE, "{report:#?}");
    // 40 requests of 40 ms each and the start of Python: from beginning to end, and no longer.
    assert!(report.window_s > 1.4 && report.window_s < done.took.as_secs_f64(), "{}", report.window_s);
    assert!(report.subject.pids.len() == 1, "{:?}", report.subject);
}

#[test]
fn a_command_that_cannot_be_run_is_a_mistake() {
    let scratch = Scratch::new();
    let text = scratch.file("no-program");
    std::fs::write(&text, "just text").unwrap();
    for command in ["no-such-command-here", "/no/such/path", "/tmp", text.to_str().unwrap()] {
        for format in ["text", "json"] {
            let done = run(&["--format", format], &[command.to_owned()]);
            let (error, _) = done.mistake();
            assert!(error.contains(command), "{error}");
        }
    }
}

#[test]
fn a_command_that_ends_at_once() {
    let _alone = common::alone();
    for (command, format) in [("true", "text"), ("true", "json"), ("exit 3", "json"), ("kill -9 $$", "json")] {
        let done = run(&["--format", format], &sh(command));
        assert_eq!(done.orderly().code, Some(0), "{done:?}");
        if format == "json" {
            let report = done.report();
            assert_eq!(report.verdict.status, Status::InsufficientEvidence, "{report:#?}");
        } else {
            assert!(done.stdout.starts_with("parshall · "), "{}", done.stdout);
        }
    }
}

#[test]
fn the_command_gets_its_arguments_and_its_stdin_as_they_are() {
    let _alone = common::alone();
    let done = run(&[], &["printf", "%s|", "a b", "--for", "", "$HOME", "--"].map(str::to_owned));
    assert!(done.stdout.starts_with("a b|--for||$HOME|--|"), "{done:?}");
    let done = run(&[], &sh("cat; echo end of stdin; echo to stderr >&2"));
    assert!(done.stdout.starts_with("end of stdin\n"), "{done:?}");
    assert!(done.stderr.starts_with("to stderr\n"), "{done:?}");
}

#[test]
fn the_window_may_be_shorter_than_the_command() {
    let _alone = common::alone();
    let done = run(&["--for", "500ms", "--format", "json"], &sh("sleep 3; echo the end >&2"));
    let report = done.report();
    assert!((0.4..2.5).contains(&report.window_s), "{}", report.window_s);
    // It stays in the foreground until the command has ended.
    assert!(done.took > Duration::from_secs(3) && done.stderr.contains("the end"), "{done:?}");
}

#[test]
fn ctrl_c_ends_both_and_still_reports() {
    let what = "run: Ctrl-C";
    if !has(&["python3"], what) || !common::btf(what) {
        return;
    }
    let _alone = common::alone();
    let script = format!("python3 {} fork", service_py());
    // A terminal sends the signal to every process of the foreground group.
    // What was started in the background of a shell without job control ignores the signal, and so would all of these.
    let mut command = Command::new("env");
    command.args(["--default-signal=INT", PARSHALL, "run", "--format", "json", "--", "sh", "-c", &script]);
    command.process_group(0);
    let running = begin(&mut command);
    let group = format!("-{}", running.pid());
    common::until("the command runs", || !running.children().is_empty());
    std::thread::sleep(Duration::from_millis(2500));
    assert!(Command::new("kill").args(["-INT", "--", &group]).status().unwrap().success());
    let done = running.finish();
    let report = done.report();
    assert_eq!(verdict(&report), CAUSE, "{report:#?}");
    assert!(report.window_s > 1.0 && report.window_s < 5.0, "{}", report.window_s);
}

#[test]
fn the_command_is_gone_when_the_observation_fails() {
    let _alone = common::alone();
    let scratch = Scratch::new();
    let began = scratch.file("began");
    let save = scratch.file("no-such-directory/case.json");
    let script = format!("touch {}", began.display());
    let done = run(&["--save", save.to_str().unwrap(), "--format", "json"], &sh(&script));
    // The mistake is found before anything is started, or the report is printed all the same: no work is lost.
    assert_eq!(done.code, Some(1), "{done:?}");
    assert!(done.stderr.contains("error: ") && done.stderr.contains("hint: "), "{done:?}");
    assert!(!began.exists() || !done.stdout.is_empty(), "the command ran and its report is lost: {done:?}");
}

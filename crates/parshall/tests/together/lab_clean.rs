//! A testbed removes everything that it made: at its end, at an interrupt, and after a kill at the start of the next run.
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use crate::common::{PARSHALL, Running, begin, children, until};

const NETNS: &str = "/run/netns";

fn root() -> bool {
    parshall_testkit::root("testbeds that leave nothing behind")
}

fn start(args: &[&str]) -> Running {
    begin(Command::new(PARSHALL).arg("lab").args(args))
}

fn namespaces(pid: u32) -> Vec<String> {
    let prefix = format!("parshall-{pid}-");
    let Ok(entries) = std::fs::read_dir(NETNS) else { return Vec::new() };
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    names.filter(|name| name.starts_with(&prefix)).collect()
}

#[test]
fn a_normal_end_leaves_nothing() {
    if !root() {
        return;
    }
    let lab = start(&["wire", "veth", "--for", "1s"]);
    let pid = lab.pid();
    until("two namespaces", || namespaces(pid).len() == 2);
    assert_eq!(lab.finish().code, Some(0));
    assert_eq!(namespaces(pid), Vec::<String>::new());
}

#[test]
fn an_interrupt_leaves_nothing() {
    if !root() {
        return;
    }
    for name in ["-INT", "-TERM"] {
        let lab = start(&["wire", "delay", "--delay-ms", "1", "--for", "100s"]);
        let pid = lab.pid();
        until("two namespaces", || namespaces(pid).len() == 2);
        lab.signal(name);
        lab.finish();
        assert_eq!(namespaces(pid), Vec::<String>::new(), "{name}");
    }
}

#[test]
fn an_interrupted_run_leaves_nothing_and_prints_nothing() {
    if !root() {
        return;
    }
    // With `ends_loads` the loads get the signal too, as from Ctrl-C at a terminal.
    for (name, code, ends_loads) in [("-INT", 130, false), ("-INT", 130, true), ("-TERM", 143, false)] {
        let mut command = Command::new(PARSHALL);
        let lab = begin(command.args(["lab", "run", "packet-loss", "--for", "100s"]).process_group(0));
        let of = lab.pid();
        until("two namespaces and both loads", || namespaces(of).len() == 2 && children(of).len() == 2);
        let loads = children(of);
        let whom = if ends_loads { format!("-{of}") } else { of.to_string() };
        assert!(Command::new("kill").args([name, "--", &whom]).status().expect("kill runs").success());
        let done = lab.finish();
        // This run removes the remains of a test beside this one, and says so.
        let said: Vec<&str> = done.stderr.lines().filter(|line| !line.contains("note: lab: removed what")).collect();
        assert_eq!((done.code, said), (Some(code), vec![]), "{name}");
        assert_eq!(namespaces(of), Vec::<String>::new());
        assert!(loads.iter().all(|pid| !Path::new(&format!("/proc/{pid}")).exists()));
    }
}

#[test]
fn the_next_run_removes_the_leftovers_of_a_killed_one() {
    if !root() {
        return;
    }
    let mut lab = start(&["wire", "delay", "--delay-ms", "1", "--for", "100s"]);
    until("two namespaces", || namespaces(lab.pid()).len() == 2);
    lab.end();
    assert_eq!(start(&["wire", "veth", "--for", "100ms"]).finish().code, Some(0));
    assert_eq!(namespaces(lab.pid()), Vec::<String>::new());
}

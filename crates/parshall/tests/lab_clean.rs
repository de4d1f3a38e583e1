//! A testbed removes everything that it made: at its end, at an interrupt, and after a kill at the start of the next run.
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const PARSHALL: &str = env!("CARGO_BIN_EXE_parshall");
const NETNS: &str = "/run/netns";

fn root() -> bool {
    parshall_testkit::root("testbeds that leave nothing behind")
}

fn start(args: &[&str]) -> Child {
    let command = &mut Command::new(PARSHALL);
    command.arg("lab").args(args).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("the binary runs")
}

fn namespaces(pid: u32) -> Vec<String> {
    let prefix = format!("parshall-{pid}-");
    let Ok(entries) = std::fs::read_dir(NETNS) else { return Vec::new() };
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    names.filter(|name| name.starts_with(&prefix)).collect()
}

fn children(pid: u32) -> Vec<u32> {
    let processes =
        std::fs::read_dir("/proc").expect("/proc").filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let parent = |pid: u32| -> Option<u32> {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        stat.get(stat.rfind(')')? + 2..)?.split(' ').nth(1)?.parse().ok()
    };
    processes.filter_map(|name| name.parse().ok()).filter(|&child| parent(child) == Some(pid)).collect()
}

fn until(what: &str, condition: impl Fn() -> bool) {
    let give_up = Instant::now() + Duration::from_secs(10);
    while !condition() {
        assert!(Instant::now() < give_up, "waited in vain: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn signal(child: &Child, signal: &str) {
    let status = Command::new("kill").args([signal, &child.id().to_string()]).status().expect("kill runs");
    assert!(status.success());
}

#[test]
fn a_normal_end_leaves_nothing() {
    if !root() {
        return;
    }
    let mut lab = start(&["wire", "veth", "--for", "1s"]);
    until("two namespaces", || namespaces(lab.id()).len() == 2);
    assert!(lab.wait().expect("it ends").success());
    assert_eq!(namespaces(lab.id()), Vec::<String>::new());
}

#[test]
fn an_interrupt_leaves_nothing() {
    if !root() {
        return;
    }
    for name in ["-INT", "-TERM"] {
        let mut lab = start(&["wire", "delay", "--delay-ms", "1", "--for", "30s"]);
        until("two namespaces", || namespaces(lab.id()).len() == 2);
        signal(&lab, name);
        lab.wait().expect("it ends");
        assert_eq!(namespaces(lab.id()), Vec::<String>::new(), "{name}");
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
        command.args(["lab", "run", "packet-loss", "--for", "30s"]).process_group(0);
        let mut lab = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("the binary runs");
        until("two namespaces and both loads", || namespaces(lab.id()).len() == 2 && children(lab.id()).len() == 2);
        let (loads, of) = (children(lab.id()), lab.id());
        let whom = if ends_loads { format!("-{of}") } else { of.to_string() };
        assert!(Command::new("kill").args([name, "--", &whom]).status().expect("kill runs").success());
        let done = lab.wait().expect("it ends");
        let mut stderr = String::new();
        lab.stderr.take().expect("piped").read_to_string(&mut stderr).expect("text");
        // What a test beside this one left behind, this run removes, and says so.
        let said: Vec<&str> = stderr.lines().filter(|line| !line.contains("note: lab: removed what")).collect();
        assert_eq!((done.code(), said), (Some(code), vec![]), "{name}");
        assert_eq!(namespaces(of), Vec::<String>::new());
        assert!(loads.iter().all(|pid| !Path::new(&format!("/proc/{pid}")).exists()));
    }
}

#[test]
fn the_next_run_removes_the_leftovers_of_a_killed_one() {
    if !root() {
        return;
    }
    let mut lab = start(&["wire", "delay", "--delay-ms", "1", "--for", "30s"]);
    until("two namespaces", || namespaces(lab.id()).len() == 2);
    lab.kill().expect("killed");
    lab.wait().expect("reaped");
    let next = start(&["wire", "veth", "--for", "100ms"]).wait().expect("it ends");
    assert!(next.success());
    assert_eq!(namespaces(lab.id()), Vec::<String>::new());
}

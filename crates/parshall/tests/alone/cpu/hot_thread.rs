//! One thread that is never idle while others are: a fault where it has the connections to itself, and none where work moves
//! between threads or all of them are busy. Needs root, a C compiler and Go.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;

use crate::common::{self, Running, Scratch, btf, built, has, parshall, undisturbed, verdict};
use parshall_evidence::Report;

fn start(words: &[&str]) -> (Running, u16) {
    common::serve_with(Command::new(words[0]).args(&words[1..]))
}

/// Asks on `connections` connections without a pause, until the service ends.
fn load(port: u16, connections: usize) {
    for _ in 0..connections {
        let mut client = TcpStream::connect(("127.0.0.1", port)).unwrap();
        client.set_nodelay(true).unwrap();
        std::thread::spawn(
            move || while client.write_all(&[1; 64]).is_ok() && client.read_exact(&mut [0; 64]).is_ok() {},
        );
    }
}

fn attach(port: u16) -> Report {
    parshall(&["attach", "--port", &port.to_string(), "--for", "1500ms", "--format", "json"]).report()
}

fn ready(what: &str) -> bool {
    has(&["gcc"], what) && btf(what)
}

#[test]
fn one_loop_that_has_all_connections() {
    if !ready("a hot thread") {
        return;
    }
    let scratch = Scratch::new();
    let program = built(&scratch, &["gcc", "-O2", "-pthread"], "loops.c");
    let (server, port) = start(&[&program, "2", "0", "2000"]);
    load(port, 8);
    // Where others use the CPUs, requests wait for these most of all.
    let Some(found) = undisturbed("a hot thread", || {
        let reports = (0..3).map(|_| attach(port));
        reports.inspect(|report| println!("{}", report.verdict.summary)).find(|r| verdict(r) == "hot-thread")
    }) else {
        return;
    };
    assert_eq!(found.expect("one of three").findings[0].place.pid, Some(server.pid()));
}

#[test]
fn loops_that_share_the_connections() {
    if !ready("the twin of a hot thread") {
        return;
    }
    let scratch = Scratch::new();
    let program = built(&scratch, &["gcc", "-O2", "-pthread"], "loops.c");
    for loops in common::some_of(&["2", "1"], 1) {
        let (_server, port) = start(&[&program, loops, "1", "1000"]);
        load(port, 8);
        let report = attach(port);
        assert_ne!(verdict(&report), "hot-thread", "{loops} loops: {report:#?}");
    }
}

#[test]
fn work_that_moves_between_threads() {
    let what = "a runtime that moves work";
    if !has(&["go"], what) || !btf(what) {
        return;
    }
    let scratch = Scratch::new();
    let program = built(&scratch, &["go", "build"], "echo.go");
    for limit in common::some_of(&["GOMAXPROCS=2", "GOMAXPROCS=1"], 1) {
        let (_server, port) = start(&["env", limit, &program, "1000"]);
        load(port, 8);
        let report = attach(port);
        assert_ne!(verdict(&report), "hot-thread", "{limit}: {report:#?}");
    }
}

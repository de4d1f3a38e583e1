//! `relay top` and the control socket.
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::Command;

use super::kit::{Relay, Service, TIMEOUT, exchange, listener, until, unused_address};
use crate::common::{PARSHALL, Scratch, finish, has};

#[test]
fn without_a_terminal_one_snapshot_is_printed() {
    let service = Service::start("s");
    let listen = unused_address();
    let relay = Relay::start(&listener("web", listen, &[service.address]));
    exchange(listen).unwrap();
    let control = relay.control();
    let done = finish(Command::new(PARSHALL).args(["relay", "top", "--control"]).arg(&control));
    assert_eq!((done.code, done.stderr.as_str()), (Some(0), ""), "{done:?}");
    assert!(done.stdout.contains(&format!("pid {}", relay.pid())), "{}", done.stdout);
    let row = done.stdout.lines().find(|l| l.starts_with("web")).unwrap();
    assert_eq!(row.split_whitespace().nth(1), Some("0"), "none is open: {row}");
    assert!(!done.stdout.contains('\u{1b}'));
    assert_eq!(std::fs::metadata(&control).unwrap().permissions().mode() & 0o777, 0o600);
}

#[test]
fn in_a_terminal_the_view_is_updated_until_q() {
    if !has(&["script"], "relay top in a terminal") {
        return;
    }
    let service = Service::start("s");
    let relay = Relay::start(&listener("web", unused_address(), &[service.address]));
    let shell = format!(
        "(sleep 2.5; printf q) | script -qec '{PARSHALL} relay top --control {}' /dev/null",
        relay.control().display()
    );
    let done = finish(Command::new("sh").args(["-c", &shell]).env("TERM", "xterm"));
    assert_eq!(done.code, Some(0), "{done:?}");
    assert!(done.stdout.contains("\u{1b}[?1049h") && done.stdout.contains("\u{1b}[?1049l"), "{done:?}");
    assert!(done.stdout.matches("LISTENER").count() >= 2, "it was drawn again: {done:?}");
}

#[test]
fn without_a_relay_top_is_an_error() {
    let scratch = Scratch::new();
    let path = scratch.file("nothing");
    let done = finish(Command::new(PARSHALL).args(["relay", "top", "--control"]).arg(&path));
    assert_eq!(done.code, Some(1));
    let (error, hint) = done.error_and_hint();
    assert!(error.contains("no relay answers at") && hint.contains("path"), "{error}\n{hint}");
}

#[test]
fn a_reply_without_an_end_is_given_up() {
    let scratch = Scratch::new();
    let path = scratch.file("endless");
    let listener = UnixListener::bind(&path).unwrap();
    // Another user's process may answer in a directory of that user. It stops when the reader closes.
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            while stream.write_all(&[b' '; 65_536]).is_ok() {}
        }
    });
    // On a busy host the time for a reply may be over before so many bytes have come.
    until("the reply is longer than it may be", || {
        let done = finish(Command::new(PARSHALL).args(["relay", "top", "--control"]).arg(&path));
        assert_eq!(done.code, Some(1), "{done:?}");
        let (error, _) = done.error_and_hint();
        error.contains("the reply is longer than")
    });
}

#[test]
fn the_control_socket_is_removed_at_the_end() {
    let service = Service::start("s");
    let mut relay = Relay::start(&listener("web", unused_address(), &[service.address]));
    assert!(relay.control().exists());
    relay.signal("TERM");
    assert_eq!(relay.end(), Some(0));
    assert!(!relay.control().exists());
}

#[test]
fn the_socket_answers_requests_and_refuses_invalid_ones() {
    let service = Service::start("s");
    let relay = Relay::start(&listener("web", unused_address(), &[service.address]));
    let ask = |question: &str| {
        let mut stream = UnixStream::connect(relay.control()).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        // The relay answers a line that is too long, and closes, while the rest of it is still being written.
        let written = stream.write_all(question.as_bytes());
        assert!(written.is_ok() || question.len() > 65_536, "{written:?}");
        let mut answer = String::new();
        BufReader::new(stream).read_line(&mut answer).unwrap();
        answer
    };
    let snapshot: serde_json::Value = serde_json::from_str(&ask("{\"ask\":\"snapshot\"}\n")).unwrap();
    assert_eq!(snapshot["schema"], "parshall.relay/1");
    assert_eq!(snapshot["listeners"][0]["name"], "web");
    assert!(ask("{\"ask\":\"nonsense\"}\n").contains("error"));
    assert!(ask(&"x".repeat(100_000)).contains("error"), "a line without an end");
}

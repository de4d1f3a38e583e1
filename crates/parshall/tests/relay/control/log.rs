//! Log lines of ended connections.
use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::process::{Child, Command};
use std::time::Duration;

use super::kit::{Relay, Service, exchange, get, listener, signal, until, unused_address, value};
use crate::common::PARSHALL;

fn lines(path: &std::path::Path) -> Vec<serde_json::Value> {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.lines().map(|l| serde_json::from_str(l).unwrap_or_else(|e| panic!("{l}: {e}"))).collect()
}

#[test]
fn a_line_for_each_connection_in_a_file_that_can_be_rotated() {
    let service = Service::start("s");
    let (listen, dead) = (unused_address(), unused_address());
    let scratch = crate::common::Scratch::new();
    let log = scratch.file("log");
    let config = format!(
        "log = \"{}\"\n{}{}",
        log.display(),
        listener("web", listen, &[service.address]),
        listener("dead", dead, &[unused_address()])
    );
    let relay = Relay::start(&config);
    exchange(listen).unwrap();
    assert!(exchange(dead).is_err());
    until("two lines", || lines(&log).len() == 2);
    let all = lines(&log);
    let web = all.iter().find(|l| l["listener"] == "web").unwrap();
    assert_eq!(web["schema"], "parshall.relay-log/1");
    assert_eq!((&web["reason"], &web["protocol"]), (&"finished".into(), &"tcp".into()));
    assert_eq!((&web["up"]["bytes"], &web["down"]["bytes"]), (&6.into(), &8.into()));
    assert_eq!(web["target"], service.address.to_string());
    assert!(web["client"].as_str().unwrap().starts_with("127.") && web["duration_ms"].as_f64().unwrap() > 0.0);
    assert_eq!(web["up"]["engines"], serde_json::json!(["copy"]));
    let dead = all.iter().find(|l| l["listener"] == "dead").unwrap();
    assert_eq!((&dead["reason"], dead.get("target")), (&"connect-refused".into(), None));
    let rotated = scratch.file("log.1");
    std::fs::rename(&log, &rotated).unwrap();
    relay.reload(&config);
    exchange(listen).unwrap();
    until("a line in the new file", || lines(&log).len() == 1);
    assert_eq!(lines(&rotated).len(), 2);
}

#[test]
fn lines_that_a_full_disk_loses_are_counted_and_traffic_goes_on() {
    let service = Service::start("s");
    let (listen, metrics) = (unused_address(), unused_address());
    let config = format!("log = \"/dev/full\"\nmetrics = \"{metrics}\"\n{}", listener("a", listen, &[service.address]));
    let relay = Relay::start(&config);
    for _ in 0..20 {
        assert_eq!(exchange(listen).unwrap(), "s");
    }
    until("the lines are counted", || {
        value(&get(metrics, "/metrics").unwrap().1, &["relay_log_lines_lost_total"]) == 20.0
    });
    assert_eq!(relay.count("cannot write the log"), 1, "reported once");
}

#[test]
fn a_log_whose_reader_does_not_read_does_not_hold_up_the_end() {
    let scratch = crate::common::Scratch::new();
    let fifo = scratch.file("log");
    if !Command::new("mkfifo").arg(&fifo).status().is_ok_and(|status| status.success()) {
        return parshall_testkit::skip("a log that is a FIFO", "needs mkfifo");
    }
    // A reader that never reads, such as a log shipper that was stopped.
    let _reader = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(&fifo).unwrap();
    let (dead, metrics) = (unused_address(), unused_address());
    let head = format!("drain = \"1s\"\nlog = \"{}\"\nmetrics = \"{metrics}\"\n", fifo.display());
    let mut relay = Relay::start(&(head + &listener("dead", dead, &[unused_address()])));
    // Each has a line of some 300 bytes; a pipe takes 65,536.
    for _ in 0..600 {
        assert!(exchange(dead).is_err());
    }
    relay.signal("TERM");
    assert_eq!(relay.end(), Some(0), "{}", relay.stderr());
    assert_eq!(relay.count("cannot write the log: its reader does not read"), 1, "{}", relay.stderr());
}

#[test]
fn a_stderr_that_nobody_reads_holds_up_neither_traffic_nor_the_end() {
    let (service, listen) = (Service::start("s"), unused_address());
    let scratch = crate::common::Scratch::new();
    let (path, control) = (scratch.file("relay.toml"), scratch.file("control"));
    let head = format!("threads = 1\ncontrol = \"{}\"\n", control.display());
    std::fs::write(&path, head + &listener("a", listen, &[service.address])).unwrap();
    let (_reader, writer) = std::io::pipe().unwrap();
    // Little of the 65,536 bytes of a pipe is free. Each reload has a line of more than 100 bytes.
    (&writer).write_all(&[b'x'; 61_000]).unwrap();
    let mut command = Command::new(PARSHALL);
    let mut relay = KillOnDrop(command.args(["relay", "-c"]).arg(&path).stderr(writer).spawn().unwrap());
    until("it serves", || exchange(listen).is_ok());
    for _ in 0..100 {
        signal(relay.0.id(), "HUP");
        assert_eq!(exchange(listen).unwrap(), "s");
        std::thread::sleep(Duration::from_millis(10));
    }
    signal(relay.0.id(), "TERM");
    until("it ends", || relay.0.try_wait().unwrap().is_some_and(|status| status.success()));
}

struct KillOnDrop(Child);

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        // It may have ended already; the pid cannot be reused before it was waited for.
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

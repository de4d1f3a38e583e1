//! Captures made by hand, and what is left of them.
use parshall_evidence::timeline::Names;
use parshall_evidence::{
    EventCell, EventCounts, Frame, Interpreted, Log, LogLine, Stack, Subject, Uring, UringCell, UringWaits,
};
use proptest::prelude::*;

use super::*;
use crate::judge::judge;
use crate::testkit::timeline::{Script, client_socket, off, served_socket};
use crate::testkit::{arb, empty_capture};

fn secret() -> Capture {
    let names = |thread: &str| Names { pid: 100, thread: thread.to_owned(), process: "billing".to_owned() };
    let mut client = client_socket(5432);
    client.remote.set_ip("10.1.2.3".parse().unwrap());
    let mut timeline = Script::new()
        .socket(1, served_socket(7000), 101)
        .socket(2, client, 101)
        .receives(101, 1, 100_000, 200_000)
        .off(off(101, 300_000, 700_000, 700_000))
        .timeline;
    timeline.names.insert(101, names("billing-worker-3"));
    timeline.names.insert(102, names("billing-worker-12"));
    timeline.names.insert(103, Names { process: "python3".to_owned(), ..names("GC Thread#1") });
    timeline.titles.insert(100, "billing: customer Smith".to_owned());
    timeline.files.insert((100, 7), "/srv/billing/smith.log".to_owned());
    timeline.files.insert((100, 8), "pipe:[81]".to_owned());
    timeline.stopped_by.insert(100, Stopper::Words("billing 100 (SIGSTOP)".to_owned()));
    let frame =
        |name: &str| Frame { name: name.to_owned(), module: "/srv/billing/bin/billing".to_owned(), kernel: false };
    let python = |name: &str, from| Frame::of_interpreter(name.to_owned(), "python3.11", from);
    let frames = vec![
        frame("checkout"),
        frame("py::pay:/srv/billing/pay.py"),
        frame("operator/(int, int)"),
        python("pay (billing/smith.py:7)", Interpreted::Application),
        python("wait (threading.py:320)", Interpreted::Library),
    ];
    let words = ["parshall", "attach", "--cgroup", "/smith.slice", "--for=3s", "--save=/root/smith", "-o/root/smith"];
    let cell = EventCell {
        process: "billing".to_owned(),
        thread: "billing-worker-3".to_owned(),
        value: "NO_SOCKET".to_owned(),
        ..EventCell::default()
    };
    let line = |to: &str| LogLine {
        process: "billing".to_owned(),
        to: to.to_owned(),
        text: "Mr. Smith pays".to_owned(),
        cut: true,
        ..LogLine::default()
    };
    let lines = vec![line("stderr"), line("/srv/billing/smith.log")];
    let uring_cell = UringCell {
        process: "billing".to_owned(),
        thread: "billing-worker-3".to_owned(),
        opcode: "recv".to_owned(),
        ..UringCell::default()
    };
    let waits =
        UringWaits { process: "billing".to_owned(), thread: "billing-worker-3".to_owned(), ..UringWaits::default() };
    Capture {
        uring: Some(Uring { cells: vec![uring_cell], waits: vec![waits], ..Uring::default() }),
        log: Some(Log { lines, left_out: 2 }),
        events: vec![EventCounts { event: "skb:kfree_skb".to_owned(), cells: vec![cell], ..EventCounts::default() }],
        timeline: Some(timeline),
        subject: Subject { comms: vec!["billing".to_owned()], ..empty_capture().subject },
        stacks: vec![Stack { frames }],
        blind: vec!["billing 100 talks to 10.1.2.3:5432; billings are another word.".to_owned()],
        origin: Some(Origin {
            host: "web1.example.com".to_owned(),
            command_line: words.map(str::to_owned).into(),
            ..Origin::default()
        }),
        ..empty_capture()
    }
}

#[test]
fn the_same_name_has_the_same_pseudonym_everywhere() {
    let capture = masked(secret());
    let timeline = capture.timeline.unwrap();
    let names = &timeline.names[&101];
    let thread = names.thread.strip_suffix('3').unwrap();
    assert_eq!((names.process.as_str(), &thread[..7]), ("process-a", "thread-"));
    assert_eq!(timeline.names[&102].thread, format!("{thread}12"));
    let event = &capture.events[0];
    let cell = &event.cells[0];
    assert_eq!((&cell.process, &cell.thread), (&names.process, &names.thread));
    assert_eq!((event.event.as_str(), cell.value.as_str()), ("skb:kfree_skb", "NO_SOCKET"), "names of the kernel stay");
    let uring = capture.uring.unwrap();
    assert_eq!((&uring.cells[0].process, &uring.cells[0].thread), (&names.process, &names.thread));
    assert_eq!((&uring.waits[0].thread, uring.cells[0].opcode.as_str()), (&names.thread, "recv"));
    let log = capture.log.unwrap();
    let lines: Vec<_> = log.lines.iter().map(|line| (line.to.as_str(), line.text.as_str(), line.cut)).collect();
    assert_eq!(lines, [("stderr", "(masked)", false), ("/path-a.log", "(masked)", false)]);
    assert_eq!(log.lines[0].process, names.process);
    let other = &timeline.names[&103];
    assert_eq!((other.process.as_str(), other.thread.as_str()), ("python3", "GC Thread#1"));
    assert_eq!(capture.subject.comms, ["process-a"]);
    assert_eq!(timeline.stopped_by[&100], Stopper::Words("process-a 100 (SIGSTOP)".to_owned()));
    assert_eq!(capture.blind, ["process-a 100 talks to 100.64.0.1:5432; billings are another word."]);
    assert_eq!(timeline.sockets[&2].remote.to_string(), "100.64.0.1:5432");
    assert_eq!(timeline.sockets[&1].local.to_string(), "127.0.0.1:7000");
    assert_eq!((timeline.files[&(100, 7)].as_str(), timeline.files[&(100, 8)].as_str()), ("/path-a.log", "pipe:[81]"));
    let origin = capture.origin.unwrap();
    assert_eq!(origin.host, "host-a1x");
    let words = origin.command_line.join(" ");
    assert_eq!(words, "parshall attach --cgroup argument-a --for=3s --save=argument-b -oargument-b");
}

#[test]
fn nothing_of_the_host_is_left() {
    let capture = masked(secret());
    let text = serde_json::to_string(&capture).unwrap().replace("billings", "");
    for word in ["billing", "mith", "10.1.2.3", "web1", "/srv", "/root"] {
        assert!(!text.contains(word), "{word}: {text}");
    }
    let frames = &capture.stacks[0].frames;
    let names: Vec<&str> = frames[..3].iter().map(|frame| frame.name.as_str()).collect();
    assert_eq!(names, ["checkout", "py::pay:/path-b.py", "operator/(int, int)"], "names of functions stay");
    let of_python: Vec<_> =
        frames[3..].iter().map(|frame| (frame.name.as_str(), frame.object(), frame.interpreted())).collect();
    assert_eq!(
        of_python,
        [
            ("pay (path-c.py:7)", "python3.11", Some(Interpreted::Application)),
            ("wait (threading.py:320)", "python3.11", Some(Interpreted::Library))
        ]
    );
}

#[test]
fn only_numbers_are_plain() {
    for plain in ["", "7000", "500ms", "1.5s", "4120,4121", "--all"] {
        assert!(is_plain(plain), "{plain}");
    }
    for name in ["10.1.2.3", "blue", "7acme", "/7", "1,acme", "-x"] {
        assert!(!is_plain(name), "{name}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn any_capture_gets_the_same_verdict_under_pseudonyms(capture in arb::capture()) {
        let (open, hidden) = (judge(&capture).verdict, judge(&masked(capture)).verdict);
        prop_assert_eq!((open.status, open.cause, open.confidence), (hidden.status, hidden.cause, hidden.confidence));
    }
}

//! Evidence beside that of a rung, on a real service: requests to io_uring and log lines. Says so where a rung is not possible.
use std::path::PathBuf;

use parshall_core::judge::{judge, judged};
use parshall_core::trace::{Kind, Trace};
use parshall_testkit::skip;

use super::tests::window;
use super::*;
use crate::log;
use crate::subject::Select;
use crate::testkit::{child, session};

/// Whether the rung was had; if not, says so.
fn is_on(rung: Rung, what: &str, capture: &Capture) -> bool {
    if capture.rung != rung {
        skip(what, &format!("not on the {} rung: {:?}", rung.as_str(), capture.blind));
    }
    capture.rung == rung
}

fn lines_of(rung: Rung) {
    let _turn = session::turn();
    let mut child = child::start("obeys");
    let logs = log::find(vec![PathBuf::from(log::STREAMS)]).expect("nothing is looked up");
    let select = Select::Pids(vec![child.pid()]);
    let mut session = session::open_further(&select, Some(rung), Vec::new(), logs);
    for orders in [&["ask 0 3", "open"][..], &["ask 1 2"]] {
        let capture = window(&mut session, &mut child, orders);
        if !is_on(rung, "log lines", &capture) {
            return;
        }
        let log = capture.log.as_ref().unwrap_or_else(|| panic!("{:?}", capture.blind));
        let lines: Vec<_> = log.lines.iter().map(|line| (line.pid, line.to.as_str(), line.text.as_str())).collect();
        assert_eq!(lines, vec![(child.pid(), "stdout", "done"); orders.len()], "it says so after each order");
        assert!(log.lines.iter().all(|line| (1..capture.window_ns).contains(&line.at_ns) && !line.process.is_empty()));
        assert_eq!((log.left_out, judge(&capture).log.as_ref()), (0, Some(log)));
    }
}

#[test]
fn log_lines_are_kept_on_the_btf_rung() {
    if parshall_testkit::root("log lines on the btf rung") {
        lines_of(Rung::Btf);
    }
}

#[test]
fn log_lines_are_kept_on_the_tracepoint_rung() {
    if parshall_testkit::root("log lines on the tracepoint rung") {
        lines_of(Rung::Tracepoint);
    }
}

#[test]
fn without_being_asked_for_no_line_is_kept() {
    let _turn = session::turn();
    let mut child = child::start("obeys");
    let mut session = session::open(&Select::Pids(vec![child.pid()]), None);
    let capture = window(&mut session, &mut child, &["ask 0 3"]);
    assert_eq!((&capture.log, &capture.uring), (&None, &None), "and no ring is there to follow");
}

#[test]
fn a_rung_without_probes_says_that_it_keeps_no_lines() {
    if !parshall_testkit::root("log lines on the procfs rung") {
        return;
    }
    let _turn = session::turn();
    let child = child::start("idle");
    let logs = log::find(vec![PathBuf::from(log::STREAMS)]).expect("nothing is looked up");
    let select = Select::Pids(vec![child.pid()]);
    let mut session = session::open_further(&select, Some(Rung::Procfs), Vec::new(), logs);
    let capture = session::window(&mut session, 200, &session::Never);
    assert_eq!(capture.log, None);
    assert!(capture.blind.iter().any(|sentence| sentence.contains("log lines are not kept")), "{:?}", capture.blind);
}

fn rings_of(rung: Rung) {
    let _turn = session::turn();
    let mut child = child::start("rings");
    let mut session = session::open(&Select::Pids(vec![child.pid()]), Some(rung));
    for messages in [5, 2] {
        let capture = window(&mut session, &mut child, &[&messages.to_string()]);
        if !is_on(rung, "requests to io_uring", &capture) {
            return;
        }
        let Some(uring) = &capture.uring else {
            return skip("requests to io_uring", &format!("no ring could be opened: {:?}", capture.blind));
        };
        let receive = uring.cells.iter().find(|cell| cell.opcode == "recv").expect("it receives");
        assert_eq!((receive.pid, receive.tid), (child.pid(), receive.tid));
        // One request, which is cancelled when it has all messages.
        assert_eq!((receive.counts.submitted, receive.counts.completed), (1, messages + 1), "{uring:?}");
        assert_eq!(receive.counts.errors.first().map(|errors| errors.error.as_str()), Some("ECANCELED"));
        let report = judge(&capture).uring.expect("the report has it");
        assert!(report.waits.iter().any(|row| row.outstanding == ["recv"]), "{:?}", report.waits);
        let judged = judged(&capture);
        let trace = Trace::new(&capture, judged.index.as_ref());
        assert!(trace.lanes.iter().any(|lane| lane.kind == Kind::Uring && lane.name.starts_with("recv of ")));
        if rung == Rung::Btf {
            let spans = trace.lanes.iter().filter(|lane| lane.kind == Kind::Thread).flat_map(|lane| &lane.spans);
            let texts: Vec<&str> = spans.map(|span| trace.text(span)).collect();
            assert!(
                texts.iter().any(|text| text.starts_with("io_uring_enter ") && text.contains(" · 1 recv outstanding")),
                "a wait says what for: {texts:?}"
            );
        }
    }
}

#[test]
fn requests_to_io_uring_are_followed_on_the_btf_rung() {
    if parshall_testkit::root("io_uring on the btf rung") {
        rings_of(Rung::Btf);
    }
}

#[test]
fn requests_to_io_uring_are_followed_on_the_tracepoint_rung() {
    if parshall_testkit::root("io_uring on the tracepoint rung") {
        rings_of(Rung::Tracepoint);
    }
}

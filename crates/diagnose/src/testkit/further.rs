//! Samples of requests to io_uring and of log lines, as evidence and in a report.
use parshall_core::testkit::MS;
use parshall_evidence::{
    Log, LogLine, Uring, UringCell, UringCounts, UringErrors, UringReport, UringRequest, UringRow, UringWaitRow,
    UringWaits,
};

fn errors() -> Vec<UringErrors> {
    [("ENOBUFS", 12), ("ECANCELED", 3)].map(|(error, count)| UringErrors { error: error.to_owned(), count }).into()
}

/// Of a relay that receives, opens files in worker threads, and had a request from before the window.
pub fn uring_report() -> UringReport {
    let row = |thread: &str, opcode: &str, counts: UringCounts, us: Option<(f64, f64)>| UringRow {
        pid: 811,
        process: "relay".to_owned(),
        thread: thread.to_owned(),
        opcode: opcode.to_owned(),
        per_s: counts.completed as f64 / 10.0,
        counts,
        mean_us: us.map(|(mean, _)| mean),
        longest_us: us.map(|(_, longest)| longest),
    };
    let received = UringCounts {
        submitted: 124_051,
        completed: 124_000,
        outstanding: 64,
        polls: 61_800,
        overflowed: 7,
        errors: errors(),
        ..UringCounts::default()
    };
    let opened = UringCounts {
        submitted: 1_550,
        completed: 1_550,
        to_workers: 1_550,
        failed_links: 2,
        rejected: 1,
        ..UringCounts::default()
    };
    let earlier = UringCounts { completed: 9, ..UringCounts::default() };
    let wait = |outstanding: &[&str], count, share| UringWaitRow {
        pid: 811,
        process: "relay".to_owned(),
        thread: "relay-#".to_owned(),
        outstanding: outstanding.iter().map(|opcode| (*opcode).to_owned()).collect(),
        count,
        per_s: count as f64 / 10.0,
        share,
    };
    UringReport {
        requests: vec![
            row("relay-#", "recv", received, Some((71.4, 40_200.0))),
            row("relay", "openat", opened, Some((1_900.0, 12_000.0))),
            row("x\u{1b}[2Jy", "", earlier, None),
        ],
        waits: vec![wait(&["recv", "timeout"], 51_100, 0.99), wait(&[], 516, 0.01)],
        left_out: 104_000,
        lost: 0,
        not_followed: 2_000,
        absent: vec!["completions that overflowed".to_owned()],
    }
}

/// Three lines, of which one has control characters and one was longer.
pub fn log() -> Log {
    let line = |at_ns, to: &str, text: &str, cut| LogLine {
        at_ns,
        pid: 100,
        tid: 101,
        process: "app".to_owned(),
        to: to.to_owned(),
        text: text.to_owned(),
        cut,
    };
    let lines = vec![
        line(MS / 4, "stdout", "GET /report | 200", false),
        line(MS / 2, "stderr", "\u{1b}[33mWARN\u{1b}[m pool: waited 500 ms for a *connection* <7>", false),
        line(800 * MS, "/var/log/app/a.log", "the begin of a longer one", true),
    ];
    Log { lines, left_out: 4 }
}

/// The requests of a thread of the small case to io_uring.
pub fn uring() -> Uring {
    let cell = |opcode: &str, counts| UringCell {
        pid: 100,
        tid: 101,
        process: "p100".to_owned(),
        thread: "worker".to_owned(),
        opcode: opcode.to_owned(),
        counts,
        timed: 1,
        ns: MS / 10,
        longest_ns: MS / 10,
    };
    let request = |opcode: &str, begin_ns, end_ns, result| UringRequest {
        begin_ns,
        end_ns,
        tid: 101,
        opcode: opcode.to_owned(),
        result,
        ..UringRequest::default()
    };
    let counts = |submitted, completed| UringCounts { submitted, completed, ..UringCounts::default() };
    Uring {
        cells: vec![cell("recv", UringCounts { errors: errors(), ..counts(3, 2) }), cell("send", counts(1, 1))],
        waits: vec![UringWaits {
            pid: 100,
            tid: 101,
            process: "p100".to_owned(),
            thread: "worker".to_owned(),
            outstanding: vec!["recv".to_owned()],
            count: 2,
        }],
        requests: vec![
            UringRequest { polled: true, ..request("recv", MS / 10, Some(MS / 5), 512) },
            UringRequest { error: "ENOBUFS".to_owned(), ..request("recv", 3 * MS / 20, Some(MS / 4), -105) },
            request("send", MS / 4, Some(MS / 4), 5),
            request("recv", MS / 2, None, 0),
        ],
        left_out: 0,
        lost: 0,
        not_followed: 0,
        absent: Vec::new(),
    }
}

//! Trials whose change makes a service use a CPU, and which have to show how much it helps. One window that others keep from the CPU would be
//! a difference, too.

use std::io::Read;
use std::process::{Command, Stdio};

use crate::common::{PARSHALL, Pair, has, parshall};
use crate::trial::{SHORT, nodelay, ready, trial};
use parshall_evidence::TrialStatus;

#[test]
fn nodelay_helps_where_nagle_waits() {
    if !ready("try nodelay") {
        return;
    }
    let pair = Pair::start(&[]);
    let port = pair.port.to_string();
    // Three pairs show nothing where one of their windows had no CPU.
    let mut trials = (0..3).map(|_| trial(&["nodelay", "--port", &port]));
    let report = trials.find(|report| report.outcome.status != TrialStatus::NoDifference).expect("one of three");
    assert_eq!(report.outcome.status, TrialStatus::Helped, "{report:#?}");
    let decides = &report.figures[0];
    assert_eq!((decides.figure.as_str(), decides.unit.as_str()), ("time-per-request", "ms"));
    assert!(decides.without > 20.0 && decides.with < 10.0, "{decides:?}");
    assert!(decides.change < -0.5 && decides.interval.0 <= decides.change && decides.change <= decides.interval.1);
    let requests = report.figures.iter().find(|figure| figure.figure == "requests").unwrap();
    assert!(requests.change > 1.0 && !requests.lower_is_better, "{requests:?}");
    assert_eq!((report.places.seen, report.places.changed, report.reverted.restored), (2, 2, 2), "{report:#?}");
    let order: Vec<(u32, bool)> = report.windows.iter().map(|window| (window.pair, window.changed)).collect();
    assert_eq!(order, [(0, false), (1, false), (1, true), (2, true), (2, false), (3, false), (3, true)]);
    assert_eq!((nodelay(pair.client.pid()), nodelay(pair.server.pid())), (vec![false], vec![false]));
    // The text report, with a process as the subject. The plan with the old value is printed before the change.
    let pid = pair.client.pid().to_string();
    let done = parshall(&[&["try", "nodelay", "--pid", &pid], &SHORT[..]].concat());
    assert_eq!(done.code, Some(0), "{done:?}");
    for part in ["HELPED", "time of a request", "CHANGED   TCP_NODELAY=1 on 1 connection.", "REVERTED  1 as before."] {
        assert!(done.stdout.contains(part), "{part:?} in {}", done.stdout);
    }
    assert!(done.stderr.contains("TCP_NODELAY=0 on 1 connection"), "{}", done.stderr);
}

/// In a terminal it asks for confirmation; every answer but yes means no.
#[test]
fn in_a_terminal_it_asks_for_confirmation() {
    let what = "try at a terminal";
    if !ready(what) || !has(&["script"], what) {
        return;
    }
    let pair = Pair::start(&[]);
    for (answer, expected) in [("n\n", "nothing was changed"), ("y\n", "HELPED")] {
        let line = format!("{PARSHALL} try nodelay --port {} --pairs 3 --window 300ms", pair.port);
        let mut command = Command::new("script");
        command.args(["-qec", &line, "/dev/null"]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        std::io::Write::write_all(child.stdin.as_mut().unwrap(), answer.as_bytes()).unwrap();
        let mut output = String::new();
        child.stdout.take().unwrap().read_to_string(&mut output).unwrap();
        child.wait().unwrap();
        assert!(output.contains("Go on? [y/N]") && output.contains(expected), "{answer:?}: {output}");
    }
}

//! `try` with the CPU quota of a control group. Observations beside it would see a process that is throttled: the tests are the parent of all.

use parshall_evidence::TrialStatus;

use crate::common::{self, ControlGroup, Pair, parshall, until};
use crate::trial::{ready, result, start};

#[test]
fn a_raised_quota_helps_and_is_restored() {
    let what = "try quota";
    if !ready(what) {
        return;
    }
    let Some(group) = ControlGroup::with_cpu_quota(0.02) else {
        return common::skip(what, "no control group with a CPU quota can be created here");
    };
    // The quota is what limits it also where others want the CPU.
    let pair = Pair::start_with(&["--work-ms", "1"], &["--nodelay"]);
    group.add(pair.server.pid());
    let before = group.cpu_quota();
    // The server is throttled for up to 98 ms of each period of 100 ms, so a window must have several periods.
    let arguments =
        ["try", "quota=max", "--port", &pair.port.to_string(), "--yes", "--pairs", "5", "--window", "600ms"];
    // Of a few windows on a busy host some may tell nothing.
    let mut reports = (0..6).map(|_| result(&parshall(&[&arguments[..], &["--format", "json"]].concat())));
    let report = reports.find(|report| report.outcome.status == TrialStatus::Helped).expect("one of six");
    assert_eq!((report.change.on.as_str(), report.places.changed), ("control group", 1));
    assert_eq!(group.cpu_quota(), before);
    let trial = start(&["quota=max", "--port", &pair.port.to_string()]);
    until("the quota is raised", || group.cpu_quota() != before);
    trial.signal("-KILL");
    until("the quota is restored", || group.cpu_quota() == before);
    drop(pair);
}

//! The process that has the request was stopped: by SIGSTOP, a debugger or the freezer of its control group.
//!
//! Look-alikes: quota (cpu-throttled), a garbage collector (stop-the-world), a CPU that others use (run-queue-latency).
use parshall_evidence::{Object, Stopper};

use super::base::{Cause, Outcome};
use super::common::{Waits, not_spent};
use crate::judge::chain::named;
use crate::judge::facts::{Facts, Spent};
use crate::judge::record;

/// The entry in the list.
pub const CAUSE: Cause = Cause {
    id: "process-stopped",
    title: "The process is stopped",
    test,
    symptom: |facts| facts.requests.share(Spent::Stopped),
    testable: record::requests,
};

fn test(facts: &Facts<'_>) -> Outcome {
    let Some(waits) = Waits::on(facts, Spent::Stopped) else { return not_spent(facts, Spent::Stopped) };
    let leaf = waits.leaf;
    let stopper = match &leaf.object {
        Object::Stopper(stopper) => Some(stopper),
        _ => None,
    };
    let by = stopper.map_or_else(String::new, |stopper| format!(" by {stopper}"));
    let summary = waits.summary(&format!("{} was stopped meanwhile{by}, {} a request.", named(leaf), waits.each()));
    let fix = match stopper {
        None => format!(
            "Find who stops it (`kill -STOP`, a debugger, `docker pause`, the freezer): `grep -E 'State|TracerPid' /proc/{0}/status`. Let \
             it run: `kill -CONT {0}`",
            leaf.pid
        ),
        Some(Stopper::Debugger { .. }) => format!("{} traces it: detach it, or end it.", leaf.target),
        Some(Stopper::Freezer { .. }) => {
            "Thaw its control group: `docker unpause`, or 0 to its cgroup.freeze.".to_string()
        }
        Some(Stopper::Sender { .. } | Stopper::Words(_)) => {
            format!("See why {} stops it. Let it run: `kill -CONT {}`", leaf.target, leaf.pid)
        }
    };
    waits.candidate(summary, Vec::new(), fix).holds()
}

#[cfg(test)]
mod tests {
    use parshall_evidence::{HopKind, Stopper};

    use crate::testkit::service::{Hops, ServiceBuilder, with};

    #[test]
    fn unanswered_requests_count() {
        let way = Hops::new().thread(100, 101, "redis-server").on(HopKind::Unread, "").on(HopKind::Stopped, "");
        let service = ServiceBuilder::new(6379).requests(0, 0.0).unanswered(8, 5000.0).part(way, 1.0);
        let report = crate::judge::judge(&with(service));
        assert_eq!(report.verdict.cause.as_deref(), Some("process-stopped"));
        assert!(report.findings[0].fix.text.ends_with("`kill -CONT 100`"), "{}", report.findings[0].fix.text);
    }

    #[test]
    fn who_stopped_it_is_named() {
        let kill = Stopper::Sender { signal: "SIGSTOP".into(), comm: "kill".into(), pid: 812 };
        for (stopper, by, fix) in [
            (kill, "kill 812 (SIGSTOP)", "`kill -CONT 100`"),
            (Stopper::Debugger { comm: "gdb".into(), pid: 90 }, "gdb 90 (ptrace)", "detach"),
            (Stopper::Freezer { group: "/x".into() }, "the freezer of /x", "cgroup.freeze"),
            (Stopper::Words("kill 812 (SIGSTOP)".into()), "kill 812 (SIGSTOP)", "`kill -CONT 100`"),
        ] {
            let way = Hops::new().thread(100, 101, "app").on(HopKind::Stopped, "").stopped_by(stopper);
            let report = crate::judge::judge(&with(ServiceBuilder::new(80).requests(20, 50.0).part(way, 1.0)));
            let finding = &report.findings[0];
            assert!(finding.summary.contains(&format!("stopped meanwhile by {by}")), "{}", finding.summary);
            assert!(finding.fix.text.contains(fix), "{}", finding.fix.text);
            assert_eq!(finding.chain.last().map(|hop| hop.text.clone()), Some(format!("is stopped by {by}")));
        }
    }
}

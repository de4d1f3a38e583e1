//! A request costs much CPU time, and most of it is spent in the kernel.
//!
//! Look-alikes: copies in small pieces (small-copy-buffer), page faults and mapping (page-fault-churn), memory reclaim
//! (memory-reclaim), and a thread saturated by cheap calls (at capacity).
use super::base::{Cause, Outcome};
use super::common::{Mode, Waits, hottest_of_process, not_spent};
use crate::judge::chain::named;
use crate::judge::facts::{Facts, Spent};
use crate::judge::record;
use crate::report;

/// The entry in the list.
pub const CAUSE: Cause = Cause {
    id: "kernel-cpu-bound",
    title: "The kernel works for the requests",
    test,
    symptom: |facts| facts.requests.share(Spent::CpuKernel),
    testable: record::requests,
};

fn test(facts: &Facts<'_>) -> Outcome {
    let Some(waits) = Waits::on(facts, Spent::CpuKernel) else { return not_spent(facts, Spent::CpuKernel) };
    let leaf = waits.leaf;
    let hot = hottest_of_process(facts, leaf.pid, Mode::Kernel);
    let most = hot.first().map(|e| format!(" Most of it in {}.", report::simplified(&e.what))).unwrap_or_default();
    let summary = waits.summary(&format!(
        "{} is on a CPU for {} a request, most of it in the kernel.{most}",
        named(leaf),
        waits.each()
    ));
    let fix = format!(
        "Make fewer or larger calls; the functions say which. All of them, with callers: perf record -g -p {} sleep 5; perf report",
        leaf.pid
    );
    waits.candidate(summary, hot, fix).holds()
}

#[cfg(test)]
mod tests {
    use parshall_evidence::{Capture, CpuSample, Frame, HopKind, Stack};

    use crate::judge::judge;
    use crate::testkit::ThreadBuilder;
    use crate::testkit::service::{Hops, ServiceBuilder, with};

    /// A service whose requests take 4 ms on a CPU each, and samples of its thread in this kernel function.
    fn works_in(function: &str, kernel: u64) -> Capture {
        let queue = Hops::new().thread(100, 101, "app").on(HopKind::Unread, "").on(HopKind::OnCpu, "");
        let service = ServiceBuilder::new(7000).requests(200, 12.0).part(queue, 0.66).cpu(0.34);
        let mut capture = with(service);
        let thread = ThreadBuilder::new(101).samples(100 - kernel, kernel).fill();
        capture.threads = vec![thread.record];
        let frame = |name: &str| Frame { name: name.to_string(), module: "[kernel]".to_string(), kernel: true };
        capture.stacks = vec![Stack { frames: vec![frame(function), frame("do_syscall_64")] }];
        let sample = |user, count| CpuSample {
            tid: 101,
            user,
            syscall: 0,
            syscall_name: "getdents64".to_string(),
            stack: Some(0),
            count,
        };
        capture.samples = vec![sample(false, kernel), sample(true, 100 - kernel)];
        capture
    }

    #[test]
    fn names_the_function() {
        let report = judge(&works_in("ext4_readdir", 90));
        assert_eq!(report.verdict.cause.as_deref(), Some("kernel-cpu-bound"));
        assert!(report.verdict.summary.contains("ext4_readdir"), "{}", report.verdict.summary);
    }

    #[test]
    fn its_look_alikes() {
        let cause = |function: &str, kernel| judge(&works_in(function, kernel)).verdict.cause.unwrap_or_default();
        assert_eq!(cause("ext4_readdir", 30), "user-cpu-bound");
        assert_eq!(cause("do_anonymous_page", 90), "page-fault-churn");
        assert_eq!(cause("shrink_folio_list", 90), "memory-reclaim");
    }
}

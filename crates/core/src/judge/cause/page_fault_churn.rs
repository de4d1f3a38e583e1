//! Requests map, touch and unmap memory again and again: the time goes into page faults, into clearing pages and into the lock of
//! the process' mappings.
//!
//! Look-alikes: memory that is reclaimed (memory-reclaim), other work of the kernel (kernel-cpu-bound).
use super::base::{Cause, Outcome};
use super::common::{Mode, Waits, hottest_of_process, not_spent};
use crate::judge::chain::named;
use crate::judge::facts::{Facts, Spent};
use crate::judge::record;

/// The entry in the list.
pub const CAUSE: Cause = Cause {
    id: "page-fault-churn",
    title: "Requests fault in fresh memory",
    test,
    symptom: |facts| facts.requests.share(Spent::PageFaults),
    testable: record::requests,
};

fn test(facts: &Facts<'_>) -> Outcome {
    let Some(waits) = Waits::on(facts, Spent::PageFaults) else { return not_spent(facts, Spent::PageFaults) };
    let leaf = waits.leaf;
    let summary = waits.summary(&format!(
        "{} spends {} a request in page faults, mapping and unmapping.",
        named(leaf),
        waits.each()
    ));
    let fix = format!(
        "Reuse buffers, or let the allocator keep its memory (glibc: MALLOC_TRIM_THRESHOLD_ and MALLOC_MMAP_THRESHOLD_; jemalloc: \
         dirty_decay_ms). Faults a second: `pidstat -r -p {} 1`",
        leaf.pid
    );
    let hot = hottest_of_process(facts, leaf.pid, Mode::Kernel);
    waits.candidate(summary, hot, fix).holds()
}

#[cfg(test)]
mod tests {
    use parshall_evidence::{CpuSample, Frame, HopKind, NO_SYSCALL, Stack};

    use crate::testkit::service::{Hops, ServiceBuilder, with};
    use crate::testkit::{ThreadBuilder, verdict_of};

    /// A thread that computes 4 ms for each request; `faults` and `user` of its 100 samples are in page faults and in user mode.
    fn computes(faults: u64, user: u64) -> String {
        let way = Hops::new().thread(100, 101, "app").on(HopKind::OnCpu, "");
        let mut capture = with(ServiceBuilder::new(7000).requests(150, 4.0).part(way, 1.0));
        capture.threads = vec![ThreadBuilder::new(101).samples(user, 100 - user).fill().record];
        let frame = |name: &str, kernel| Frame { name: name.to_string(), module: String::new(), kernel };
        capture.stacks = vec![
            Stack { frames: vec![frame("clear_page_erms", true), frame("do_anonymous_page", true)] },
            Stack { frames: vec![frame("parse", false)] },
            Stack { frames: vec![frame("tcp_sendmsg", true)] },
        ];
        let sample = |user, stack, count| CpuSample {
            tid: 101,
            user,
            syscall: NO_SYSCALL,
            syscall_name: String::new(),
            stack: Some(stack),
            count,
        };
        capture.samples = vec![sample(false, 0, faults), sample(true, 1, user), sample(false, 2, 100 - faults - user)];
        verdict_of(&capture)
    }

    #[test]
    fn who_computes_more_than_it_faults_computes() {
        assert_eq!(computes(80, 20), "page-fault-churn");
        assert_eq!(computes(45, 40), "page-fault-churn");
        // Memory that is touched for the first time belongs to every computation.
        assert_eq!(computes(35, 65), "user-cpu-bound");
    }

    #[test]
    fn waits_for_the_lock_of_the_mappings() {
        let way = Hops::new().thread(100, 101, "app").on(HopKind::Memory, "").stack(0);
        let mut capture = with(ServiceBuilder::new(7000).requests(100, 30.0).part(way, 0.9).cpu(0.1));
        assert_eq!(verdict_of(&capture), "memory-reclaim");
        let frame =
            Frame { name: "rwsem_down_read_slowpath".to_string(), module: "[kernel]".to_string(), kernel: true };
        capture.stacks = vec![Stack { frames: vec![frame] }];
        assert_eq!(verdict_of(&capture), "page-fault-churn");
    }
}

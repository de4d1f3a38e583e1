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
         dirty_decay_ms). Faults a second: pidstat -r -p {} 1",
        leaf.pid
    );
    let hot = hottest_of_process(facts, leaf.pid, Mode::Kernel);
    waits.candidate(summary, hot, fix).holds()
}

#[cfg(test)]
mod tests {
    use parshall_evidence::{Frame, HopKind, Stack};

    use crate::testkit::service::{Hops, ServiceBuilder, with};
    use crate::testkit::verdict_of;

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

//! A thread with a request waits for memory: to be reclaimed from others, or to be read back after it was reclaimed.
//!
//! Look-alikes: a file that is read for the first time (blocking-disk-io), fresh pages that are only cleared (page-fault-churn).
use parshall_evidence::{Evidence, MemoryGroup};

use super::base::{Cause, Outcome};
use super::common::{Waits, not_spent};
use crate::judge::chain::named;
use crate::judge::facts::{Facts, Spent, requests};
use crate::judge::record;
use crate::judge::words;
use crate::units;

/// The entry in the list.
pub const CAUSE: Cause = Cause {
    id: "memory-reclaim",
    title: "Requests wait for memory",
    test,
    symptom: |facts| facts.requests.share(Spent::Memory),
    testable: record::requests,
};

fn test(facts: &Facts<'_>) -> Outcome {
    let Some(waits) = Waits::on(facts, Spent::Memory) else { return not_spent(facts, Spent::Memory) };
    let leaf = waits.leaf;
    let did = waits.loss.chain.last().map(|h| h.text.clone()).unwrap_or_default();
    let group = requests::thrashing(facts.capture, leaf.pid);
    let again = group.map_or_else(String::new, |g| format!(", for what was in memory before: {}", room(g)));
    let summary = waits.summary(&format!("{} {did}, {} a request{again}.", named(leaf), waits.each()));
    let fix = format!(
        "Give its control group or the host more memory, or let it use less: what it needs is reclaimed before it is used again. \
         The group's events: `cat /sys/fs/cgroup$(sed -n s/^0:://p /proc/{}/cgroup)/memory.events`",
        leaf.pid
    );
    waits.candidate(summary, group.map_or_else(Vec::new, evidence), fix).holds()
}

/// The control group or host that has too little memory, in words.
fn room(group: &MemoryGroup) -> String {
    match group.limit_bytes {
        Some(limit) => format!("control group {} may use {}", group.path, units::bytes(limit as f64)),
        None => "memory is used up by others".to_string(),
    }
}

fn evidence(group: &MemoryGroup) -> Vec<Evidence> {
    vec![
        words::valued("read back after it was reclaimed", group.refaulted_bytes as f64, "B"),
        words::valued("read from disks by its processes", group.read_bytes as f64, "B"),
    ]
}

#[cfg(test)]
mod tests {
    use parshall_evidence::{Counters, CpuSample, Frame, HopKind, MemoryGroup, NO_SYSCALL, Stack};

    use crate::judge::judge;
    use crate::testkit::service::{Hops, ServiceBuilder, with};
    use crate::testkit::verdict_of;

    #[test]
    fn pages_that_are_read_back() {
        let way = Hops::new().thread(100, 101, "app").on(HopKind::Memory, "");
        let service = ServiceBuilder::new(7000).requests(600, 1.5).part(way, 0.7).cpu(0.3);
        assert_eq!(verdict_of(&with(service)), "memory-reclaim");
    }

    #[test]
    fn a_file_is_read_again_where_there_is_no_room_to_keep_it() {
        let way = || Hops::new().thread(100, 101, "app").on(HopKind::Disk, "pread64").target("/data/table");
        let service = ServiceBuilder::new(7000).requests(60, 16.0).part(way(), 0.9).cpu(0.1);
        let mut capture = with(service);
        assert_eq!(verdict_of(&capture), "blocking-disk-io");
        let group = |refaulted_bytes| MemoryGroup {
            path: "/small".into(),
            pids: vec![100],
            limit_bytes: Some(8 << 20),
            refaulted_bytes,
            read_bytes: 100 << 20,
        };
        let memory = |bytes| Some(Counters { memory: vec![group(bytes)], ..Counters::default() });
        capture.counters = memory(90 << 20);
        let report = judge(&capture);
        assert_eq!(report.verdict.cause.as_deref(), Some("memory-reclaim"));
        assert!(report.verdict.summary.contains("/small may use 8"), "{}", report.verdict.summary);
        // A wait that has not ended has read nothing.
        capture.services[0].waited = true;
        (capture.services[0].requests, capture.services[0].unanswered) = (0, 3);
        assert_eq!(verdict_of(&capture), "blocking-disk-io");
        (capture.services[0].waited, capture.services[0].requests, capture.services[0].unanswered) = (false, 60, 0);
        capture.counters = memory(10 << 20);
        assert_eq!(verdict_of(&capture), "blocking-disk-io");
        // Nearly all that was read had been in memory, but a few pages do not take most of a second.
        let mut few = group(20 << 10);
        few.read_bytes = 20 << 10;
        capture.counters = Some(Counters { memory: vec![few], ..Counters::default() });
        assert_eq!(verdict_of(&capture), "blocking-disk-io");
    }

    #[test]
    fn faults_that_read_pages_back_are_no_churn() {
        let frame = |name: &str| Frame { name: name.into(), module: "[kernel]".into(), kernel: true };
        let with_pages = |pages: u64| {
            let way = Hops::new().thread(100, 101, "app").on(HopKind::OnCpu, "");
            let mut capture = with(ServiceBuilder::new(7000).requests(300, 3.0).part(way, 0.98));
            capture.threads[0].cpu_ns = capture.window_ns * 9 / 10;
            capture.stacks = vec![Stack { frames: vec![frame("handle_mm_fault")] }];
            capture.samples = vec![CpuSample {
                tid: 101,
                user: false,
                syscall: NO_SYSCALL,
                syscall_name: String::new(),
                stack: Some(0),
                count: 400,
            }];
            let bytes = pages * 4096;
            let group = MemoryGroup {
                pids: vec![100],
                limit_bytes: Some(8 << 20),
                refaulted_bytes: bytes,
                read_bytes: bytes,
                ..MemoryGroup::default()
            };
            capture.counters = Some(Counters { memory: vec![group], ..Counters::default() });
            verdict_of(&capture)
        };
        assert_eq!(with_pages(40_000), "memory-reclaim");
        // A few pages do not cost most of a second.
        assert_eq!(with_pages(40), "page-fault-churn");
    }

    #[test]
    fn a_sync_is_no_matter_of_memory() {
        let way = Hops::new().thread(100, 101, "app").on(HopKind::Disk, "fsync").target("/data/wal");
        let mut capture = with(ServiceBuilder::new(7000).requests(60, 16.0).part(way, 0.9).cpu(0.1));
        let group =
            MemoryGroup { pids: vec![100], refaulted_bytes: 1 << 20, read_bytes: 1 << 20, ..MemoryGroup::default() };
        capture.counters = Some(Counters { memory: vec![group], ..Counters::default() });
        assert_eq!(verdict_of(&capture), "blocking-disk-io");
    }
}

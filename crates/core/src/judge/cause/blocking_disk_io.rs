//! A thread with a request waits for a file or a block device, or holds the lock that others wait for meanwhile.
//!
//! Look-alikes: a disk that only a background thread waits for (it is in no request's path), a write to a log (blocking-log-write),
//! and pages that are read back after they were reclaimed (memory-reclaim).
use parshall_evidence::Hop;

use super::base::{Cause, Outcome};
use super::common::{Waits, not_spent};
use crate::judge::chain::named;
use crate::judge::facts::{Facts, Spent};
use crate::judge::record;
use crate::units;

/// The entry in the list.
pub const CAUSE: Cause = Cause {
    id: "blocking-disk-io",
    title: "Requests wait for the disk",
    test,
    symptom: |facts| facts.requests.share(Spent::Disk),
    testable: record::requests,
};

fn test(facts: &Facts<'_>) -> Outcome {
    let Some(waits) = Waits::on(facts, Spent::Disk) else { return not_spent(facts, Spent::Disk) };
    let leaf = waits.leaf;
    let file = units::or(&leaf.target, "a file");
    let summary = waits.summary(&format!(
        "{} waits in {} for the disk, {} a request ({file}).",
        named(leaf),
        units::or(&leaf.syscall, "the kernel"),
        waits.each()
    ));
    let fix = format!("{} How busy the disk is: `iostat -x 1`", change(leaf, &file));
    waits.candidate(summary, Vec::new(), fix).holds()
}

fn change(leaf: &Hop, file: &str) -> String {
    match leaf.syscall.as_str() {
        "fsync" | "fdatasync" | "sync_file_range" | "msync" | "sync" => format!(
            "Sync {file} once for several requests (group commit), outside of the request, or put it on a faster disk."
        ),
        "write" | "writev" | "pwrite64" | "io_submit" => {
            format!("Write {file} from another thread, in larger pieces, or put it on a faster disk.")
        }
        "open" | "openat" | "unlink" | "rename" | "stat" | "newfstatat" => {
            format!("Keep {file} open, or look it up outside of the request.")
        }
        _ => format!("Keep {file} in memory, read it ahead or from another thread, or put it on a faster disk."),
    }
}

#[cfg(test)]
mod tests {
    use parshall_evidence::HopKind;

    use crate::judge::judge;
    use crate::testkit::service::{Hops, ServiceBuilder, with};
    use crate::testkit::verdict_of;

    fn syncing() -> Hops {
        Hops::new().thread(100, 101, "app").on(HopKind::Disk, "fsync").target("/data/wal")
    }

    #[test]
    fn names_file_and_call() {
        let report = judge(&with(ServiceBuilder::new(7000).requests(60, 16.0).part(syncing(), 0.9).cpu(0.1)));
        assert_eq!(report.verdict.cause.as_deref(), Some("blocking-disk-io"));
        assert!(report.verdict.summary.contains("fsync") && report.verdict.summary.contains("/data/wal"));
        assert!(report.findings[0].fix.text.starts_with("Sync /data/wal once"), "{}", report.findings[0].fix.text);
    }

    #[test]
    fn behind_an_event_loop_that_syncs() {
        let unread = Hops::new().thread(100, 101, "app").on(HopKind::Unread, "").on(HopKind::Disk, "fsync");
        let service = ServiceBuilder::new(7000).requests(60, 64.0).part(unread, 0.7).part(syncing(), 0.25).cpu(0.05);
        assert_eq!(verdict_of(&with(service)), "blocking-disk-io");
    }

    #[test]
    fn a_quick_disk_is_healthy() {
        let service = ServiceBuilder::new(7000).requests(5000, 0.15).part(syncing(), 0.9).cpu(0.1);
        assert_eq!(verdict_of(&with(service)), "healthy");
    }
}

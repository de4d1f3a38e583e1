//! A thread with a request waits for memory: to be reclaimed from others, or to be read back after it was reclaimed.
//!
//! Look-alikes: a file that is read for the first time (blocking-disk-io), fresh pages that are only cleared (page-fault-churn).
use super::common::{Waits, not_spent};
use super::{Cause, Outcome};
use crate::judge::chain::named;
use crate::judge::facts::{Facts, Spent};

/// The entry in the list.
pub const CAUSE: Cause = Cause { id: "memory-reclaim", title: "Requests wait for memory", test };

fn test(facts: &Facts<'_>) -> Outcome {
    let Some(waits) = Waits::on(facts, Spent::Memory) else { return not_spent(facts, Spent::Memory) };
    let leaf = waits.leaf;
    let did = waits.loss.chain.last().map(|h| h.text.clone()).unwrap_or_default();
    let summary = format!("{}: {} {did}, {} a request.", waits.share_words(), named(leaf), waits.each());
    let fix = format!(
        "Give its control group or the host more memory, or let it use less: what it needs is reclaimed before it is used again. \
         The group's events: cat /sys/fs/cgroup$(sed -n s/^0:://p /proc/{}/cgroup)/memory.events",
        leaf.pid
    );
    waits.candidate(summary, Vec::new(), fix).holds()
}

#[cfg(test)]
mod tests {
    use parshall_evidence::HopKind;

    use crate::testkit::service::{Hops, ServiceBuilder, with};
    use crate::testkit::verdict_of;

    #[test]
    fn pages_that_are_read_back() {
        let way = Hops::new().thread(100, 101, "app").on(HopKind::Memory, "");
        let service = ServiceBuilder::new(7000).requests(600, 1.5).part(way, 0.7).cpu(0.3);
        assert_eq!(verdict_of(&with(service)), "memory-reclaim");
    }
}

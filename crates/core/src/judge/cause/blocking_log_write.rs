//! A thread with a request writes to a log, a pipe or a terminal, and waits until that takes more.
//!
//! Look-alikes: a data file (blocking-disk-io), and a pipe on which the thread waits for another process' answer.
use super::base::{Cause, Outcome};
use super::common::{Waits, not_spent};
use crate::judge::chain::named;
use crate::judge::facts::requests::writes;
use crate::judge::facts::{Facts, Spent};
use crate::judge::record;
use crate::units;

/// The entry in the list.
pub const CAUSE: Cause = Cause {
    id: "blocking-log-write",
    title: "Requests wait for a log or pipe to be written",
    test,
    symptom: |facts| facts.requests.share(Spent::Log),
    testable: record::requests,
};

fn test(facts: &Facts<'_>) -> Outcome {
    let Some(waits) = Waits::on(facts, Spent::Log) else { return not_spent(facts, Spent::Log) };
    let writer = waits.hop(writes).unwrap_or(waits.leaf);
    let reader = waits.after(writer).map(|h| format!("; {} reads it", named(h))).unwrap_or_default();
    let target = units::or(&writer.target, "a pipe");
    let summary = waits.summary(&format!(
        "{} waits in {} for {target} to take what it writes, {} a request{reader}.",
        named(writer),
        units::or(&writer.syscall, "write"),
        waits.each()
    ));
    let fix = format!(
        "Write the log from a thread of its own with a queue that drops lines when it is full, or make its reader faster. To see \
         the descriptors of {}: `ls -l /proc/{}/fd`",
        units::or(&writer.process, "the process"),
        writer.pid
    );
    waits.candidate(summary, Vec::new(), fix).holds()
}

#[cfg(test)]
mod tests {
    use parshall_evidence::HopKind;

    use crate::testkit::service::{Hops, ServiceBuilder, with};
    use crate::testkit::verdict_of;

    #[test]
    fn requests_that_wait_since_before_the_window_for_a_line_to_be_taken() {
        let way =
            Hops::new().thread(100, 101, "app").on(HopKind::Unread, "").on(HopKind::Pipe, "sendto").target("/dev/log");
        let way = way.thread(300, 301, "rsyslogd").on(HopKind::Send, "sendto").target("10.9.0.2:5140");
        let mut waited = ServiceBuilder::new(7000).unanswered(4, 4000.0).part(way, 1.0);
        waited.record.waited = true;
        assert_eq!(verdict_of(&with(waited)), "blocking-log-write");
    }

    fn writes(kind: HopKind, target: &str) -> String {
        let way = Hops::new().thread(100, 101, "app").on(kind, "write").target(target);
        verdict_of(&with(ServiceBuilder::new(7000).requests(100, 40.0).part(way, 0.95).cpu(0.05)))
    }

    #[test]
    fn a_full_pipe_a_terminal_and_a_log_file() {
        assert_eq!(writes(HopKind::Pipe, "pipe:[4711]"), "blocking-log-write");
        assert_eq!(writes(HopKind::Disk, "/dev/pts/3"), "blocking-log-write");
        assert_eq!(writes(HopKind::Disk, "/var/log/app.log"), "blocking-log-write");
        assert_eq!(writes(HopKind::Disk, "/data/table"), "blocking-disk-io");
    }

    #[test]
    fn a_lock_around_the_log_is_the_log() {
        let locked = Hops::new().thread(100, 101, "app").on(HopKind::Lock, "futex").thread(100, 102, "app");
        let way = locked.on(HopKind::Pipe, "write").target("pipe:[4711]");
        let service = ServiceBuilder::new(7000).requests(100, 40.0).part(way, 0.95).cpu(0.05);
        assert_eq!(verdict_of(&with(service)), "blocking-log-write");
    }
}

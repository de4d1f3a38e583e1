//! Requests wait unread for one thread that is never idle, while others that serve the same service are.
//!
//! Look-alikes: a single thread that serves all (user-cpu-bound, or at capacity), threads that wait for a CPU (run-queue-latency).
use super::base::{Cause, Outcome};
use super::common::{Waits, not_spent};
use crate::judge::chain::named;
use crate::judge::facts::{Facts, Spent};
use crate::judge::record;
use crate::judge::words;
use crate::stats::ratio;

/// The entry in the list.
pub const CAUSE: Cause = Cause {
    id: "hot-thread",
    title: "One thread is busy while others idle",
    test,
    symptom: |facts| facts.requests.share(Spent::HotThread),
    testable: record::requests,
};

fn test(facts: &Facts<'_>) -> Outcome {
    let Some(waits) = Waits::on(facts, Spent::HotThread) else { return not_spent(facts, Spent::HotThread) };
    let leaf = waits.leaf;
    let busy = facts.thread(leaf.tid).map_or(0.0, |t| ratio(t.ledger.on_cpu(), t.ledger.wall_ns));
    let summary = waits.summary(&format!(
        "{} is always on a CPU and has requests waiting, while other threads that serve are idle.",
        named(leaf)
    ));
    let evidence = vec![
        words::valued("this thread on a CPU", busy, "1"),
        words::valued("threads reading or answering", f64::from(waits.service.rec.workers), "threads"),
    ];
    let fix = "Spread the connections over the threads: SO_REUSEPORT with a listener for each, EPOLLEXCLUSIVE, or one acceptor that \
               hands them out in turn. Who has which connection: `ss -tnp`";
    waits.candidate(summary, evidence, fix).holds()
}

#[cfg(test)]
mod tests {
    use parshall_evidence::{Capture, FdKind, HopKind, Role};

    use crate::testkit::service::{Hops, ServiceBuilder};
    use crate::testkit::{FlowBuilder, MS, ThreadBuilder, capture, verdict_of};

    fn two_loops(idle_ms: u64) -> Capture {
        let way = Hops::new().thread(100, 101, "app").on(HopKind::Unread, "").on(HopKind::OnCpu, "");
        let flows =
            [(1, 101), (2, 102)].map(|(id, tid)| FlowBuilder::new(id, Role::Server).owner(100, tid).talks(500, 100));
        let idle = ThreadBuilder::new(102).blocked(0, idle_ms * MS, "epoll_wait", FdKind::Anon);
        let mut capture = capture(flows.into(), vec![ThreadBuilder::new(101).samples(80, 20), idle]);
        let service = ServiceBuilder::new(7000).requests(1800, 4.0).workers(2).part(way, 0.85).cpu(0.15);
        capture.services = vec![service.build()];
        capture
    }

    #[test]
    fn the_other_loop_is_idle() {
        assert_eq!(verdict_of(&two_loops(900)), "hot-thread");
    }

    /// All connections are of 101; 102, of the same name, sleeps in `call`.
    fn only_one_serves(call: &str, name: &str) -> Capture {
        let mut capture = two_loops(950);
        let asleep = capture.threads.iter_mut().find(|t| t.tid == 102).expect("the other loop");
        asleep.comm = name.to_string();
        asleep.off_cpu.iter_mut().for_each(|cell| cell.syscall_name = call.to_string());
        capture.flows.iter_mut().for_each(|flow| flow.last_tid = 101);
        capture.services[0].workers = 1;
        capture
    }

    #[test]
    fn a_loop_that_never_got_a_connection_is_idle_too() {
        let hot = || only_one_serves("epoll_wait", &two_loops(0).threads[0].comm);
        assert_eq!(verdict_of(&hot()), "hot-thread");
        // A thread that waits for something else, or has another task.
        assert_ne!(verdict_of(&only_one_serves("futex", &two_loops(0).threads[0].comm)), "hot-thread");
        assert_ne!(verdict_of(&only_one_serves("epoll_wait", "watchdog")), "hot-thread");
        // The first thread of a runtime is none of its workers.
        let mut main = hot();
        main.threads.iter_mut().filter(|t| t.tid == 101).for_each(|t| t.pid = 101);
        assert_ne!(verdict_of(&main), "hot-thread");
    }

    #[test]
    fn where_connections_move_between_threads_no_thread_keeps_others_from_serving() {
        let mut moves = two_loops(900);
        moves.services[0].connections = 8;
        moves.services[0].moved = 8;
        assert_ne!(verdict_of(&moves), "hot-thread");
        moves.services[0].moved = 0;
        assert_eq!(verdict_of(&moves), "hot-thread");
    }

    #[test]
    fn a_thread_that_serves_nothing_is_no_hot_one() {
        // A job in a thread of the process has the interpreter's lock, which those that serve want.
        let mut job = two_loops(900);
        job.flows.iter_mut().for_each(|flow| flow.last_tid = if flow.last_tid == 101 { 103 } else { 102 });
        let mut third = job.threads[1].clone();
        third.tid = 103;
        job.threads.push(third);
        assert_eq!(verdict_of(&job), "hot-thread", "it is like one that could serve");
        job.threads[0].comm = "job".to_string();
        assert_ne!(verdict_of(&job), "hot-thread");
    }

    #[test]
    fn both_are_busy() {
        assert_eq!(verdict_of(&two_loops(300)), "at-capacity");
    }
}

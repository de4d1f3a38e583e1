//! Requests wait for a lock (futex) that another thread holds, and what the holder does does not explain the wait by itself: it
//! computes, sleeps or waits for its own client with the lock held.
//!
//! Look-alikes: a holder that waits for a disk, a name server, a full pipe or its quota (that is the cause then), threads that
//! sleep in futex for want of work, an interpreter's lock whose holder computes (user-cpu-bound), and a garbage collector.
use parshall_evidence::{Evidence, Hop, HopKind};

use super::base::{Candidate, Cause, Outcome};
use super::common::{Waits, not_spent, outstanding};
use crate::judge::chain::named;
use crate::judge::facts::{Facts, Spent};
use crate::judge::record;
use crate::judge::words;
use crate::units;

/// The entry in the list.
pub const CAUSE: Cause = Cause {
    id: "lock-contention",
    title: "Requests wait for a lock",
    test,
    symptom: |facts| facts.requests.share(Spent::Lock),
    testable: record::requests,
};

fn test(facts: &Facts<'_>) -> Outcome {
    let Some(waits) = Waits::on(facts, Spent::Lock) else { return not_spent(facts, Spent::Lock) };
    let lock = waits.hop(|h| h.kind == HopKind::Lock).unwrap_or(waits.leaf);
    let holder = waits.after(lock);
    // The way to a server ends on the network where that answers at once.
    let asks = waits.hop(|h| h.kind == HopKind::Reply && holder.is_some_and(|holder| holder.pid == h.pid));
    let asks = asks.filter(|_| matches!(waits.leaf.kind, HopKind::Reply | HopKind::Network));
    let did = match asks.filter(|asks| !asks.target.is_empty()) {
        Some(asks) => format!("waits for a reply from {}", asks.target),
        None => waits.loss.chain.last().map(|h| h.text.clone()).unwrap_or_default(),
    };
    let held = match holder {
        Some(holder) => format!("{} holds it and {did}", named(holder)),
        None => "who held it was not seen".to_string(),
    };
    let summary = waits.summary(&format!("{} waits for a lock; {held}.", named(lock)));
    let mut evidence = vec![outstanding(waits.service)];
    if waits.service.rec.working_ns > 0 {
        evidence.push(words::valued("requests worked on at a time, mean", waits.at_a_time(), "requests"));
    }
    if let Some(busy) = facts.thread(lock.tid).map(|t| crate::stats::ratio(t.ledger.on_cpu(), t.ledger.wall_ns)) {
        evidence.push(words::valued("waiting thread on a CPU", busy, "1"));
    }
    if waits.leaf.kind == HopKind::Deadlock {
        return deadlock(waits, evidence).holds();
    }
    let mut fix = fix(lock, holder, asks.unwrap_or(waits.leaf));
    if let Some(only) = asks.filter(|asks| is_only_connection(facts, asks)) {
        fix += &format!(
            " {} has one connection there: if the lock is for that, allow it more (the size of its connection pool).",
            named(only)
        );
    }
    waits.candidate(summary, evidence, fix).holds()
}

/// Whether a process has had one connection to the server that it waits for.
fn is_only_connection(facts: &Facts<'_>, asks: &Hop) -> bool {
    let there =
        facts.capture.flows.iter().filter(|flow| flow.pid == asks.pid && Some(flow.remote) == asks.object.peer());
    there.map(|flow| flow.connections()).fold(0, u64::saturating_add) == 1
}

/// Threads that wait for each other: it ends only when somebody ends one of them.
fn deadlock(waits: Waits<'_, '_>, evidence: Vec<Evidence>) -> Candidate {
    let cycle = waits.cycle();
    let one = cycle.iter().all(|hop| (hop.pid, &hop.thread) == (cycle[0].pid, &cycle[0].thread));
    let name = |hop: &Hop| if one { format!("thread {}", hop.tid) } else { named(hop) };
    let mut around: Vec<String> = cycle.iter().map(|hop| name(hop)).collect();
    if let (true, Some(first)) = (one, around.first_mut()) {
        *first = format!("{first} of {}", named(cycle[0]));
    }
    let summary = waits.summary(&match around.split_first() {
        Some((first, others)) if !others.is_empty() => {
            format!("A deadlock, in which {first} waits for {}.", others.join(", which waits for "))
        }
        _ => format!("A deadlock of {}.", named(cycle[0])),
    });
    let who = waits.leaf;
    let fix = format!(
        "None of them goes on by itself: restart {} now, then take the locks in the same order everywhere. \
         Where it waits: `{}`.",
        named(who),
        inspect(who)
    );
    waits.candidate(summary, evidence, fix)
}

fn fix(lock: &Hop, holder: Option<&Hop>, leaf: &Hop) -> String {
    let Some(holder) = holder else {
        return format!("Find the holder: `{}`. Then hold the lock for less, or split it.", find_holder(lock));
    };
    let who = named(holder);
    let change = match leaf.kind {
        HopKind::Client => format!("{who} holds the lock while its client sends nothing: end its transaction sooner."),
        HopKind::Timer => format!("{who} sleeps while it holds the lock: release it before the wait."),
        HopKind::Reply => {
            format!(
                "{who} holds the lock while it waits for {}: release it before the call.",
                units::or(&leaf.target, "a server")
            )
        }
        HopKind::OnCpu | HopKind::RunQueue => {
            format!("{who} computes while it holds the lock: move the work out of it, or split the lock.")
        }
        _ => format!("Hold the lock in {who} for less, or split it."),
    };
    format!("{change} What it does there: `{}`.", inspect(holder))
}

/// A command that shows who holds what this one waits for.
fn find_holder(waiter: &Hop) -> String {
    let pid = waiter.pid;
    match waiter.process.as_str() {
        p if p.starts_with("postgres") => {
            format!("SELECT * FROM pg_stat_activity WHERE pid = ANY (pg_blocking_pids({pid}))")
        }
        _ => inspect(waiter),
    }
}

/// A command that shows what the holder does, by what kind of process it is.
fn inspect(hop: &Hop) -> String {
    let pid = hop.pid;
    match hop.process.as_str() {
        p if p.starts_with("postgres") => format!("SELECT * FROM pg_stat_activity WHERE pid = {pid}"),
        p if p.starts_with("mariadb") || p.starts_with("mysqld") => "SHOW ENGINE INNODB STATUS".to_string(),
        "java" => format!("jstack {pid}"),
        p if p.starts_with("python") || p.starts_with("gunicorn") => format!("py-spy dump --pid {pid}"),
        _ => format!("gdb -p {pid} -batch -ex 'thread apply all bt'"),
    }
}

#[cfg(test)]
mod tests {
    use parshall_evidence::{Frame, HopKind, Interpreted, Role, Stack};

    use crate::judge::judge;
    use crate::testkit::FlowBuilder;
    use crate::testkit::service::{Hops, ServiceBuilder, with};

    fn locked(leaf: HopKind) -> ServiceBuilder {
        let way = Hops::new().thread(100, 101, "app").on(HopKind::Lock, "futex").thread(100, 102, "app").on(leaf, "");
        ServiceBuilder::new(7000).requests(200, 40.0).part(way, 0.9).cpu(0.1)
    }

    #[test]
    fn a_holder_that_sleeps_or_waits_for_its_client() {
        for leaf in [HopKind::Timer, HopKind::Client, HopKind::Reply, HopKind::Kernel] {
            let report = judge(&with(locked(leaf)));
            assert_eq!(report.verdict.cause.as_deref(), Some("lock-contention"), "{leaf:?}: {report:#?}");
            let finding = &report.findings[0];
            assert_eq!((finding.place.pid, finding.place.tid), (Some(100), Some(102)));
            assert!((finding.share - 0.9).abs() < 0.01 && finding.fix.text.contains("gdb -p 100"), "{finding:#?}");
        }
    }

    #[test]
    fn the_lock_of_a_pool_of_one_connection() {
        // The holder asks a server that answers at once, and is far away.
        let asks = |connections: u64| {
            let way = Hops::new().thread(100, 101, "app").on(HopKind::Lock, "futex").thread(100, 102, "app");
            let way = way.on(HopKind::Reply, "poll").target("10.0.0.2:5432").thread(0, 0, "").on(HopKind::Network, "");
            let mut capture = with(ServiceBuilder::new(7000).requests(200, 40.0).part(way, 0.9).cpu(0.1));
            capture.flows = (1..=connections)
                .map(|id| {
                    let mut flow = FlowBuilder::new(id, Role::Client).remote_host().owner(100, 102).fill();
                    flow.record.remote = "10.0.0.2:5432".parse().expect("an address");
                    flow.record
                })
                .collect();
            judge(&capture).findings.remove(0)
        };
        let (one, two) = (asks(1), asks(2));
        assert_eq!(one.cause, "lock-contention");
        assert!(one.summary.contains("holds it and waits for a reply from 10.0.0.2:5432"), "{}", one.summary);
        assert!(one.fix.text.contains("size of its connection pool"), "{}", one.fix.text);
        assert!(
            two.fix.text.contains("release it before the call") && !two.fix.text.contains("pool"),
            "{}",
            two.fix.text
        );
    }

    #[test]
    fn the_leaf_is_the_cause_where_it_explains_the_wait() {
        for (leaf, cause) in [
            (HopKind::Disk, "blocking-disk-io"),
            (HopKind::NameServer, "blocking-dns"),
            (HopKind::Throttled, "cpu-throttled"),
            (HopKind::Stopped, "process-stopped"),
        ] {
            assert_eq!(crate::testkit::verdict_of(&with(locked(leaf))), cause);
        }
    }

    #[test]
    fn a_lock_with_a_time_limit_is_no_timer_in_the_chain() {
        let way = Hops::new().thread(100, 101, "mariadbd").on(HopKind::Timer, "futex");
        let mut capture = with(ServiceBuilder::new(3306).requests(200, 40.0).part(way, 0.9).cpu(0.1));
        let frame = Frame { name: "MDL_wait::timed_wait".into(), module: "mariadbd".into(), kernel: false };
        capture.stacks = vec![Stack { frames: vec![frame] }];
        capture.services[0].path[0].hops[0].stack = Some(0);
        let report = judge(&capture);
        assert_eq!(report.verdict.cause.as_deref(), Some("lock-contention"));
        let hop = &report.findings[0].chain[0];
        assert_eq!(hop.text, "waits for a lock, with a timer in futex (MDL_wait::timed_wait)");
        assert_eq!(hop.waits_on, "lock");
        // The account of the time has the same name for it.
        let work = &report.service.as_ref().expect("it has requests").time.work;
        let rows: Vec<(&str, &str)> = work.iter().map(|row| (row.state.as_str(), row.label.as_str())).collect();
        assert_eq!(rows, [("lock", "waiting for a lock"), ("on-cpu", "on a CPU")]);
    }

    #[test]
    fn a_timer_of_another_cause_stays_one_in_the_account() {
        let way = Hops::new().thread(100, 101, "app").on(HopKind::Timer, "clock_nanosleep");
        let report = judge(&with(ServiceBuilder::new(7000).requests(200, 40.0).part(way, 0.9).cpu(0.1)));
        assert_eq!(report.verdict.cause.as_deref(), Some("timer-wait"));
        assert_eq!(report.service.as_ref().map(|s| s.time.work[0].label.as_str()), Some("waiting for a timer"));
    }

    #[test]
    fn a_deadlock_says_who_waits_for_whom() {
        let way = Hops::new()
            .thread(100, 101, "app")
            .on(HopKind::Lock, "futex")
            .thread(100, 102, "app")
            .on(HopKind::Lock, "futex")
            .thread(100, 101, "app")
            .on(HopKind::Deadlock, "futex");
        let report = judge(&with(ServiceBuilder::new(7000).requests(200, 40.0).part(way, 0.9).cpu(0.1)));
        let finding = &report.findings[0];
        assert_eq!(finding.cause, "lock-contention");
        assert!(
            finding
                .summary
                .contains("A deadlock, in which thread 101 of app 100 waits for thread 102, which waits for"),
            "{}",
            finding.summary
        );
        assert_eq!(finding.summary.matches(" waits for ").count(), 2, "{}", finding.summary);
        assert!(finding.fix.text.contains("restart"), "{}", finding.fix.text);
    }

    #[test]
    fn the_holder_of_a_row_is_asked_for_by_its_waiter() {
        let waits = || Hops::new().thread(950, 950, "postgres").on(HopKind::Lock, "epoll_wait");
        let fix = |way: Hops| {
            let report = judge(&with(ServiceBuilder::new(5432).requests(200, 40.0).part(way, 0.9).cpu(0.1)));
            report.findings[0].fix.text.clone()
        };
        assert!(fix(waits()).contains("pid = ANY (pg_blocking_pids(950))"), "{}", fix(waits()));
        let held = fix(waits().thread(940, 940, "postgres").on(HopKind::Client, "recvfrom"));
        assert!(held.contains("WHERE pid = 940"), "{held}");
    }

    #[test]
    fn an_unseen_holder_is_never_of_high_confidence() {
        let way = Hops::new().thread(100, 101, "app").on(HopKind::Lock, "futex");
        let report = judge(&with(ServiceBuilder::new(7000).requests(200, 40.0).part(way, 0.9).cpu(0.1)));
        assert_eq!(report.verdict.cause.as_deref(), Some("lock-contention"));
        assert_eq!(report.verdict.confidence, parshall_evidence::Confidence::Medium);
        assert!(report.verdict.summary.contains("was not seen"), "{}", report.verdict.summary);
    }

    #[test]
    fn an_interpreter_lock_whose_holder_computes_is_computing() {
        let way = |process: &str| {
            Hops::new()
                .thread(100, 101, process)
                .on(HopKind::Lock, "futex")
                .thread(100, 102, process)
                .on(HopKind::OnCpu, "")
        };
        let service = |process: &str| ServiceBuilder::new(7000).requests(200, 20.0).part(way(process), 0.7).cpu(0.3);
        assert_eq!(crate::testkit::verdict_of(&with(service("python3"))), "user-cpu-bound");
        assert_eq!(crate::testkit::verdict_of(&with(service("app"))), "lock-contention");
        // Functions that the interpreter runs tell nothing of its lock, whose own functions may have no names.
        let way = Hops::new().thread(100, 101, "python3").on(HopKind::Lock, "futex").stack(0);
        let way = way.thread(100, 102, "python3").on(HopKind::OnCpu, "");
        let mut capture = with(ServiceBuilder::new(7000).requests(200, 20.0).part(way, 0.7).cpu(0.3));
        let python = Frame::of_interpreter("view (app.py:3)".to_string(), "python3.11", Interpreted::Application);
        let native = |name: &str| Frame { name: name.to_string(), module: "libc.so.6".to_string(), kernel: false };
        let mut verdict = |frames: &[Frame]| {
            capture.stacks = vec![Stack { frames: frames.to_vec() }];
            crate::testkit::verdict_of(&capture)
        };
        assert_eq!(verdict(std::slice::from_ref(&python)), "user-cpu-bound");
        assert_eq!(verdict(&[native("0x88d36"), python.clone()]), "user-cpu-bound");
        assert_eq!(verdict(&[native("futex_wait"), native("take_gil"), python.clone()]), "user-cpu-bound");
        assert_eq!(verdict(&[native("sem_clockwait"), python]), "lock-contention");
    }
}

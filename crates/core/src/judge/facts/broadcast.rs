//! Broadcasts: a source sends the same to several receivers at the same time, such as a camera, a radio or news. It sends when there is
//! something to send. The time between is no pause of a sender that has more, and no receiver waits for it.
//!
//! The threads of a pool take turns: one sleeps until it is time, and the others until it hands the next turn on.
//!
//! Clients that each load something slowly look alike: every one is at a place of its own, so that their pauses do not end together. A
//! source that waits for its disk or for a peer is slow for all of its receivers.
use std::collections::{BTreeMap, HashMap, HashSet};

use super::doing::wait_of;
use super::{Blame, Facts, Part};
use crate::stats;
use crate::wait::Wait;

/// Fewer flows may have the same pauses by chance, or are the two ends of one stream.
const RECEIVERS_MIN: usize = 3;
/// Of the flows of a process, and of the pauses of a flow, as many end together with others.
const MOST: f64 = 0.8;
/// Where others sleep until another thread wakes them: of the pauses of a flow, as many are of one that sleeps until it is time.
const SOME: f64 = 0.2;
/// What a thread waits for may be computed by another one of its process, if these are on a CPU for longer than this share of the time.
const COMPUTES: f64 = 0.3;
/// Pauses end together that end within their length divided by this.
const TOGETHER: f64 = 10.0;

/// Takes away the pauses of broadcasts.
pub fn drop_pauses(facts: &Facts<'_>, parts: &mut Vec<Part>) {
    let mut pauses = BTreeMap::<u32, Vec<Pause>>::new();
    let mut sums = BTreeMap::<usize, Sums>::new();
    for part in parts.iter().filter(|part| part.supply) {
        let wait = part.off.map(|off| wait_of(facts, off));
        let until_time = matches!(wait, Some(Wait::Multiplex | Wait::Sleep));
        let asleep = until_time || wait == Some(Wait::Futex);
        let sum = sums.entry(part.flow).or_default();
        sum.all_ns += part.ns;
        if let Some((begin, length)) = part.span.filter(|_| asleep && part.blame == Blame::SupplyBlocked) {
            sum.asleep_ns += part.ns;
            sum.until_time_ns += if until_time { part.ns } else { 0.0 };
            let pause = Pause { flow: part.flow, end_ns: begin.saturating_add(length), ns: length };
            let pid = facts.thread(part.tid).map_or(part.tid, |thread| thread.rec.pid);
            pauses.entry(pid).or_default().push(pause);
        }
    }
    let is_asleep = |flow: &usize| {
        let Some(sum) = sums.get(flow) else { return false };
        let alone = sum.until_time_ns >= MOST * sum.all_ns;
        let in_turn = sum.asleep_ns >= MOST * sum.all_ns && sum.until_time_ns >= SOME * sum.all_ns;
        alone || in_turn && !computes(facts, facts.flows[*flow].rec.pid)
    };
    let live: HashSet<usize> = pauses.into_values().flat_map(pausing_together).filter(is_asleep).collect();
    parts.retain(|part| !part.supply || !live.contains(&part.flow));
}

fn computes(facts: &Facts<'_>, pid: u32) -> bool {
    let threads = facts.threads.iter().filter(|thread| thread.rec.pid == pid);
    threads.map(|thread| thread.ledger.on_cpu()).sum::<f64>() > COMPUTES * facts.capture.window_ns as f64
}

/// The pauses of a flow in sum, those of a thread that sleeps, and of these those of one that sleeps until it is time.
#[derive(Debug, Clone, Copy, Default)]
struct Sums {
    all_ns: f64,
    asleep_ns: f64,
    until_time_ns: f64,
}

/// A time in which a thread has nothing to send on a flow.
#[derive(Debug, Clone, Copy)]
struct Pause {
    flow: usize,
    end_ns: u64,
    ns: u64,
}

/// Of the flows of a process those whose pauses mostly end together with those of most others.
fn pausing_together(mut pauses: Vec<Pause>) -> Vec<usize> {
    let flows: HashSet<usize> = pauses.iter().map(|pause| pause.flow).collect();
    if flows.len() < RECEIVERS_MIN {
        return Vec::new();
    }
    pauses.sort_unstable_by_key(|pause| (pause.end_ns, pause.flow));
    let lengths: Vec<f64> = pauses.iter().map(|pause| pause.ns as f64).collect();
    let near_ns = (stats::quantile(&lengths, 0.5).unwrap_or(0.0) / TOGETHER) as u64;
    // The flows with a pause that ends near, by how many such pauses they have.
    let mut near = HashMap::<usize, usize>::new();
    let (mut first, mut next) = (0, 0);
    // By flow: its pauses, and those that end together with others.
    let mut counts = BTreeMap::<usize, (usize, usize)>::new();
    for pause in &pauses {
        while let Some(other) = pauses.get(next).filter(|other| other.end_ns <= pause.end_ns.saturating_add(near_ns)) {
            *near.entry(other.flow).or_default() += 1;
            next += 1;
        }
        while pauses[first].end_ns < pause.end_ns.saturating_sub(near_ns) {
            if let Some(left) = near.get_mut(&pauses[first].flow) {
                *left -= 1;
                if *left == 0 {
                    near.remove(&pauses[first].flow);
                }
            }
            first += 1;
        }
        let count = counts.entry(pause.flow).or_default();
        count.0 += 1;
        count.1 += usize::from(near.len() as f64 >= MOST * flows.len() as f64);
    }
    let mostly = |(all, together): &(usize, usize)| *together as f64 >= MOST * *all as f64;
    counts.into_iter().filter(|(_, count)| mostly(count)).map(|(flow, _)| flow).collect()
}

#[cfg(test)]
mod tests {
    use parshall_evidence::{FdKind, FlowState, Release, Role};

    use crate::testkit::{FlowBuilder, MS, ThreadBuilder, capture, verdict_of};

    /// `flows` to which a thread sends each 80 ms, after it has slept in a call; the pauses of each begin so much later.
    fn source(flows: u64, later_ns: u64, call: &str, fd: FdKind) -> String {
        let flow = |id: u64| {
            FlowBuilder::new(id, Role::Server)
                .every(80 * MS, (id - 1) * later_ns, 70 * MS, FlowState::IdleAfterSend, Release::AppSend)
                .streams(50, 30_000)
        };
        let thread = ThreadBuilder::new(101).sleeps(80 * MS, 0, 70 * MS, call, fd);
        verdict_of(&capture((1..=flows).map(flow).collect(), vec![thread]))
    }

    #[test]
    fn a_broadcast_is_not_slow() {
        for (call, fd) in [("epoll_wait", FdKind::Anon), ("clock_nanosleep", FdKind::None)] {
            assert_eq!(source(5, MS / 2, call, fd), "healthy", "{call}");
        }
    }

    #[test]
    fn what_each_loads_at_a_place_of_its_own_is() {
        assert_eq!(source(5, 15 * MS, "epoll_wait", FdKind::Anon), "app-limited");
    }

    #[test]
    fn a_source_that_waits_for_its_disk_is() {
        assert_eq!(source(5, MS / 2, "read", FdKind::File), "app-limited");
    }

    /// Five flows to which threads of a process send by turns each 20 ms: of four turns as many are of a thread that slept in epoll_wait, and
    /// the others of one that slept in futex. Another one may compute.
    fn pool(in_epoll: u64, computes: bool) -> String {
        let mut flows: Vec<FlowBuilder> =
            (1..=5).map(|id| FlowBuilder::new(id, Role::Server).owner(100, 101).streams(50, 3_900)).collect();
        let mut threads = vec![ThreadBuilder::new(101), ThreadBuilder::new(102)];
        for turn in 0..50_u64 {
            let (at, leads) = (turn * 20 * MS, turn % 4 < in_epoll);
            for flow in &mut flows {
                *flow = flow.clone().stall(at, 19 * MS, FlowState::IdleAfterSend, Release::AppSend);
                flow.stalls.last_mut().expect("a stall").tid = if leads { 101 } else { 102 };
            }
            let (call, fd) = if leads { ("epoll_wait", FdKind::Anon) } else { ("futex", FdKind::None) };
            threads[0] = threads[0].clone().blocked(at, 19 * MS, call, fd);
            threads[1] = threads[1].clone().blocked(at, 19 * MS, "futex", FdKind::None);
        }
        threads.extend(computes.then(|| ThreadBuilder::new(103)));
        verdict_of(&capture(flows, threads))
    }

    #[test]
    fn threads_that_take_turns_are_one_source() {
        assert_eq!(pool(3, false), "healthy");
        assert_eq!(pool(1, false), "healthy");
        // A sender that waits for another thread each time, or beside one that computes, may wait for that.
        assert_eq!(pool(0, false), "app-limited");
        assert_ne!(pool(1, true), "healthy");
    }

    #[test]
    fn two_may_be_alike_by_chance() {
        assert_eq!(source(2, 0, "epoll_wait", FdKind::Anon), "app-limited");
    }
}

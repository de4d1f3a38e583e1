//! The way from a service to what its requests wait for, as a report shows it: parts of the requests' time that went the same way
//! through the same processes are one chain.
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use parshall_evidence::{Capture, Chain, ChainHop, ChainLeaf, Finding, Frame, Hop, HopKind, Interpreted};

use crate::judge::facts::requests::{PartFact, ServiceFact, Turn, blocked_in, turn_of};
use crate::judge::facts::{Facts, Spent};
use crate::report;
use crate::sorting::StableSort as _;
use crate::stats::ratio;

/// Frames of a stack in a report.
const FRAMES_MAX: usize = 24;

/// Neighbouring hops of one thread: the last of them says what it waited for.
#[derive(Debug, Clone, Copy)]
struct Step<'a> {
    hop: &'a Hop,
    /// The request had not been read, or not been accepted, when the thread did this.
    queue: Option<HopKind>,
    /// Its timer is the limit of a wait for a lock.
    limited_lock: bool,
}

impl<'a> Step<'a> {
    fn new(hop: &'a Hop, queue: Option<HopKind>) -> Step<'a> {
        Step { hop, queue, limited_lock: false }
    }
}

/// The chain of most of what a service lost to one thing, thread by thread; empty when it lost nothing to it.
pub fn of(facts: &Facts<'_>, service: &ServiceFact<'_>, spent: Spent) -> Vec<ChainHop> {
    let mut ways: BTreeMap<Vec<(&str, HopKind)>, (f64, &PartFact<'_>)> = BTreeMap::new();
    for part in service.lost_to(spent) {
        let key = steps(&part.rec.hops).iter().map(|s| (s.hop.process.as_str(), s.hop.kind)).collect();
        let (ns, most) = ways.entry(key).or_insert((0.0, part));
        *ns += part.ns;
        if part.ns > most.ns {
            *most = part;
        }
    }
    let most = ways.into_values().max_by(|a, b| a.0.total_cmp(&b.0));
    let Some((_, part)) = most else { return Vec::new() };
    let mut way = steps(until_limit(facts, part));
    if let Some(last) = way.last_mut() {
        last.limited_lock = part.ends_in_limited_lock();
    }
    let mut found = hops(facts, service, &way);
    if turn(facts, part).is_some_and(|turn| turn.helper.is_some()) {
        // The helper, for which the process with the limit waits.
        found.pop();
    } else if let (Some(last), Some(next)) = (found.last_mut(), asked_in_turn(facts, part)) {
        last.waits_on = next;
    }
    found
}

/// Who is asked for fewer requests at a time than there are, where this is what a part of the requests' time went to: the process, or else
/// its address.
fn asked_in_turn(facts: &Facts<'_>, part: &PartFact<'_>) -> Option<String> {
    let next = turn(facts, part)?.limit.next?;
    let timeline = facts.capture.timeline.as_ref();
    let sockets = || timeline.iter().flat_map(|t| &t.sockets).filter(|(_, socket)| socket.remote == next);
    let observed = || {
        let ends = sockets().filter_map(|(_, socket)| timeline?.sockets.get(&socket.other_end?));
        let names = |pid: u32| timeline?.names.values().find(|names| names.pid == pid);
        ends.filter_map(|end| names(end.pid)).map(|names| names.process.clone()).next()
    };
    let unobserved =
        || sockets().find_map(|(id, _)| timeline?.unobserved_ends.get(id)).map(|holder| holder.process.clone());
    observed().or_else(unobserved).filter(|name| !name.is_empty()).or_else(|| Some(next.to_string()))
}

/// Where requests wait for others of which only some are passed on at a time.
fn turn<'t>(facts: &'t Facts<'_>, part: &'t PartFact<'_>) -> Option<Turn<'t>> {
    let (services, rec) = (facts.requests.all, part.rec);
    match part.spent {
        Spent::Turn => turn_of(services, rec),
        Spent::Serial => turn_of(services, rec).or_else(|| blocked_in(services, &rec.hops)),
        _ => None,
    }
}

/// Where requests wait for those before them, the way ends with who serves these: not with the distance to a server that it asks. Where they
/// wait for their turn, it ends there: what those wait for whose turn it is would not be waited for with a higher limit. A helper that asks
/// for a few at a time comes after the end.
fn until_limit<'a>(facts: &Facts<'_>, part: &PartFact<'a>) -> &'a [Hop] {
    let hops = part.rec.hops.as_slice();
    if let ([served @ .., last], Spent::Serial | Spent::Workers) = (hops, part.spent)
        && last.kind == HopKind::Network
        && !served.is_empty()
    {
        return served;
    }
    let last = turn(facts, part).map(|turn| turn.helper.unwrap_or(turn.hop));
    let at = last.and_then(|last| hops.iter().position(|hop| std::ptr::eq(hop, last)));
    at.map_or(hops, |at| &hops[..=at])
}

fn steps(hops: &[Hop]) -> Vec<Step<'_>> {
    let mut steps: Vec<Step<'_>> = Vec::new();
    for hop in hops {
        let queue = hop.kind.is_queue().then_some(hop.kind);
        match steps.last_mut() {
            Some(last) if last.hop.tid == hop.tid && hop.tid != 0 => *last = Step::new(hop, last.queue.or(queue)),
            // The thread that took the request in was busy with this thread's work: this hop says it all.
            Some(last) if last.hop.pid == hop.pid && last.hop.kind == HopKind::Unread => {
                *last = Step::new(hop, last.queue);
            }
            _ => steps.push(Step::new(hop, queue)),
        }
    }
    steps
}

fn hops(facts: &Facts<'_>, service: &ServiceFact<'_>, way: &[Step<'_>]) -> Vec<ChainHop> {
    let others: Vec<(Vec<Step<'_>>, f64)> = service.parts.iter().map(|p| (steps(&p.rec.hops), p.ns)).collect();
    let same = |a: &Step<'_>, b: &Step<'_>| a.hop.process == b.hop.process;
    (0..way.len())
        .map(|i| {
            let is_leaf = i + 1 == way.len();
            let mut through = 0.0;
            let (mut pids, mut tids) = (BTreeMap::<u32, f64>::new(), BTreeSet::from([way[i].hop.tid]));
            for (steps, ns) in &others {
                let matches = steps.len() > i && way[..=i].iter().zip(steps).all(|(a, b)| same(a, b));
                if !matches || (is_leaf && steps[i].hop.kind != way[i].hop.kind) {
                    continue;
                }
                through += ns;
                *pids.entry(steps[i].hop.pid).or_default() += ns;
                tids.insert(steps[i].hop.tid);
            }
            let threads = (tids.len() as u64).max(u64::from(way[i].hop.threads));
            ChainHop {
                share: ratio(through, service.time_ns).min(1.0),
                threads,
                ..hop(facts, &way[i], way.get(i + 1), by_time(pids, way[i].hop.pid), service.rec.waited)
            }
        })
        .collect()
}

/// Most time first, but the hop's own process before all.
fn by_time(pids: BTreeMap<u32, f64>, own: u32) -> Vec<u32> {
    let mut list: Vec<(u32, f64)> = pids.into_iter().filter(|(pid, _)| *pid != 0 && *pid != own).collect();
    list.stable_sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    let own = (own != 0).then_some(own);
    own.into_iter().chain(list.into_iter().map(|(pid, _)| pid)).collect()
}

/// `waited`: the state of the threads was read, and no wake-up was seen.
fn hop(facts: &Facts<'_>, step: &Step<'_>, next: Option<&Step<'_>>, pids: Vec<u32>, waited: bool) -> ChainHop {
    let hop = step.hop;
    let mut services = facts.requests.services.iter().map(|service| service.rec);
    let serves = services.find(|s| !s.outbound && s.pids.contains(&hop.pid));
    let of = serves.map_or(0, |s| if pids.len() > 1 { s.pids.len() as u64 } else { u64::from(s.workers) });
    let waits_on = match next {
        Some(next) if !next.hop.process.is_empty() => next.hop.process.clone(),
        _ if step.limited_lock => "lock".to_owned(),
        _ => resource(hop).to_string(),
    };
    ChainHop {
        process: hop.process.clone(),
        pid: hop.pid,
        pids,
        thread: hop.thread.clone(),
        tid: hop.tid,
        threads: 1,
        of,
        waits_on,
        text: words(facts.capture, step, next, waited),
        share: 0.0,
        stack: if next.is_none() { stack(facts.capture, hop) } else { Vec::new() },
    }
}

/// The resource that a hop without a next one waits on, in a word or two.
fn resource(hop: &Hop) -> &str {
    match hop.kind {
        HopKind::OnCpu | HopKind::RunQueue => "cpu",
        HopKind::Throttled => "quota",
        HopKind::Stopped => "signal",
        HopKind::Lock | HopKind::Deadlock => "lock",
        HopKind::Turn => "turn",
        HopKind::Worker => "worker",
        HopKind::Disk => "disk",
        HopKind::Memory => "memory",
        HopKind::Timer => "timer",
        HopKind::NameServer => "name server",
        HopKind::Pipe => "pipe",
        HopKind::Client => "client",
        HopKind::Reply | HopKind::Close | HopKind::Send | HopKind::Connect if !hop.target.is_empty() => &hop.target,
        HopKind::Reply | HopKind::Close | HopKind::Send | HopKind::Connect => "peer",
        HopKind::Held => "ack",
        HopKind::Network => "network",
        HopKind::OtherRequest => "other request",
        HopKind::AcceptQueue | HopKind::Unread => "reader",
        HopKind::Idle => "events",
        HopKind::Kernel => "kernel",
        HopKind::Unseen => "unseen",
    }
}

fn words(capture: &Capture, step: &Step<'_>, next: Option<&Step<'_>>, waited: bool) -> String {
    let hop = step.hop;
    let target = |before: &str| if hop.target.is_empty() { String::new() } else { format!("{before}{}", hop.target) };
    let call = || if hop.syscall.is_empty() { String::new() } else { format!(" in {}", hop.syscall) };
    let next_name = next.map(|n| named(n.hop)).unwrap_or_default();
    let did = match hop.kind {
        HopKind::OnCpu => "runs on a CPU".to_string(),
        HopKind::RunQueue if hop.target.is_empty() => "waits for a CPU".to_string(),
        HopKind::RunQueue => format!("waits for a CPU that runs {}", hop.target),
        HopKind::Throttled => "is out of CPU quota".to_string(),
        HopKind::Stopped => format!("is stopped{}", target(" by ")),
        HopKind::Lock if next.is_some() && waited => format!("waits{} for a lock that {next_name} holds", call()),
        HopKind::Lock if next.is_some() => {
            format!("waits{}{} for a lock, always woken by {next_name}", call(), function(capture, hop))
        }
        HopKind::Lock => format!("waits{}{} for a lock", call(), function(capture, hop)),
        HopKind::Turn => format!("lets the request wait for its turn{}", target(" to ask ")),
        HopKind::Deadlock => format!("waits{}{} for those who wait for it: a deadlock", call(), function(capture, hop)),
        HopKind::Worker if next.is_some() => format!("waits{} for {next_name} to finish", call()),
        HopKind::Worker => format!("waits{} for a worker to finish", call()),
        HopKind::Disk => format!("waits for the disk{}{}", call(), target(": ")),
        HopKind::Memory => format!("waits for memory{}{}", call(), function(capture, hop)),
        HopKind::Timer if step.limited_lock => {
            format!("waits for a lock, with a timer{}{}", call(), function(capture, hop))
        }
        HopKind::Timer => format!("waits for a timer{}{}", call(), function(capture, hop)),
        HopKind::Reply => format!("waits for a reply{}", target(" from ")),
        HopKind::Close => format!("has the reply, and waits for the end of the connection{}", target(" to ")),
        HopKind::NameServer => format!("waits for the name server{}", target(" ")),
        HopKind::Pipe if next.is_some() => format!("waits{} for {next_name}{}", call(), target(": ")),
        HopKind::Pipe => format!("waits{} for the other end of a pipe{}", call(), target(": ")),
        HopKind::Client => format!("sleeps{}: its client{} sends nothing", call(), target(" ")),
        HopKind::Send => format!(
            "waits until{} takes what it sends",
            if hop.target.is_empty() { " the receiver".to_string() } else { target(" ") }
        ),
        HopKind::Held => format!(
            "has written the rest{}, and its socket holds it until the first part is acknowledged",
            target(" for ")
        ),
        HopKind::Connect => format!("waits for a connection{}", target(" to ")),
        HopKind::Network => "data is on the way".to_string(),
        HopKind::OtherRequest if waited => "serves other requests first, one at a time".to_string(),
        HopKind::OtherRequest => format!("waits{} for what another request brings", call()),
        HopKind::AcceptQueue => "has not accepted the connection".to_string(),
        HopKind::Unread => "has not read the request".to_string(),
        HopKind::Idle if waited && !hop.target.is_empty() => {
            format!(
                "has taken it in, waits{} for events, and has sent nothing on its connection to {}",
                call(),
                hop.target
            )
        }
        HopKind::Idle => format!("has taken it in, and waits{} for events", call()),
        HopKind::Kernel => format!("is blocked{}{}", call(), function(capture, hop)),
        HopKind::Unseen => "what it did was not seen".to_string(),
    };
    let did = match hop.title.split_once(": ") {
        Some((_, title)) if next.is_none() => format!("{did} ({})", unbracketed(title)),
        _ => did,
    };
    match step.queue {
        Some(HopKind::AcceptQueue) if hop.kind == HopKind::Idle => {
            format!("accepts no further connection, and waits{} for events", call())
        }
        Some(HopKind::AcceptQueue) if hop.kind != HopKind::AcceptQueue => format!("does not accept yet: it {did}"),
        Some(HopKind::Unread) if hop.kind != HopKind::Unread => format!("does not read yet: it {did}"),
        _ => did,
    }
}

/// A title without brackets of its own around it, as that of proftpd has: `(accepting connections)`.
fn unbracketed(title: &str) -> &str {
    let inner = title.strip_prefix('(').and_then(|rest| rest.strip_suffix(')'));
    inner.filter(|inner| !inner.contains(['(', ')'])).unwrap_or(title)
}

/// `postgres 940`, or the thread's own name where that differs.
pub fn named(hop: &Hop) -> String {
    match (hop.process.as_str(), hop.thread.as_str()) {
        ("", "") => format!("thread {}", hop.tid),
        (process, thread) if thread.is_empty() || thread == process => format!("{process} {}", hop.pid),
        (process, thread) => format!("{process} {} (thread {} {thread})", hop.pid, hop.tid),
    }
}

/// The innermost function of the program's own in a wait: in brackets, or where an interpreter runs it with file and line.
fn function(capture: &Capture, hop: &Hop) -> String {
    const LIBRARY: [&str; 10] =
        ["0x", "_", "futex", "pthread", "syscall", "sem", "do_futex", "clock_nanosleep", "nanosleep", "epoll"];
    let stack = hop.stack.and_then(|i| capture.stacks.get(i as usize));
    if let Some(own) = stack.and_then(|stack| own_interpreted(&stack.frames)) {
        return format!(" from {}", report::simplified(&own.name));
    }
    let mut frames = stack.iter().flat_map(|s| &s.frames).filter(|f| !f.kernel && !f.module.contains("libc"));
    let own = frames.find(|f| !LIBRARY.iter().any(|p| f.name.starts_with(p)));
    own.map_or_else(String::new, |f| format!(" ({})", report::simplified(without_arguments(&f.name))))
}

/// The function of an interpreted stack that is the application's own, or that of the packages that it uses: the innermost one. The code
/// outside of all functions has only begun what runs.
pub fn own_interpreted(frames: &[Frame]) -> Option<&Frame> {
    let interpreted = frames.iter().filter_map(|frame| {
        let outside = frame.name.starts_with("<module>");
        Some((if outside { Interpreted::Library } else { frame.interpreted()? }, frame))
    });
    interpreted.min_by_key(|(from, _)| *from).map(|(_, frame)| frame)
}

/// A C++ function without the types of its arguments.
fn without_arguments(function: &str) -> &str {
    let begin = function.find('(').filter(|&at| at > 0 && function.ends_with(')'));
    begin.map_or(function, |at| &function[..at])
}

fn stack(capture: &Capture, hop: &Hop) -> Vec<String> {
    let stack = hop.stack.and_then(|i| capture.stacks.get(i as usize));
    let frames = stack.iter().flat_map(|s| &s.frames).take(FRAMES_MAX);
    frames.map(|f| if f.kernel { format!("{} [k]", f.name) } else { f.name.clone() }).collect()
}

/// Whether a part shows what the time was spent on in the end, and not only that somebody waited.
pub fn is_end_seen(facts: &Facts<'_>, part: &PartFact<'_>) -> bool {
    if part.spent == Spent::Turn {
        return true;
    }
    part.rec.hops.last().is_some_and(|leaf| match leaf.kind {
        HopKind::Unseen | HopKind::Idle | HopKind::Lock | HopKind::Worker | HopKind::Unread | HopKind::AcceptQueue => {
            false
        }
        HopKind::Reply => is_elsewhere(facts, &leaf.target),
        // A lock whose wait has a limit: the timer is not what it waits for.
        HopKind::Timer if part.spent == Spent::Lock => part.rec.hops.iter().any(|h| h.kind == HopKind::Lock),
        _ => true,
    })
}

/// An address of another host, as far as this host's flows tell.
pub fn is_elsewhere(facts: &Facts<'_>, target: &str) -> bool {
    let Ok(address) = target.parse::<SocketAddr>() else { return false };
    let ip = address.ip().to_canonical();
    !ip.is_loopback() && !facts.is_local(ip)
}

/// The chain of a finding, process by process; None where it has none.
pub fn of_finding(finding: &Finding, seen: bool) -> Option<Chain> {
    let last = finding.chain.last()?;
    let mut hops: Vec<ChainHop> = Vec::new();
    for hop in finding.chain.iter().filter(|h| h.pid != 0 || !h.process.is_empty()) {
        match hops.last_mut() {
            Some(before) if before.pid == hop.pid => {
                let share = before.share;
                *before = ChainHop { share, ..hop.clone() };
            }
            _ => hops.push(hop.clone()),
        }
    }
    let leaf = ChainLeaf {
        process: last.process.clone(),
        pid: last.pid,
        thread: last.thread.clone(),
        tid: last.tid,
        cause: finding.cause.clone(),
        seen,
    };
    Some(Chain { hops, leaf })
}

#[cfg(test)]
mod tests {
    use super::unbracketed;

    #[test]
    fn a_title_has_one_pair_of_brackets() {
        for (title, inner) in
            [("(accepting connections)", "accepting connections"), ("idle", "idle"), ("(a) (b)", "(a) (b)")]
        {
            assert_eq!(unbracketed(title), inner);
        }
    }
}

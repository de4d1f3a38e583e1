//! The types of a cause and of its answers, and the functions that several causes make their answers with.
use parshall_evidence::{ChainHop, Evidence, FlowRecord, PeerCommand, Place, ShareOf};

use crate::judge::confidence::Gap;
use crate::judge::denial::{self, Denial};
use crate::judge::facts::{Facts, FlowFact, Lost};
use crate::judge::ledger::flow::State;
use crate::judge::ledger::flow_rules::{same_address, serves};
use crate::judge::words;
use crate::stats::ratio;
use crate::units;
use crate::wait::Wait;

/// A cause that can be named.
#[derive(Debug, Clone, Copy)]
pub struct Cause {
    /// Its id in verdicts.
    pub id: &'static str,
    /// Its title for people.
    pub title: &'static str,
    /// Does it hold?
    pub test: fn(&Facts<'_>) -> Outcome,
    /// How much of it is on record: above 0 if anything is. It is read from the accounts and the counters and not from what `test`
    /// says, so that a report which denies what is on record is noticed ([`crate::judge::check`]).
    pub symptom: fn(&Facts<'_>) -> f64,
    /// Was enough observed to rule it out?
    pub testable: fn(&Facts<'_>) -> bool,
}

/// The answer of a cause.
#[derive(Debug, Clone)]
pub enum Outcome {
    /// Its discriminator holds and its look-alikes failed.
    Holds(Box<Candidate>),
    /// It does not hold, and the figures that say so.
    Rejected(Box<Denial>),
    /// The capture cannot tell, and what it lacks.
    Untested(String),
}

/// A cause that holds; whether it is named depends on how much of the lost time it accounts for.
#[derive(Debug, Clone)]
pub struct Candidate {
    /// Lost time of flows.
    pub lost: Lost,
    /// Lost time that shows in threads only.
    pub thread: Option<ThreadLoss>,
    /// Time that requests lost.
    pub requests: Option<RequestLoss>,
    /// Work that was turned away, or that waited where no flow shows it.
    pub refused: Option<Refused>,
    /// The least share at which it is worth naming.
    pub min_share: f64,
    /// It never happens in a healthy flow, so a few bad flows among many are worth naming.
    pub always_wrong: bool,
    /// Links of its argument that were not seen, beside what the whole capture lacks.
    pub gaps: Vec<Gap>,
    /// What the requests may be instead of requests, where nothing that was seen says that somebody waits for their replies.
    pub may_be: Option<&'static str>,
    /// One sentence that names who waits for whom.
    pub summary: String,
    /// Where.
    pub place: Place,
    /// The numbers.
    pub evidence: Vec<Evidence>,
    /// The change that removes the cause, in words.
    pub fix: String,
    /// The change to try on the running process, as `parshall try` takes it, and whose it is; none where no change is known that
    /// would help.
    pub trial: Option<String>,
    /// The diagnosis to run at the other end, when the reason lies there.
    pub peer: Option<PeerCommand>,
}

impl RequestLoss {
    /// The loss is a wait for a turn, where `most` have theirs at a time and one takes `each_ns`: with one more at a time, a part of it goes.
    pub fn of_turns(&mut self, most: u32, each_ns: f64) {
        self.step = 1.0 / (f64::from(most) + 1.0);
        self.least_ns = each_ns;
    }
}

impl Candidate {
    /// A candidate with the usual share, every link of whose argument was seen.
    pub fn new(
        lost: Lost,
        place: Place,
        summary: String,
        evidence: Vec<Evidence>,
        fix: impl Into<String>,
    ) -> Candidate {
        let fix = fix.into();
        Candidate {
            lost,
            thread: None,
            requests: None,
            refused: None,
            always_wrong: false,
            min_share: MIN_SHARE,
            gaps: Vec::new(),
            may_be: None,
            summary,
            place,
            evidence,
            fix,
            trial: None,
            peer: None,
        }
    }

    /// A candidate at threads of one process, whose time no flow shows.
    pub fn at_threads(
        pid: u32,
        loss: ThreadLoss,
        summary: String,
        evidence: Vec<Evidence>,
        fix: impl Into<String>,
    ) -> Candidate {
        let place = Place { pid: Some(pid), tid: loss.tids.first().copied(), ..Place::default() };
        Candidate { thread: Some(loss), ..Candidate::new(Lost::default(), place, summary, evidence, fix) }
    }

    /// The answer of a cause that holds.
    pub fn holds(self) -> Outcome {
        Outcome::Holds(Box::new(self))
    }
}

/// Time that requests lost.
#[derive(Debug, Clone, PartialEq)]
pub struct RequestLoss {
    /// Lost time, scaled to the window.
    pub ns: f64,
    /// Time of all requests of the affected services.
    pub time_ns: f64,
    /// Mean loss of a request, in nanoseconds.
    pub each_ns: f64,
    /// Requests of the affected services that were seen.
    pub requests: u64,
    /// Of the loss, the share that the smallest change removes: all, unless one more at a time is let through.
    pub step: f64,
    /// Without the cause a request still takes at least so long, in nanoseconds, as far as that is known: 0 otherwise.
    pub least_ns: f64,
    /// The way to it.
    pub chain: Vec<ChainHop>,
    /// The object that was waited for in the end was seen.
    pub seen: bool,
    /// Some of them did nothing but wait and were not answered: that is named, however much else was lost.
    pub waited: bool,
}

/// Time that threads lost, when no flow shows it.
#[derive(Debug, Clone, PartialEq)]
pub struct ThreadLoss {
    /// Lost time of the threads together.
    pub ns: f64,
    /// The time in which they could have worked.
    pub wall_ns: f64,
    /// The threads; what their flows lost locally is the same loss.
    pub tids: Vec<u32>,
}

/// Work that was turned away, or that waited where no flow shows it: connections that were not accepted, datagrams that were dropped.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Refused {
    /// The kind of thing that was turned away.
    pub of_what: ShareOf,
    /// How many connections or datagrams in the window.
    pub count: u64,
    /// Of how many, those that were served included.
    pub of: u64,
    /// The least time that all of them together cost those who asked, in nanoseconds: by it they are ranked beside lost time.
    pub wait_ns: f64,
}

impl Refused {
    /// Its share of all work.
    pub fn part(&self) -> f64 {
        ratio(self.count as f64, self.of.max(self.count) as f64)
    }
}

/// Work of which less was turned away is not named for it.
pub const MIN_REFUSED_SHARE: f64 = 0.01;

/// A cause with a smaller share of the time in which the affected flows could have moved data is not named.
pub const MIN_SHARE: f64 = 0.10;

/// Do the flows show this loss: is it worth naming of the time in which the affected ones could have moved data, and is
/// what all of them lost of theirs? Flows that a busy thread leaves nothing to move had little of it.
pub fn shows(facts: &Facts<'_>, lost: &Lost) -> bool {
    lost.share(facts).min(ratio(facts.lost_ns(), facts.could_ns())) >= MIN_SHARE
}

pub fn denied(denial: Denial) -> Outcome {
    Outcome::Rejected(Box::new(denial))
}

/// The answer of a cause without lost time: the share of the flows' time in its states, which is what speaks against
/// it; `otherwise` says where that time is counted, if there was any.
pub fn not_lost(facts: &Facts<'_>, what: &str, states: &[State], otherwise: &str) -> Outcome {
    if let Some(why) = facts.no_account_of_flows() {
        return Outcome::Untested(why);
    }
    let of = denial::share(facts.share_in(states), format!("of the flows' time {what}"));
    denied(Denial::of(of).because(otherwise))
}

/// The diagnosis of the process at the other end of a flow: by its id if that is known, by the port of the service otherwise.
pub fn peer_command(facts: &Facts<'_>, flow: usize) -> PeerCommand {
    let fact = &facts.flows[flow];
    let pid = fact.pair.map_or(0, |other| facts.flows[other].rec.pid);
    let elsewhere = fact.pair.is_none() && !same_address(fact.rec);
    let command = match pid {
        0 if elsewhere => format!("parshall attach --port {}", service_port(fact.rec)),
        0 => format!("parshall attach --port {}{}", service_port(fact.rec), netns_flag(facts, fact.rec.netns)),
        pid => format!("parshall attach --pid {pid}"),
    };
    PeerCommand { command, host: elsewhere.then(|| words::host(fact.rec.remote)) }
}

/// The command that tries a change of the sockets of a flow's connection; none when neither end is held by a process here. By the
/// port of a service on this host, so that both ends and later connections are reached; by the process where the service is
/// elsewhere, since its port says nothing of who else uses it.
///
/// Nothing is proposed that is so already.
pub fn try_command(facts: &Facts<'_>, flow: usize, change: &str) -> Option<String> {
    let fact = &facts.flows[flow];
    let is_so = match change {
        "nodelay" => nodelay_is_on(fact),
        "congestion=bbr" => uses_bbr(facts, flow),
        _ => false,
    };
    match fact.rec.pid {
        _ if is_so => None,
        0 => None,
        _ if serves(fact.rec) || fact.pair.is_some() => Some(format!(
            "parshall try {change} --port {}{}",
            service_port(fact.rec),
            netns_flag(facts, fact.rec.netns)
        )),
        pid => Some(format!("parshall try {change} --pid {pid}")),
    }
}

/// The congestion control of a flow is BBR.
pub fn uses_bbr(facts: &Facts<'_>, flow: usize) -> bool {
    facts.figures(facts.flows[flow].rec.id).is_some_and(|figures| figures.congestion.starts_with("bbr"))
}

/// ` --netns INODE` where a port is not of the network namespace in which the user types; empty where it is, or that is not known.
pub fn netns_flag(facts: &Facts<'_>, netns: u64) -> String {
    let own = facts.capture.subject.observer_netns;
    if own == 0 || netns == 0 || own == netns { String::new() } else { format!(" --netns {netns}") }
}

/// `--port` finds a socket by the port of either end, so this one finds the peer whichever end it is.
pub fn service_port(flow: &FlowRecord) -> u16 {
    if serves(flow) { flow.local.port() } else { flow.remote.port() }
}

/// `the peer on this host` or `the peer at 10.0.0.2`.
pub fn peer_words(peer: &PeerCommand) -> String {
    match &peer.host {
        Some(host) => format!("the peer at {host}"),
        None => "the peer on this host".to_string(),
    }
}

/// Stalls of a cause as evidence.
pub fn stalls(what: &str, lost: &Lost) -> Evidence {
    Evidence {
        what: what.to_string(),
        count: Some(lost.count),
        scaled: lost.scaled,
        p50_ms: Some(lost.p50_ns / 1e6),
        p99_ms: Some(lost.p99_ns / 1e6),
        ..Evidence::default()
    }
}

/// The flow that lost most, and its process.
pub fn place_of(facts: &Facts<'_>, lost: &Lost) -> Place {
    let flows = lost.affected(facts).len() as u64;
    match lost.worst().map(|i| &facts.flows[i]) {
        Some(flow) => Place {
            pid: (flow.rec.pid != 0).then_some(flow.rec.pid),
            tid: None,
            flow: Some(flow.name.clone()),
            cgroup: None,
            flows,
            requests: 0,
        },
        None => Place::default(),
    }
}

/// The responsible thread of most of the lost time, among the parts chosen by `take`; 0 when unknown.
pub fn main_thread(facts: &Facts<'_>, take: impl Fn(&crate::judge::facts::Part) -> bool) -> u32 {
    let mut by_tid = std::collections::BTreeMap::<u32, f64>::new();
    for part in facts.parts.iter().filter(|p| p.tid != 0 && take(p)) {
        *by_tid.entry(part.tid).or_default() += part.ns;
    }
    by_tid.into_iter().max_by(|a, b| a.1.total_cmp(&b.1).then(b.0.cmp(&a.0))).map_or(0, |(tid, _)| tid)
}

/// A call in which a thread slept for a smaller share of a wait does not explain it.
const SLEEP_MIN: f64 = 0.5;

/// The system call in which the responsible threads slept for most of the lost time, with its share of it.
pub fn main_sleep(
    facts: &Facts<'_>,
    take: impl Fn(&crate::judge::facts::Part) -> bool + Copy,
) -> Option<(String, Wait, f64)> {
    let mut by_call = std::collections::BTreeMap::<(&str, Wait), f64>::new();
    let mut total = 0.0;
    for part in facts.parts.iter().filter(|p| take(p)) {
        total += part.ns;
        let Some(stall) = part.off.and_then(|i| facts.capture.thread_stalls.get(i)) else { continue };
        let wait = Wait::of(&stall.syscall_name, stall.fd, stall.syscall);
        *by_call.entry((&stall.syscall_name, wait)).or_default() += part.ns;
    }
    let longest = by_call.into_iter().max_by(|a, b| a.1.total_cmp(&b.1).then(b.0.cmp(&a.0)));
    let Some(((name, wait), ns)) = longest else { return usual_sleep(facts, main_thread(facts, take)) };
    let name = if name.is_empty() { "a page fault".to_string() } else { name.to_string() };
    let share = crate::stats::ratio(ns, total);
    (share >= SLEEP_MIN).then_some((name, wait, share))
}

/// On a rung that does not see single sleeps: the call in which a thread slept most, other than for work to come.
pub fn usual_sleep(facts: &Facts<'_>, tid: u32) -> Option<(String, Wait, f64)> {
    let cells = &facts.thread(tid)?.rec.off_cpu;
    let asleep = cells.iter().filter(|c| c.why == parshall_evidence::OffCpu::Blocked && !c.syscall_name.is_empty());
    let asleep = asleep.map(|c| (c, Wait::of(&c.syscall_name, c.fd, c.syscall))).filter(|(_, w)| !w.is_for_work());
    let total: f64 = asleep.clone().map(|(c, _)| c.ns as f64).sum();
    let (cell, wait) = asleep.max_by_key(|(c, _)| c.ns)?;
    Some((cell.syscall_name.clone(), wait, crate::stats::ratio(cell.ns as f64, total)))
}

/// `tid 4121 (worker)`.
pub fn thread_name(facts: &Facts<'_>, tid: u32) -> String {
    match facts.thread(tid) {
        Some(t) if !t.rec.comm.is_empty() => format!("thread {tid} ({})", t.rec.comm),
        _ => format!("thread {tid}"),
    }
}

/// Two flows are `2 flows`; one is named.
pub fn who(facts: &Facts<'_>, lost: &Lost) -> String {
    let n = lost.affected(facts).len() as u64;
    match lost.worst() {
        Some(i) if n <= 1 => words::flow_arrow(facts.flows[i].rec),
        Some(i) => format!("{} (and {} more)", words::flow_arrow(facts.flows[i].rec), units::count(n - 1)),
        None => "no flow".to_string(),
    }
}

/// TCP_NODELAY was on when the flow was seen last.
pub fn nodelay_is_on(flow: &FlowFact<'_>) -> bool {
    flow.rec.last.nonagle != 255 && flow.rec.last.nonagle & 1 != 0
}

//! How sure a finding or a verdict is: a pure function of the links of its argument that were not seen, the same for every cause. It is
//! high only where there is no such link, medium where there is one, and low below.
//!
//! This module has the links, how much each of them weighs, how it is found in the prepared evidence, and the phrase that says it.
//! Whether a cause holds at all is decided in [`crate::judge::cause`].
use parshall_evidence::{Confidence, DeviceQueue, FlowCell, FlowState, Hop, HopKind, Release, Rung, Service};

use crate::judge::facts::requests::{FLOOR_NS, PartFact, ServiceFact};
use crate::judge::facts::{Facts, Spent, rtt_ns};
use crate::judge::health;
use crate::sorting::StableSort as _;
use crate::stats::ratio;
use crate::units;

/// Fewer requests or stalls are an anecdote.
pub const FEW: u64 = 5;
/// Share of the requests' time that may be unseen before it matters.
const UNSEEN_MAX: f64 = 0.20;
/// An account is nearly whole with less missing.
const WHOLE: f64 = 0.05;
/// Waits seen in slices that are shorter than this in sum (two delayed ACKs of 40 ms) may be chance.
const OBSERVED_MIN_NS: u64 = 100_000_000;
/// From this share of the events on, lost ones matter, and from the second one on, they matter much.
const LOST_EVENTS: (f64, f64) = (0.001, 0.05);
/// From this share on, missed ones matter: they are single ones at any time, while a full ring loses all that come in a row.
const MISSED_EVENTS: f64 = 0.01;
/// Another cause that has this share of what the first one has explains the lost time nearly as well.
const RIVAL: f64 = 0.85;
/// A cause that has less of the lost time leaves most of it to others.
const MOST: f64 = 0.5;
/// A wait for a server may be so many times as long as that server has requests outstanding, by its own account.
const AGREES: f64 = 2.0;
/// Opening a connection takes a round trip, and at most so many.
const ROUND_TRIPS: f64 = 3.0;
/// A request that took so long, and so many times as long as the typical one, is no ordinary one of a healthy service.
const SLOW_ONE: (f64, f64) = (50e6, 10.0);
/// Requests of a healthy service that take longer than this are slow, unless it was seen what they wait for.
const SLOW_NS: f64 = 5e6;

/// A link of an argument that was not seen, or that another cause would explain as well.
#[derive(Debug, Clone, PartialEq)]
pub enum Gap {
    /// This share of the events was lost.
    LostEvents(f64),
    /// A rung that samples.
    Sampled,
    /// This share of the requests' time was not seen.
    Unseen(f64),
    /// The slices are short together, or shorter each than the requests.
    Slices,
    /// For this share of the flows' time slices ended before it was seen what ends what was under way.
    CutFlows(f64),
    /// So few of what it rests on were seen.
    Few(u64, &'static str),
    /// The object that this process waited for in the end was not seen.
    End(String),
    /// The cause itself says what it inferred.
    Inferred(&'static str),
    /// The cause itself says what it only guessed.
    Guessed(&'static str),
    /// Another cause has nearly as much of the lost time, or more.
    Rival(&'static str),
    /// So much of the lost time is not its own.
    Rest(f64),
    /// Requests lay unread before this process for most of the wait.
    Queue(String),
    /// A server that was waited for longer than it had requests, by its own account, in nanoseconds: its address, the wait, its time.
    Disagrees(String, f64, f64),
    /// Connecting to this server takes so long, and a round trip to it, in nanoseconds.
    Connecting(String, f64, f64),
    /// This device of the host holds packets back for its rate meanwhile.
    Shaped(String),
    /// So many connections on which it is not known which reply is whose.
    Overlap(u64),
    /// A look-alike whose evidence this host did not show.
    Untested(&'static str),
    /// So many requests wait, and nothing that can be seen is blocked.
    Quiet(u64),
    /// This share of the requests' time went by for what other requests bring.
    OtherRequests(f64),
    /// A request took so long, and its median, in nanoseconds.
    SlowOne(f64, f64),
    /// The time that the slowest requests take is not known.
    Slowest,
    /// Clients waited for something outside of their requests for this share of what they waited in all.
    Clients(f64),
    /// This thread is kept busy by sending, and so much is each byte, in nanoseconds.
    Sending(String, f64),
    /// Exchanges on the flows of services, and the requests that are known of them, which are far fewer.
    Unpaired(f64, f64),
    /// Replies go on for so long after their first part, in nanoseconds.
    Continued(f64),
    /// How far away the clients of the service of datagrams at this port are.
    Distance(u16),
    /// No cause has the time that was lost.
    NoCause,
    /// The evidence that was seen does not tell.
    Nothing,
}

impl Gap {
    /// Its id in reports.
    pub fn id(&self) -> &'static str {
        match self {
            Gap::LostEvents(_) => "events",
            Gap::Sampled => "rung",
            Gap::Unseen(_) => "unseen",
            Gap::Slices | Gap::CutFlows(_) => "slices",
            Gap::Few(..) => "few",
            Gap::End(_) => "end",
            Gap::Inferred(_) | Gap::Guessed(_) => "inferred",
            Gap::Rival(..) => "rival",
            Gap::Rest(_) => "rest",
            Gap::Queue(_) => "queue",
            Gap::Disagrees(..) => "account",
            Gap::Connecting(..) => "round-trip",
            Gap::Shaped(_) => "shaper",
            Gap::Overlap(_) | Gap::Unpaired(..) => "pairing",
            Gap::Untested(_) => "look-alike",
            Gap::Quiet(_) => "quiet",
            Gap::OtherRequests(_) => "other-requests",
            Gap::SlowOne(..) => "slowest",
            Gap::Slowest => "slowest",
            Gap::Clients(_) => "clients",
            Gap::Sending(..) => "sending",
            Gap::Continued(_) => "continued",
            Gap::Distance(_) => "round-trip",
            Gap::NoCause => "cause",
            Gap::Nothing => "nothing",
        }
    }

    /// By how many steps it lowers the confidence.
    fn steps(&self) -> usize {
        match self {
            Gap::LostEvents(share) if *share > LOST_EVENTS.1 => 2,
            Gap::Guessed(_) | Gap::Nothing => 2,
            _ => 1,
        }
    }

    /// The gap as a phrase that says what was not seen.
    pub fn why(&self) -> String {
        match self {
            Gap::LostEvents(share) => format!("{} of the events were lost", units::percent(*share)),
            Gap::Sampled => "this rung only samples: single events were not seen".to_owned(),
            Gap::Unseen(share) => format!("{} of the requests' time was not seen", units::percent(*share)),
            Gap::Slices => "the slices are too short to show whole requests".to_owned(),
            Gap::CutFlows(share) => were_cut(*share),
            Gap::Few(n, what) => format!("few {what} were seen ({})", units::count(*n)),
            Gap::End(whom) => format!("what {whom} waits for in the end was not seen"),
            Gap::Inferred(what) | Gap::Guessed(what) => (*what).to_owned(),
            Gap::Rival(cause) => format!("{cause} explains about as much of the lost time"),
            Gap::Rest(share) => {
                format!("{} of the lost time has other causes, or none that is known", units::percent(*share))
            }
            Gap::Queue(whom) => {
                format!("for most of this time the requests waited in front of {whom}, which may be what limits them")
            }
            Gap::Disagrees(server, wait_ns, own_ns) => format!(
                "requests wait {} each for {server}, and its own account explains {} of it",
                units::duration(*wait_ns),
                units::duration(*own_ns)
            ),
            Gap::Connecting(server, ns, rtt_ns) => format!(
                "connecting to {server} takes {}, and a round trip to it {}: something else than the distance delays it",
                units::duration(*ns),
                units::duration(*rtt_ns)
            ),
            Gap::Shaped(device) => {
                format!("the queue of {device} holds packets back meanwhile, which may be the delay")
            }
            Gap::Overlap(n) => {
                let connections = units::plural(*n, "connection", "connections");
                format!("which reply is whose is not known on {connections}")
            }
            Gap::Untested(cause) => format!("this host does not show whether it is {cause} instead"),
            Gap::Quiet(n) => {
                format!("whether {} owed an answer was not seen", units::plural(*n, "request is", "requests are"))
            }
            Gap::OtherRequests(share) => {
                format!(
                    "for {} of their time requests wait for what others bring, as far as was seen",
                    units::percent(*share)
                )
            }
            Gap::SlowOne(ns, median_ns) => {
                format!(
                    "one request took {}, where the typical one takes {}",
                    units::duration(*ns),
                    units::duration(*median_ns)
                )
            }
            Gap::Slowest => "what the slowest requests take is not known".to_owned(),
            Gap::Clients(share) => {
                format!("for {} of their time clients wait for something else than a reply", units::percent(*share))
            }
            Gap::Continued(ns) => goes_on(*ns),
            Gap::Sending(who, each_ns) => format!(
                "sending keeps {who} busy, {} of CPU time a kilobyte, which is far more than sending costs",
                units::duration(each_ns * 1e3)
            ),
            Gap::Unpaired(exchanges, requests) => format!(
                "of {} on its connections, requests were made of {}",
                units::plural_f(*exchanges, "exchange", "exchanges"),
                units::count_f(*requests)
            ),
            Gap::Distance(port) => format!(
                "datagrams to port {port} do not show how far away their clients are, who may wait a round trip for each reply"
            ),
            Gap::NoCause => "no cause known here accounts for what was lost".to_owned(),
            Gap::Nothing => "too little was seen".to_owned(),
        }
    }

    /// As a report has it.
    pub fn report(&self) -> parshall_evidence::Gap {
        parshall_evidence::Gap { link: self.id().to_owned(), why: self.why() }
    }
}

/// How sure an argument with these gaps is.
pub fn confidence(gaps: &[Gap]) -> Confidence {
    match gaps.iter().map(Gap::steps).sum::<usize>() {
        0 => Confidence::High,
        1 => Confidence::Medium,
        _ => Confidence::Low,
    }
}

/// The gaps as a report has them, those that weigh most first.
pub fn reported(gaps: &[Gap]) -> Vec<parshall_evidence::Gap> {
    let mut gaps: Vec<&Gap> = gaps.iter().collect();
    gaps.stable_sort_by_key(|gap| std::cmp::Reverse(gap.steps()));
    gaps.into_iter().map(Gap::report).collect()
}

/// The gaps of the whole capture.
pub fn of_capture(facts: &Facts<'_>) -> Vec<Gap> {
    let mut gaps: Vec<Gap> = lost_events(facts).into_iter().collect();
    let unseen = facts.requests.unseen_share();
    gaps.extend((facts.capture.rung != Rung::Btf).then_some(Gap::Sampled));
    gaps.extend((unseen > UNSEEN_MAX).then_some(Gap::Unseen(unseen)));
    gaps.extend(cut_short(facts).then_some(Gap::Slices));
    gaps
}

/// Events that were lost, where these are many.
pub fn lost_events(facts: &Facts<'_>) -> Option<Gap> {
    let all = facts.capture.lost_share();
    (facts.capture.probe.overflowed_share() > LOST_EVENTS.0 || all > MISSED_EVENTS).then_some(Gap::LostEvents(all))
}

/// The slices together are short, or shorter each than the requests of a service that is on the account.
fn cut_short(facts: &Facts<'_>) -> bool {
    let slices = &facts.capture.slices;
    let unknown = |s: &ServiceFact<'_>| !s.rec.waited && s.rec.requests > 0 && s.rec.p50_ns.is_none();
    slices.count > 1 && (slices.observed_ns < OBSERVED_MIN_NS || facts.requests.counted().any(unknown))
}

/// The gap that other causes leave beside one that has `own` of all lost time: those that hold, with their shares, are in `others`.
pub fn of_shares(own: f64, others: impl Iterator<Item = (&'static str, f64)>) -> Option<Gap> {
    let rival = others.filter(|(_, share)| *share >= RIVAL * own).max_by(|a, b| a.1.total_cmp(&b.1));
    match rival {
        Some((cause, _)) => Some(Gap::Rival(cause)),
        None => (own < MOST).then_some(Gap::Rest(1.0 - own)),
    }
}

/// Gaps of the way from a service to the objects that its requests spent these parts of their time on. `seen`: the end of most of it was.
pub fn of_path(facts: &Facts<'_>, service: &ServiceFact<'_>, spent: Spent, seen: bool) -> Vec<Gap> {
    let parts = || service.lost_to(spent);
    let Some(largest) = parts().max_by(|a, b| a.ns.total_cmp(&b.ns)) else { return Vec::new() };
    let mut gaps = Vec::new();
    if !seen {
        let last = largest.rec.hops.iter().rev().find(|hop| hop.pid != 0);
        gaps.push(Gap::End(
            last.map_or_else(|| "the process".to_owned(), |hop| format!("{} {}", hop.process, hop.pid)),
        ));
    }
    // One that waited all the time is no anecdote.
    if !service.rec.waited {
        let requests = parts().map(|part| part.rec.requests).fold(0, u64::saturating_add);
        let requests = requests.min(service.rec.followed_requests);
        gaps.extend((requests < FEW).then_some(Gap::Few(requests, "requests")));
        gaps.extend(overlap(service));
    }
    let each_ns = ratio(largest.rec.ns as f64, largest.rec.requests as f64);
    gaps.extend(connecting(facts, &largest.rec.hops, each_ns).filter(|_| spent != Spent::TurnedAway));
    gaps.extend(queue(&parts().collect::<Vec<_>>(), spent));
    // A request that waits for its turn is expected to wait for longer than it is served.
    if !matches!(spent, Spent::Turn | Spent::Serial | Spent::Workers) {
        gaps.extend(disagrees(facts, service, &parts().collect::<Vec<_>>()));
    }
    gaps
}

/// Where most connections carry several requests at a time and nothing shows whose a reply is, no way of a single one is known.
fn overlap(service: &ServiceFact<'_>) -> Option<Gap> {
    let rec = service.rec;
    (rec.overlapping > 0 && rec.overlapping.saturating_mul(2) >= rec.connections)
        .then_some(Gap::Overlap(rec.overlapping))
}

/// A connection that takes far longer to open than a round trip to its server: nobody answers, or what asks is lost.
fn connecting(facts: &Facts<'_>, hops: &[Hop], each_ns: f64) -> Option<Gap> {
    let leaf = hops.last().filter(|leaf| leaf.kind == HopKind::Connect)?;
    let to = facts.flows.iter().filter(|flow| flow.rec.remote.to_string() == leaf.target);
    let rtt = to.map(rtt_ns).filter(|rtt| *rtt > 0.0).min_by(f64::total_cmp)?;
    (each_ns > ROUND_TRIPS * rtt + FLOOR_NS).then(|| Gap::Connecting(leaf.target.clone(), each_ns, rtt))
}

/// A queue of a local device that holds packets back: whatever depends on the round trip may wait there. A path may lead through several
/// namespaces of this host.
pub fn shaped(facts: &Facts<'_>) -> Option<Gap> {
    let spaces = facts.capture.counters.iter().flat_map(|counters| &counters.namespaces);
    let queues = spaces.flat_map(|space| &space.queues);
    let holds = |queue: &&DeviceQueue| queue.overlimits > 0 && queue.backlog_bytes > 0;
    queues.filter(holds).max_by_key(|queue| queue.backlog_bytes).map(|queue| Gap::Shaped(queue.device.clone()))
}

/// The gap where requests wait for a server and others lie before it, each for as long as those before them: that queue may be what
/// limits all of them.
fn queue(parts: &[&PartFact<'_>], spent: Spent) -> Option<Gap> {
    let queued = |part: &&&PartFact<'_>| part.rec.hops.iter().any(|hop| hop.kind.is_queue());
    let all: f64 = parts.iter().map(|part| part.ns).sum();
    let behind: f64 = parts.iter().filter(queued).map(|part| part.ns).sum();
    if spent != Spent::Downstream || behind < MOST * all {
        return None;
    }
    let most = parts.iter().filter(queued).max_by(|a, b| a.ns.total_cmp(&b.ns))?;
    let hop = most.rec.hops.iter().find(|hop| hop.kind.is_queue())?;
    Some(Gap::Queue(format!("{} {}", hop.process, hop.pid)))
}

/// A server on the way whose own account has far less time of requests than these waited for it: they waited for something else before.
fn disagrees(facts: &Facts<'_>, service: &ServiceFact<'_>, parts: &[&PartFact<'_>]) -> Option<Gap> {
    let all: f64 = parts.iter().map(|part| part.ns).sum();
    let serves = |pid: u32| -> Option<&Service> {
        let mut others = facts.requests.all.iter().filter(|other| !other.waited && !other.outbound);
        others.find(|other| other.pids.contains(&pid) && !std::ptr::eq(*other, service.rec))
    };
    let asked = |part: &&PartFact<'_>| {
        let next = part.rec.hops.windows(2).rev().find(|pair| pair[0].kind == HopKind::Reply && pair[1].pid != 0);
        next.map(|pair| (pair[0].target.clone(), pair[1].pid))
    };
    let mut by_server: std::collections::BTreeMap<(String, u32), f64> = std::collections::BTreeMap::new();
    for part in parts {
        if let Some(server) = asked(part) {
            *by_server.entry(server).or_default() += part.ns;
        }
    }
    let ((server, pid), wait_ns) = by_server.into_iter().max_by(|a, b| a.1.total_cmp(&b.1))?;
    let own = serves(pid).filter(|own| own.observed_ns > 0)?;
    let own_ns = own.outstanding_ns as f64 * ratio(facts.capture.window_ns as f64, own.observed_ns as f64).max(1.0);
    let (wait_each, own_each) = (ratio(wait_ns, service.requests), ratio(own_ns, service.requests));
    let far = wait_ns > AGREES * own_ns && wait_each > own_each + FLOOR_NS;
    (far && wait_ns >= MOST * all).then_some(Gap::Disagrees(server, wait_each, own_each))
}

fn were_cut(share: f64) -> String {
    let share = units::percent(share);
    format!("for {share} of the flows' time the slices ended before what was under way had arrived")
}

fn goes_on(ns: f64) -> String {
    let after = units::duration(ns);
    format!("replies go on for {after} after their first part, and whether clients wait for the rest is not known")
}

/// Where one reply in this number goes on after its first part, the account says little of what clients wait for.
const CONTINUED_OF: u64 = 10;

/// The gaps in the account of a service that no cause makes slow: is it known of nearly all of the time that nobody owes it, and do
/// the clients see the same?
pub fn of_health(facts: &Facts<'_>) -> Vec<Gap> {
    let mut gaps = Vec::new();
    gaps.extend((facts.quiet.count > 0).then_some(Gap::Quiet(facts.quiet.count)));
    let unseen = facts.requests.unseen_share();
    gaps.extend((unseen > WHOLE && unseen <= UNSEEN_MAX).then_some(Gap::Unseen(unseen)));
    gaps.extend(health::unpaired(facts).map(|(exchanges, requests)| Gap::Unpaired(exchanges, requests)));
    gaps.extend(health::unseen_distance(facts).map(Gap::Distance));
    let clients = health::clients_share(facts);
    gaps.extend((clients > WHOLE).then_some(Gap::Clients(clients)));
    let cut = cut_flows(facts);
    gaps.extend((cut > UNSEEN_MAX).then_some(Gap::CutFlows(cut)));
    gaps.extend(health::slow_sending(facts).map(|(who, each_ns)| Gap::Sending(who, each_ns)));
    let services = || facts.requests.counted().filter(|service| !service.rec.waited && service.rec.requests > 0);
    let unknown = services().any(|service| service.rec.p50_ns.is_some() && service.rec.p99_ns.is_none());
    gaps.extend(unknown.then_some(Gap::Slowest));
    let continued =
        |service: &&ServiceFact<'_>| service.rec.continued.saturating_mul(CONTINUED_OF) >= service.rec.requests;
    let answered = facts.requests.services.iter().filter(|service| !service.rec.waited && service.rec.continued > 0);
    let continued = answered.filter(|service| !service.rec.followed).find(continued);
    gaps.extend(
        continued.map(|service| Gap::Continued(ratio(service.rec.continued_ns as f64, service.rec.continued as f64))),
    );
    let slow = |service: &&ServiceFact<'_>| service.typical_ns() >= SLOW_NS;
    let time: f64 = services().map(|service| service.time_ns).sum();
    let others = services().filter(slow).flat_map(|service| &service.parts).filter(|part| is_for_others(part));
    let share = ratio(others.map(|part| part.ns).sum(), time);
    gaps.extend((share > UNSEEN_MAX).then_some(Gap::OtherRequests(share)));
    let slowest = |service: &ServiceFact<'_>| {
        let longest = service.rec.path.iter().map(|part| part.longest_ns).max().unwrap_or(0) as f64;
        let median = service.typical_ns();
        let slow = longest >= SLOW_ONE.0 && longest >= SLOW_ONE.1 * median;
        // Those that nobody owes an answer sooner say nothing.
        let owed = service.parts.iter().any(|part| part.rec.longest_ns as f64 == longest && !is_for_others(part));
        (slow && owed).then_some(Gap::SlowOne(longest, median))
    };
    gaps.extend(services().find_map(slowest));
    gaps
}

/// The share of the flows' time in which data was under way when a slice ended. Data is under way for a round trip at most, so of slices
/// that are longer it is a small one.
fn cut_flows(facts: &Facts<'_>) -> f64 {
    if facts.capture.slices.count < 2 {
        return 0.0;
    }
    let cells = || facts.capture.flows.iter().flat_map(|flow| &flow.cells);
    let cut = cells().filter(|cell| cell.state == FlowState::InFlight && cell.release == Release::Cut);
    let sum = |ns: u64, cell: &FlowCell| ns.saturating_add(cell.ns);
    ratio(cut.fold(0, sum) as f64, cells().fold(0, sum) as f64)
}

/// It ends in a wait for what other requests, or the client itself, bring.
fn is_for_others(part: &PartFact<'_>) -> bool {
    part.rec.hops.last().is_some_and(|leaf| matches!(leaf.kind, HopKind::OtherRequest | HopKind::Idle))
}

#[cfg(test)]
mod tests {
    use parshall_evidence::{DeviceQueue, FdKind, HopKind, Report, SyscallCell};

    use super::*;
    use crate::judge::judge;
    use crate::testkit::service::{Hops, ServiceBuilder, with};

    fn wait(kind: HopKind, syscall: &str) -> Hops {
        Hops::new().thread(100, 101, "app").on(kind, syscall)
    }

    fn links(report: &Report) -> Vec<&str> {
        report.verdict.gaps.iter().map(|gap| gap.link.as_str()).collect()
    }

    #[test]
    fn it_is_high_without_a_gap_medium_with_one_and_low_with_two() {
        assert_eq!(confidence(&[]), Confidence::High);
        assert_eq!(confidence(&[Gap::Slices]), Confidence::Medium);
        assert_eq!(confidence(&[Gap::Slices, Gap::Sampled]), Confidence::Low);
        assert_eq!(confidence(&[Gap::Guessed("")]), Confidence::Low);
        assert_eq!(confidence(&[Gap::LostEvents(0.01)]), Confidence::Medium);
        assert_eq!(confidence(&[Gap::LostEvents(0.10)]), Confidence::Low);
    }

    #[test]
    fn a_report_says_what_lowers_it_and_nothing_where_it_is_high() {
        let sure = judge(&with(ServiceBuilder::new(7000).requests(60, 16.0).part(wait(HopKind::Disk, "fsync"), 1.0)));
        assert_eq!((sure.verdict.confidence, links(&sure)), (Confidence::High, vec![]));
        let few = judge(&with(ServiceBuilder::new(7000).requests(3, 300.0).part(wait(HopKind::Disk, "fsync"), 1.0)));
        assert_eq!((few.verdict.confidence, links(&few)), (Confidence::Medium, vec!["few"]));
        assert_eq!(few.verdict.gaps, few.findings[0].gaps);
        assert_eq!(few.verdict.gaps[0].why, "few requests were seen (3)");
    }

    #[test]
    fn two_causes_with_nearly_the_same_time_leave_it_open_which_one_matters() {
        let both = |disk: f64| {
            let service = ServiceBuilder::new(7000).requests(60, 16.0).part(wait(HopKind::Disk, "fsync"), disk);
            judge(&with(service.part(wait(HopKind::NameServer, "poll"), 1.0 - disk)))
        };
        let report = both(0.52);
        assert_eq!((report.verdict.cause.as_deref(), links(&report)), (Some("blocking-disk-io"), vec!["rival"]));
        assert_eq!(report.verdict.confidence, Confidence::Medium);
        assert_eq!(links(&both(0.65)), Vec::<&str>::new());
    }

    #[test]
    fn a_cause_of_less_than_half_of_the_lost_time_leaves_most_of_it_open() {
        let service = ServiceBuilder::new(7000).requests(60, 16.0).part(wait(HopKind::Disk, "fsync"), 0.4);
        let others =
            [(HopKind::Memory, 0.15), (HopKind::NameServer, 0.15), (HopKind::Timer, 0.15), (HopKind::Kernel, 0.15)];
        let report =
            judge(&with(others.into_iter().fold(service, |s, (kind, share)| s.part(wait(kind, "call"), share))));
        assert_eq!((report.verdict.cause.as_deref(), links(&report)), (Some("blocking-disk-io"), vec!["rest"]));
    }

    #[test]
    fn requests_that_lie_before_who_asks_may_wait_for_it_and_not_for_the_server() {
        let asks = |queued: f64| {
            let behind = wait(HopKind::AcceptQueue, "").on(HopKind::Reply, "recvfrom").target("10.9.0.2:3389");
            let own = wait(HopKind::Reply, "recvfrom").target("10.9.0.2:3389");
            judge(&with(ServiceBuilder::new(7000).requests(60, 160.0).part(behind, queued).part(own, 1.0 - queued)))
        };
        let (most, few) = (asks(0.8), asks(0.2));
        assert_eq!((most.verdict.cause.as_deref(), links(&most)), (Some("blocking-downstream-call"), vec!["queue"]));
        assert_eq!(links(&few), Vec::<&str>::new());
    }

    #[test]
    fn a_server_that_answers_sooner_than_it_is_waited_for_does_not_explain_the_wait() {
        let report = |own_ms: f64| {
            let way = wait(HopKind::Reply, "poll")
                .target("127.0.0.1:9000")
                .thread(200, 201, "inner")
                .on(HopKind::Timer, "nanosleep");
            let mut capture = with(ServiceBuilder::new(7000).requests(60, 160.0).part(way, 1.0));
            let timer = Hops::new().thread(200, 201, "inner").on(HopKind::Timer, "nanosleep");
            let mut inner = ServiceBuilder::new(9000).requests(60, own_ms).part(timer, 1.0).build();
            (inner.pids, inner.followed) = (vec![200], true);
            capture.services.push(inner);
            judge(&capture)
        };
        let (sooner, as_long) = (report(20.0), report(150.0));
        assert_eq!((sooner.verdict.cause.as_deref(), links(&sooner)), (Some("timer-wait"), vec!["account"]));
        assert_eq!(links(&as_long), Vec::<&str>::new());
    }

    #[test]
    fn no_cause_is_never_certain() {
        let report =
            judge(&with(ServiceBuilder::new(7000).requests(60, 16.0).part(wait(HopKind::Kernel, "ioctl"), 1.0)));
        assert_eq!(report.verdict.status, parshall_evidence::Status::NoDominantCause);
        assert_eq!((report.verdict.confidence, links(&report)), (Confidence::Medium, vec!["cause"]));
    }

    #[test]
    fn health_is_certain_only_if_what_is_waited_for_was_seen_and_no_request_is_slow() {
        let quick = |others: f64, each_ms: f64| {
            let work = wait(HopKind::OnCpu, "");
            let other = wait(HopKind::OtherRequest, "epoll_wait");
            ServiceBuilder::new(7000).requests(200, each_ms).part(work, 1.0 - others).part(other, others)
        };
        let healthy = judge(&with(quick(0.0, 0.3)));
        assert_eq!((healthy.verdict.status, links(&healthy)), (parshall_evidence::Status::Healthy, vec![]));
        // Requests of 80 ms that wait for each other, as far as was seen.
        let waits = judge(&with(quick(0.99, 80.0)));
        assert_eq!((waits.verdict.status, links(&waits)), (parshall_evidence::Status::Healthy, vec!["other-requests"]));
        // Its thread is busy for half of the time with what it sends.
        let sends = |bytes: u64| {
            let mut capture = with(quick(0.0, 0.3));
            let call = SyscallCell {
                name: "sendfile".into(),
                fd: FdKind::Tcp,
                count: 200,
                bytes,
                on_cpu_ns: 500_000_000,
                ..SyscallCell::default()
            };
            (capture.threads[0].syscalls, capture.threads[0].observed_ns) = (vec![call], 1_000_000_000);
            judge(&capture)
        };
        assert_eq!(links(&sends(30_000_000)), vec!["sending"]);
        // As much as sending costs, and small messages, which cost a call each.
        assert_eq!((links(&sends(500_000_000)), links(&sends(20_000))), (vec![], vec![]));
        // One request was as long as three hundred others.
        let mut capture = with(quick(0.0, 0.3));
        capture.services[0].path[0].longest_ns = 90_000_000;
        let slow = judge(&capture);
        assert_eq!((slow.verdict.status, links(&slow)), (parshall_evidence::Status::Healthy, vec!["slowest"]));
        // One reply of ten goes on for 300 ms, and fewer do.
        let goes_on = |n: u64| {
            let mut capture = with(quick(0.0, 0.3));
            (capture.services[0].continued, capture.services[0].continued_ns) = (n, n * 300_000_000);
            judge(&capture)
        };
        let (some, few) = (goes_on(20), goes_on(5));
        assert_eq!((some.verdict.status, links(&some)), (parshall_evidence::Status::Healthy, vec!["continued"]));
        assert_eq!(links(&few), Vec::<&str>::new());
    }

    #[test]
    fn flows_whose_data_outlasts_the_slices_are_not_surely_healthy() {
        use crate::testkit::{FlowBuilder, MS, capture};
        // An upload from far away, of which each slice of 50 ms shows a part of a round trip.
        let report = |cut_ms: u64, slices: u32| {
            let flow = FlowBuilder::new(1, parshall_evidence::Role::Client).remote_host();
            let flow = flow.cell(FlowState::InFlight, Release::Cut, cut_ms * MS, 4);
            let flow = flow.cell(FlowState::InFlight, Release::RxAck, 50 * MS, 40).talks(40, 9000);
            let mut capture = capture(vec![flow.cell(FlowState::IdleAfterSend, Release::AppSend, 50 * MS, 40)], vec![]);
            capture.slices.count = slices;
            judge(&capture)
        };
        let (cut, whole) = (report(300, 4), report(100, 4));
        assert_eq!((cut.verdict.status, links(&cut)), (parshall_evidence::Status::Healthy, vec!["slices"]));
        assert_eq!((whole.verdict.status, links(&whole)), (parshall_evidence::Status::Healthy, vec![]));
        // The window's own end.
        assert_eq!(links(&report(300, 1)), Vec::<&str>::new());
    }

    #[test]
    fn opening_a_connection_takes_a_round_trip_and_no_hundred() {
        use crate::testkit::FlowBuilder;
        let report = |rtt_us: u32| {
            let way = wait(HopKind::Connect, "connect").target("10.9.0.2:8000");
            let mut capture = with(ServiceBuilder::new(7000).requests(60, 100.0).part(way, 1.0));
            let mut flow = FlowBuilder::new(1, parshall_evidence::Role::Client).remote_host();
            flow.record.remote = "10.9.0.2:8000".parse().expect("an address");
            flow.record.last.min_rtt_us = rtt_us;
            capture.flows.push(flow.fill().record);
            judge(&capture)
        };
        let (near, far) = (report(400), report(90_000));
        assert_eq!((near.verdict.cause.as_deref(), links(&near)), (Some("connection-per-request"), vec!["round-trip"]));
        assert_eq!(links(&far), Vec::<&str>::new());
    }

    #[test]
    fn a_queue_that_holds_packets_back_may_be_the_round_trip() {
        use crate::testkit::{FlowBuilder, MS, capture, settings};
        let report = |backlog_bytes: u64| {
            let mut flow = FlowBuilder::new(1, parshall_evidence::Role::Client)
                .remote_host()
                .cell(parshall_evidence::FlowState::InFlight, parshall_evidence::Release::RxData, 970 * MS, 240)
                .talks(240, 64);
            flow.record.last.min_rtt_us = 4000;
            let mut capture = capture(vec![flow], vec![]);
            let mut counters = settings(|_| {});
            let queue = DeviceQueue {
                device: "eth0".into(),
                kind: "tbf".into(),
                sent_bytes: 1,
                drops: 0,
                overlimits: 9,
                backlog_bytes,
            };
            counters.namespaces[0].queues.push(queue);
            capture.counters = Some(counters);
            judge(&capture)
        };
        let (held, free) = (report(90_000), report(0));
        assert_eq!((held.verdict.cause.as_deref(), links(&held)), (Some("serial-protocol"), vec!["shaper"]));
        assert_eq!(links(&free), Vec::<&str>::new());
    }
}

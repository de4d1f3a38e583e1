//! From candidates to a verdict: which cause accounts for how much of the lost time, and whether that is enough to name it.
use parshall_evidence::{Chain, Figure, Finding, Fix, FlowRecord, NotTested, RuledOut, Rung, ShareOf, Status, Verdict};

use super::cause::{CAUSES, Candidate, Cause, MIN_REFUSED_SHARE, MIN_SHARE, Outcome, Refused};
use crate::critical_path::clients::Awaits;
use crate::judge::confidence::{FEW, Gap};
use crate::judge::denial::{Denial, count_of, share};
use crate::judge::evidence_type::Source;
use crate::judge::facts::{Blame, Facts, Shape, Spent};
use crate::judge::health::{self, Doubt};
use crate::judge::{capacity, chain, confidence, evidence_type, felt, gain, words};
use crate::sorting::StableSort as _;
use crate::stats::ratio;
use crate::units;

/// A cause is named only if it accounts for this share of all lost time.
pub const MIN_LOST_SHARE: f64 = 0.30;

/// A shorter observation is no evidence, in nanoseconds.
pub const MIN_WINDOW_NS: u64 = 200_000_000;

/// The answer, without the accounts.
#[derive(Debug, Clone, PartialEq)]
pub struct Ranking {
    /// The verdict.
    pub verdict: Verdict,
    /// Named causes, the one that accounts for most first.
    pub findings: Vec<Finding>,
    /// The way to the first of them.
    pub chain: Option<Chain>,
    /// The others that were tested.
    pub ruled_out: Vec<RuledOut>,
    /// Those that the capture cannot tell.
    pub not_tested: Vec<NotTested>,
}

/// Tests all causes and ranks those that hold.
pub fn rank(facts: &Facts<'_>) -> Ranking {
    let too_little = too_little(facts);
    if let Some(why) = too_little.as_ref().filter(|_| facts.capture.window_ns < MIN_WINDOW_NS) {
        return insufficient(why.clone());
    }
    let (mut rejected, mut untested) = (Vec::new(), Vec::new());
    let mut held: Vec<(&'static Cause, Candidate)> = Vec::new();
    for cause in CAUSES {
        match (cause.test)(facts) {
            Outcome::Holds(candidate) if may_claim(cause, &candidate) => held.push((cause, *candidate)),
            Outcome::Holds(_) => {
                untested.push(not_tested(cause, "what was seen is of no type that tells of it".to_string()))
            }
            Outcome::Rejected(denial) => rejected.push((cause, *denial)),
            Outcome::Untested(why) => untested.push(not_tested(cause, why)),
        }
    }
    let total = Total::of(facts, &held);
    let flow_share = felt::flow_share(facts, total.flows_ns);
    let mut named = Vec::new();
    let mut turned_away = false;
    for (cause, candidate) in held {
        let refused = candidate.refused.is_some();
        match total.judge(facts, &candidate, flow_share) {
            Ok((lost_share, share)) => {
                turned_away |= refused;
                let seen = candidate.requests.as_ref().is_none_or(|r| r.seen);
                named.push(Named { cause, lost_share, share, seen, candidate });
            }
            Err(denial) => rejected.push((cause, *denial)),
        }
    }
    let mut ruled_out = Vec::new();
    for (cause, denial) in rejected {
        match unseen(facts, cause) {
            Some(what) => untested.push(not_tested(cause, what)),
            None => ruled_out.push(denial.of_cause(cause.id)),
        }
    }
    // Connections and datagrams that were turned away are evidence by themselves.
    if let Some(why) = too_little.filter(|_| !turned_away) {
        return insufficient(why);
    }
    named.stable_sort_by(|a, b| b.lost_share.total_cmp(&a.lost_share).then_with(|| a.cause.id.cmp(b.cause.id)));
    let unsure: Vec<Named> = named.extract_if(.., |one| one.candidate.may_be.is_some()).collect();
    if let Some(first) = unsure.first().filter(|_| named.is_empty()) {
        return insufficient(first.unsure());
    }
    untested.extend(unsure.iter().map(|one| not_tested(one.cause, one.unsure())));
    let others: Vec<(&'static str, f64)> =
        named.iter().skip(1).map(|other| (other.cause.id, other.lost_share)).collect();
    if let Some(first) = named.first_mut() {
        let shares = confidence::of_shares(first.lost_share, others.into_iter());
        // A cause whose requests only waited is named however much else was lost.
        let waited = first.candidate.requests.as_ref().is_some_and(|loss| loss.waited);
        first.candidate.gaps.extend(shares.filter(|_| !waited));
    }
    let seen = named.first().map(|first| first.seen);
    let findings: Vec<Finding> = named.into_iter().map(|one| one.finding(facts)).collect();
    let chain = findings.first().zip(seen).and_then(|(finding, seen)| chain::of_finding(finding, seen));
    if let Some(why) = unaccounted(facts).filter(|_| findings.is_empty()) {
        return insufficient(why);
    }
    let verdict = conclude(facts, &findings, flow_share);
    if verdict.status == Status::InsufficientEvidence {
        return insufficient(verdict.summary);
    }
    Ranking { verdict, findings, chain, ruled_out, not_tested: untested }
}

fn insufficient(why: String) -> Ranking {
    Ranking {
        verdict: verdict_of_status(Status::InsufficientEvidence, &[Gap::Nothing], why),
        findings: vec![],
        chain: None,
        ruled_out: vec![],
        not_tested: vec![],
    }
}

/// The evidence that this host did not show and the cause needs: without it, that the rest does not show the cause says nothing.
fn unseen(facts: &Facts<'_>, cause: &Cause) -> Option<String> {
    let needs = |unseen: &&parshall_evidence::Unseen| unseen.causes.iter().any(|id| id == cause.id);
    facts.capture.unseen.iter().find(needs).map(|unseen| unseen.what.clone())
}

fn not_tested(cause: &Cause, why: String) -> NotTested {
    NotTested { cause: cause.id.to_string(), why }
}

/// Whether all that a candidate claims was found where its cause may claim it.
fn may_claim(cause: &Cause, candidate: &Candidate) -> bool {
    let sources = [
        (Source::Requests, candidate.requests.is_some()),
        (Source::Threads, candidate.thread.is_some()),
        (Source::Counters, candidate.refused.is_some()),
        (Source::Flows, candidate.lost.ns > 0.0),
    ];
    sources.into_iter().all(|(source, used)| !used || evidence_type::may_use(cause.id, source))
}

/// A cause that is named, before it is written down.
struct Named {
    cause: &'static Cause,
    candidate: Candidate,
    lost_share: f64,
    share: f64,
    /// The object that was waited for in the end was seen.
    seen: bool,
}

impl Named {
    /// That the evidence does not tell whether anybody waits for this.
    fn unsure(&self) -> String {
        let may_be = self.candidate.may_be.unwrap_or_default();
        format!("{} Whether these are requests, or {may_be}, was not seen.", self.candidate.summary)
    }

    fn finding(self, facts: &Facts<'_>) -> Finding {
        finding(facts, self.cause, self.candidate, self.lost_share, self.share)
    }
}

/// All lost time: that of requests, that of flows beyond it, and that of threads which neither shows. They can be compared: each
/// is time in which somebody waited for data that could have come.
struct Total {
    requests_ns: f64,
    flows_ns: f64,
    threads_ns: f64,
    refused_ns: f64,
    /// Waits of clients outside of their requests, which no cause claims.
    clients_ns: f64,
}

impl Total {
    fn of(facts: &Facts<'_>, held: &[(&Cause, Candidate)]) -> Total {
        let losses = || held.iter().filter_map(|(_, c)| c.thread.as_ref());
        let tids: Vec<u32> = losses().flat_map(|t| t.tids.iter().copied()).collect();
        // The time that flows lost to a thread whose loss is on its own account is the same loss.
        let flows_ns = facts.parts.iter().filter(|p| !is_theirs(&tids, p.blame, p.tid)).map(|p| p.ns).sum();
        // Where flows show a part of what was turned away, that part is theirs.
        let unseen = |c: &Candidate| c.refused.map_or(0.0, |r| (r.wait_ns - c.lost.ns).max(0.0));
        let refused_ns = held.iter().map(|(_, c)| unseen(c)).sum();
        let threads_ns = losses().map(|t| t.ns).sum();
        let clients_ns = health::client_waits_ns(facts, |awaits| awaits == Awaits::Close);
        Total { requests_ns: facts.requests.lost_ns(), flows_ns, threads_ns, refused_ns, clients_ns }
    }

    fn all_ns(&self) -> f64 {
        self.requests_ns + self.flows_ns + self.threads_ns + self.refused_ns + self.clients_ns
    }

    /// Share of all lost time and share of the affected time, or why it is too little.
    fn judge(&self, facts: &Facts<'_>, candidate: &Candidate, flow_share: f64) -> Result<(f64, f64), Box<Denial>> {
        if let Some(refused) = &candidate.refused {
            return self.judge_refused(facts, candidate, refused);
        }
        let lost: f64 = match (&candidate.requests, &candidate.thread) {
            (Some(loss), _) => loss.ns,
            (None, Some(loss)) => loss.ns,
            (None, None) => candidate.lost.by_flow.iter().map(|(_, ns)| ns).sum(),
        };
        let lost_share = ratio(lost, self.all_ns().max(lost)).min(1.0);
        let own_share = match (&candidate.requests, &candidate.thread) {
            (Some(loss), _) => ratio(loss.ns, loss.time_ns).min(1.0),
            (None, Some(loss)) => ratio(loss.ns, loss.wall_ns).min(1.0),
            (None, None) => candidate.lost.share(facts),
        };
        let of_flows = candidate.thread.is_none() && candidate.requests.is_none();
        let few_but_bad = candidate.always_wrong && own_share >= 0.5 && ratio(lost, facts.could_ns()) >= 0.02;
        if of_flows && felt::is_unfelt_on_flows(facts, &candidate.lost) {
            return Err(Box::new(felt::denial_on_flows(facts, &candidate.lost)));
        }
        if of_flows && flow_share < MIN_SHARE && !few_but_bad {
            let little = share(own_share.min(flow_share), "of the time in which flows could have moved data");
            return Err(too_small(Figure { limit: Some(MIN_SHARE), ..little }));
        }
        if candidate.requests.as_ref().is_some_and(|loss| loss.waited) {
            return Ok((lost_share, own_share));
        }
        if let Some(loss) = candidate.requests.as_ref().filter(|loss| felt::is_unfelt(facts, loss)) {
            return Err(Box::new(felt::denial(facts, loss)));
        }
        if own_share < candidate.min_share {
            let whose = match share_of(candidate) {
                ShareOf::RequestTime => "of the requests' time",
                ShareOf::ThreadTime => "of the threads' time",
                ShareOf::FlowTime | ShareOf::Connections | ShareOf::Datagrams => "of the affected flows' time",
            };
            return Err(too_small(Figure { limit: Some(candidate.min_share), ..share(own_share, whose) }));
        }
        named_from(lost_share)?;
        Ok((lost_share, own_share))
    }
}

impl Total {
    /// Work that was turned away is weighed by its share of all work, and ranked by the time that it cost at least.
    fn judge_refused(
        &self,
        facts: &Facts<'_>,
        candidate: &Candidate,
        refused: &Refused,
    ) -> Result<(f64, f64), Box<Denial>> {
        let part = refused.part();
        if part < MIN_REFUSED_SHARE {
            let unit = if refused.of_what == ShareOf::Datagrams { "datagrams" } else { "connections" };
            let few = count_of(refused.count, refused.of, unit, "affected");
            return Err(Box::new(Denial::of(few).seen().because("too few to matter")));
        }
        let lost = refused.wait_ns.max(candidate.lost.ns);
        let lost_share = ratio(lost, self.all_ns().max(lost)).min(1.0);
        named_from(lost_share)?;
        Ok((lost_share, part.max(candidate.lost.share(facts))))
    }
}

/// It holds, and is too small to be named.
fn too_small(figure: Figure) -> Box<Denial> {
    Box::new(Denial::of(figure).seen())
}

/// Whether a cause with this share of all lost time is named.
fn named_from(lost_share: f64) -> Result<(), Box<Denial>> {
    let least = Figure { limit: Some(MIN_LOST_SHARE), ..share(lost_share, "of all lost time") };
    if lost_share < MIN_LOST_SHARE { Err(too_small(least)) } else { Ok(()) }
}

/// The whole that the share of a candidate is a share of.
fn share_of(candidate: &Candidate) -> ShareOf {
    match (&candidate.refused, &candidate.requests, &candidate.thread) {
        (Some(refused), ..) => refused.of_what,
        (None, Some(_), _) => ShareOf::RequestTime,
        (None, None, Some(_)) => ShareOf::ThreadTime,
        (None, None, None) => ShareOf::FlowTime,
    }
}

fn is_theirs(tids: &[u32], blame: Blame, tid: u32) -> bool {
    let local = matches!(
        blame,
        Blame::CpuUser
            | Blame::CpuKernel
            | Blame::RunQueue
            | Blame::Throttled
            | Blame::ReaderBlocked
            | Blame::AppBlocked
    );
    local && tids.contains(&tid)
}

/// The cause to which what a device's queue holds back belongs.
const LOCAL_SHAPER: &str = "local-shaper";

/// A candidate that is named.
pub(super) fn finding(facts: &Facts<'_>, cause: &Cause, candidate: Candidate, lost_share: f64, share: f64) -> Finding {
    let window_ms = facts.capture.window_ns as f64 / 1e6;
    let lost_ms = match (&candidate.refused, &candidate.requests, &candidate.thread) {
        (Some(refused), ..) => (ratio(refused.wait_ns, refused.count as f64) / 1e6).min(window_ms),
        (None, Some(loss), _) => (loss.each_ns / 1e6).min(window_ms),
        (None, None, Some(loss)) => (ratio(loss.ns, loss.tids.len().max(1) as f64) / 1e6).min(window_ms),
        (None, None, None) => candidate.lost.mean_ms(facts),
    };
    let of_flows = candidate.thread.is_none() && candidate.requests.is_none() && candidate.refused.is_none();
    let mut gaps = candidate.gaps.clone();
    gaps.extend((of_flows && candidate.lost.seen < FEW).then_some(Gap::Few(candidate.lost.seen, "stalls")));
    gaps.extend(untested(facts, cause));
    gaps.extend((of_flows && cause.id != LOCAL_SHAPER).then(|| confidence::shaped(facts)).flatten());
    // The kernel counts what it turns away on every rung; but what was lost may have told of something larger.
    match candidate.refused {
        Some(_) => gaps.extend(confidence::lost_events(facts)),
        None => gaps.extend(confidence::of_capture(facts)),
    }
    Finding {
        cause: cause.id.to_string(),
        title: cause.title.to_string(),
        share_of: match candidate.refused {
            // Time of the flows that waited, where that is the larger share.
            Some(refused) if refused.part() < candidate.lost.share(facts) => ShareOf::FlowTime,
            _ => share_of(&candidate),
        },
        share,
        lost_ms,
        lost_share,
        scaled: of_flows && candidate.lost.scaled,
        confidence: confidence::confidence(&gaps),
        gaps: confidence::reported(&gaps),
        gain: gain::of(&candidate),
        summary: candidate.summary,
        place: candidate.place,
        tail: false,
        chain: candidate.requests.map(|loss| loss.chain).unwrap_or_default(),
        evidence: candidate.evidence,
        fix: Fix { text: candidate.fix, command: candidate.trial, peer: candidate.peer },
    }
}

/// A look-alike, which loses the same time, of which this host did not show what it needs.
fn untested(facts: &Facts<'_>, cause: &Cause) -> Option<Gap> {
    let alike = CAUSES.iter().filter(|other| other.id != cause.id && evidence_type::are_alike(cause.id, other.id));
    alike.into_iter().find(|other| unseen(facts, other).is_some()).map(|other| Gap::Untested(other.id))
}

fn too_little(facts: &Facts<'_>) -> Option<String> {
    let capture = facts.capture;
    if capture.window_ns < MIN_WINDOW_NS {
        return Some(format!(
            "The observation lasted {}: too short to judge. Observe for a second at least.",
            units::duration(capture.window_ns as f64)
        ));
    }
    if facts.flows.is_empty() && facts.threads.is_empty() && facts.requests.services.is_empty() {
        return Some("No flow and no thread of the subject was seen.".to_string());
    }
    let throttled =
        || facts.throttled_periods() > 0.0 || facts.threads.iter().any(|t| t.rec.off_cpu.iter().any(is_throttled));
    if !facts.requests.is_empty() || facts.requests.waited().next().is_some() {
        return None;
    }
    if facts.flows.is_empty() && !throttled() {
        return Some("No TCP flow of the subject was seen: was it asked anything while it was observed?".to_string());
    }
    let unseen = facts.no_account_of_flows().is_some();
    (unseen && !throttled()).then(|| "Data moved, but no probe saw the flows while it did.".to_string())
}

fn is_throttled(cell: &parshall_evidence::OffCpuCell) -> bool {
    cell.why == parshall_evidence::OffCpu::Throttled
}

fn verdict_of_status(status: Status, gaps: &[Gap], summary: String) -> Verdict {
    let (confidence, gaps) = (confidence::confidence(gaps), confidence::reported(gaps));
    Verdict { status, cause: None, confidence, gaps, summary }
}

fn conclude(facts: &Facts<'_>, findings: &[Finding], flow_share: f64) -> Verdict {
    if let Some(first) = findings.first() {
        return answer(first);
    }
    let known = confidence::of_capture(facts);
    let unexplained: Vec<Gap> = known.iter().cloned().chain([Gap::NoCause]).collect();
    if let Some(waited) = waited(facts) {
        return verdict_of_status(Status::NoDominantCause, &unexplained, waited);
    }
    let doubt = health::doubt(facts, felt::unseen_share(facts));
    if let Some(Doubt::Waits(who)) = doubt {
        return verdict_of_status(Status::NoDominantCause, &unexplained, who);
    }
    let share = flow_share.max(felt::share(facts));
    if share >= MIN_SHARE {
        return verdict_of_status(Status::NoDominantCause, &unexplained, no_dominant(facts, share));
    }
    if let Some(Doubt::Unseen(what)) = doubt {
        return verdict_of_status(Status::InsufficientEvidence, &[Gap::Nothing], what);
    }
    let gaps: Vec<Gap> = known.into_iter().chain(confidence::of_health(facts)).collect();
    match capacity::full(facts) {
        Some(summary) => verdict_of_status(Status::AtCapacity, &gaps, summary),
        None => verdict_of_status(Status::Healthy, &gaps, healthy(facts, flow_share) + &quiet(facts) + &paused(facts)),
    }
}

/// The verdict of which this finding is the first.
pub(super) fn answer(first: &Finding) -> Verdict {
    Verdict {
        status: Status::Cause,
        cause: Some(first.cause.clone()),
        confidence: first.confidence,
        gaps: first.gaps.clone(),
        summary: first.summary.clone(),
    }
}

/// Without an account of this share of the time, the flows or the connections nothing is called healthy.
const SEEN_MIN: f64 = 0.80;

/// The sentence about open requests for which nothing that can be seen is blocked; empty without any.
fn quiet(facts: &Facts<'_>) -> String {
    let count = facts.quiet.count;
    let requests = units::plural(count, "request is", "requests are");
    if count > 0 {
        format!(" {requests} left to wait while nothing is blocked, as long polls are.")
    } else {
        String::new()
    }
}

/// Requests that waited and that somebody owes an answer, however little of all time that is; None where there are none.
fn waited(facts: &Facts<'_>) -> Option<String> {
    let services = || facts.requests.waited();
    let count = services().map(|s| s.rec.unanswered).fold(0, u64::saturating_add);
    let longest_ns = services().map(|s| s.rec.unanswered_longest_ns).max()?;
    let mut by_label = std::collections::BTreeMap::<&str, f64>::new();
    for part in services().flat_map(|s| &s.parts) {
        *by_label.entry(part.spent.label()).or_default() += part.ns;
    }
    let mut labels: Vec<(&str, f64)> = by_label.into_iter().collect();
    labels.stable_sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(b.0)));
    let labels: Vec<&str> = labels.into_iter().take(3).map(|(label, _)| label).collect();
    Some(format!(
        "{} not been answered (the longest has waited for {}), and no cause known here accounts for it ({}).{}",
        units::plural(count, "request has", "requests have"),
        units::duration(longest_ns as f64),
        labels.join(", "),
        health::who(facts, services())
    ))
}

/// Requests that waited, where what for was not seen: nothing can be said of the service before that is known.
fn waited_unseen(facts: &Facts<'_>) -> Option<String> {
    let unseen = |s: &&crate::judge::facts::requests::ServiceFact<'_>| {
        let ns = s.unseen_ns + s.parts.iter().filter(|p| p.spent == Spent::Unseen).map(|p| p.ns).sum::<f64>();
        ns > (1.0 - SEEN_MIN) * s.time_ns
    };
    let services = || facts.requests.waited().filter(unseen);
    let longest_ns = services().map(|s| s.rec.unanswered_longest_ns).max()?;
    let count = services().map(|s| s.rec.unanswered).fold(0, u64::saturating_add);
    let hop = services().flat_map(|s| &s.rec.path).flat_map(|p| p.hops.iter().rev()).find(|h| h.pid != 0);
    let whom = hop.map_or_else(|| "the process that has them".to_string(), chain::named);
    let command = hop.map_or_else(String::new, |h| format!(" (`gdb -p {} -batch -ex 'thread apply all bt'`)", h.pid));
    Some(format!(
        "{} not been answered (the longest has waited for {}), and what {whom} waits for was not seen: look at the stacks of its \
         threads{command}, and observe whom it asks.",
        units::plural(count, "request has", "requests have"),
        units::duration(longest_ns as f64)
    ))
}

/// The time that was not seen, where it is too much to say that nothing is wrong, and the advice about it.
fn unaccounted(facts: &Facts<'_>) -> Option<String> {
    if let Some(why) = waited_unseen(facts) {
        return Some(why);
    }
    let unseen = felt::unseen_share(facts);
    if unseen > 1.0 - SEEN_MIN {
        return Some(health::unseen_words(facts, unseen));
    }
    let (gone, counted) = gone_unanswered(facts);
    if ratio(gone as f64, counted as f64) > 1.0 - SEEN_MIN {
        return Some(format!(
            "{} gone before their answers were seen, because this rung only samples them, and shorter ones were not seen at all: what \
             their clients wait for is not known. {}",
            units::plural(gone as u64, "connection was", "connections were"),
            facts.advice("Run it as root for the rung btf.", "The rung btf sees them (`parshall doctor`).")
        ));
    }
    let probe = &facts.capture.probe;
    let tracked = (facts.flows.len() + facts.threads.len()) as f64;
    let untracked = ratio(probe.untracked as f64, probe.untracked as f64 + tracked);
    if untracked > 1.0 - SEEN_MIN {
        return Some(format!(
            "{} of the connections and threads were beyond the limits and not seen: observe one port or one process.",
            units::percent(untracked)
        ));
    }
    let lost = facts.capture.lost_share();
    (lost > 1.0 - SEEN_MIN)
        .then(|| format!("{} of the events were lost: observe one port or one process.", units::percent(lost)))
}

/// Connections whose first and last sample are no further apart are seen by a few samples at most, and as many others by none.
const SHORT_NS: u64 = 100_000_000;

/// Connections that were closed meanwhile, and of which samples do not tell whether and what their clients waited for: those that were seen
/// for a short time, and those that were opened meanwhile, too, and moved data in one direction only. And all of these and of those that
/// moved data. The rung btf samples none.
fn gone_unanswered(facts: &Facts<'_>) -> (usize, usize) {
    if facts.capture.rung == Rung::Btf {
        return (0, 0);
    }
    let records = || facts.flows.iter().map(|flow| flow.rec);
    let directions = |rec: &FlowRecord| {
        (rec.received_bytes() > 0, rec.acked_bytes() > 0 || rec.last.data_segs_out > rec.first.data_segs_out)
    };
    let gone = |rec: &FlowRecord| {
        let (received, sent) = directions(rec);
        let seen_ns = rec.last.at_ns.saturating_sub(rec.first.at_ns);
        rec.end_ns < facts.capture.window_ns && (seen_ns < SHORT_NS || rec.begin_ns > 0 && received != sent)
    };
    let counted = |rec: &FlowRecord| gone(rec) || directions(rec) != (false, false);
    (records().filter(|rec| gone(rec)).count(), records().filter(|rec| counted(rec)).count())
}

fn healthy(facts: &Facts<'_>, flow_share: f64) -> String {
    if let Some(service) = facts.requests.counted().find(|s| s.rec.requests > 0) {
        let rate = ratio(service.rec.requests as f64, service.rec.observed_ns as f64 / 1e9);
        // As the head has them.
        let scaled = facts.capture.slices.count > 1;
        let time = |ns: f64| words::about(scaled, units::time_ms(ns / 1e6));
        let percentile = |name: &str, ns: Option<u64>| ns.map(|ns| format!(", {name} {}", time(ns as f64)));
        let mean = || Some(format!(", {} each on average", time(service.typical_ns())));
        return format!(
            "No time worth naming was lost: {}{}{}.",
            units::requests_per_s(&words::about(scaled, units::decimal(rate))),
            percentile("p50", service.rec.p50_ns).or_else(mean).unwrap_or_default(),
            percentile("p99", service.rec.p99_ns).unwrap_or_default()
        );
    }
    let active = facts.flows.iter().filter(|f| f.shape != Shape::Idle).map(|f| f.rec.connections()).sum();
    let threads = if facts.threads.is_empty() {
        "and no thread was seen".to_string()
    } else {
        format!("threads {} busy", units::percent((facts.busy() * 100.0).round() / 100.0))
    };
    if active == 0 {
        let flows = units::plural(
            facts.flows.iter().map(|f| f.rec.connections()).sum(),
            "established flow was",
            "established flows were",
        );
        return format!("Nothing to do: {flows} idle, {threads}.");
    }
    let flows = units::plural(active, "flow", "flows");
    let exchanges: f64 = facts
        .flows
        .iter()
        .filter(|f| f.shape == Shape::RequestReply)
        .map(|f| f.rec.calls.exchanges as f64 * f.ledger.scale)
        .sum();
    let rate = ratio(exchanges, facts.window_s());
    let exchanges = words::about(facts.scaled(), units::plural_f(rate, "exchange", "exchanges"));
    let did = if rate >= 1.0 { format!(" carried {exchanges} a second") } else { " moved data".to_string() };
    let lost =
        if flow_share >= 0.01 { format!(", {} of the time lost", units::percent(flow_share)) } else { String::new() };
    format!("No time worth naming was lost: {flows}{did}{lost}, {threads}.")
}

/// The share of the flows' time from which on pauses of their clients are worth a sentence.
const PAUSED_MIN: f64 = 0.1;

/// What clients do between two reads or sends of a stream, where that is what limits it.
fn paused(facts: &Facts<'_>) -> String {
    let pause = |blame| facts.raw_share(&[blame]) >= PAUSED_MIN;
    match (pause(Blame::ReaderPauses), pause(Blame::SenderPauses)) {
        (true, _) => " Streams wait for their clients, which sleep between two reads.".to_owned(),
        (false, true) => " Streams come as fast as their clients send, which sleep between two sends.".to_owned(),
        (false, false) => String::new(),
    }
}

fn no_dominant(facts: &Facts<'_>, share: f64) -> String {
    let mut by_label = std::collections::BTreeMap::<&str, f64>::new();
    for part in &facts.parts {
        *by_label.entry(part.blame.label()).or_default() += part.ns;
    }
    let slow = facts.requests.counted().filter(|s| s.slow).flat_map(|s| &s.parts);
    for part in slow.filter(|p| p.spent.is_lost()) {
        *by_label.entry(part.spent.label()).or_default() += part.ns;
    }
    let total = facts.lost_ns() + facts.requests.lost_ns();
    let mut list: Vec<(&str, f64)> = by_label.into_iter().collect();
    list.stable_sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(b.0)));
    let most: Vec<String> =
        list.iter().take(3).map(|(label, ns)| format!("{label} {}", units::percent(ratio(*ns, total)))).collect();
    let whose = if facts.requests.lost_ns() > 0.0 { "of the requests" } else { "in which flows could have moved data" };
    format!(
        "{} of the time {whose} was lost, and no cause known here accounts for enough of it ({}).{}",
        units::percent(share),
        most.join(", "),
        health::who(facts, facts.requests.counted())
    )
}

#[cfg(test)]
mod tests {
    use parshall_evidence::{Confidence, FdKind, FlowState, Release, Role, Slices, Status};
    use proptest::prelude::*;

    use super::*;
    use crate::judge::judge;
    use crate::testkit::service::ServiceBuilder;
    use crate::testkit::{FlowBuilder, MS, ThreadBuilder, arb, capture, empty_capture, verdict_of};

    #[test]
    fn a_cause_that_needs_what_the_host_did_not_show_is_not_ruled_out() {
        let mut capture = capture(vec![FlowBuilder::new(1, Role::Server)], vec![]);
        assert!(judge(&capture).ruled_out.iter().any(|one| one.cause == "resets"));
        let what = "resets sent are not counted (on_reset_sent: invalid func)".to_owned();
        capture.unseen = vec![parshall_evidence::Unseen { what: what.clone(), causes: vec!["resets".to_owned()] }];
        let report = judge(&capture);
        assert!(!report.ruled_out.iter().any(|one| one.cause == "resets"), "{:?}", report.ruled_out);
        assert!(
            report.not_tested.iter().any(|one| one.cause == "resets" && one.why == what),
            "{:?}",
            report.not_tested
        );
        assert!(!report.ruled_out.is_empty());
    }

    #[test]
    fn idle_is_healthy_and_nothing_is_no_evidence() {
        let report = judge(&capture(vec![FlowBuilder::new(1, Role::Server)], vec![]));
        assert_eq!(report.verdict.status, Status::Healthy);
        assert!(report.verdict.summary.starts_with("Nothing to do"), "{}", report.verdict.summary);
        assert_eq!(verdict_of(&empty_capture()), "insufficient-evidence");
        let mut short = capture(vec![FlowBuilder::new(1, Role::Server)], vec![]);
        short.window_ns = 100 * MS;
        assert_eq!(verdict_of(&short), "insufficient-evidence");
    }

    #[test]
    fn connections_that_are_gone_before_their_answers_were_seen_are_no_health() {
        // The samples of a connection for a request: all of a short one, the request alone, or nothing but that it was there.
        let short = |id: u64| {
            let mut flow = FlowBuilder::new(id, Role::Server);
            let length = if id == 2 { 300 * MS } else { 30 * MS };
            flow.record.last.at_ns = length;
            match id {
                1 => flow = flow.talks(1, 100),
                2 => flow.record.last.bytes_received = 100,
                _ => {}
            }
            // The third one was there before the window, as far as can be told.
            let begin_ns = if id == 3 { 0 } else { id * 100 * MS };
            (flow.record.begin_ns, flow.record.end_ns) = (begin_ns, begin_ns + length);
            flow
        };
        let lasting = |id: u64| FlowBuilder::new(id, Role::Server).talks(100, 100);
        for (rung, shorts, status) in [
            (Rung::Procfs, 3, Status::InsufficientEvidence),
            (Rung::Tracepoint, 3, Status::InsufficientEvidence),
            (Rung::Procfs, 1, Status::Healthy),
            (Rung::Btf, 3, Status::Healthy),
        ] {
            let flows = (1..=shorts).map(short).chain((10..18).map(lasting)).collect();
            let mut capture = capture(flows, vec![]);
            capture.rung = rung;
            let report = judge(&capture);
            assert_eq!(report.verdict.status, status, "{rung:?}, {shorts}: {}", report.verdict.summary);
        }
    }

    #[test]
    fn short_slices_lower_the_confidence() {
        let confidence = |count, observed_ns, p50_ns| {
            let mut capture = crate::testkit::service::with(ServiceBuilder::new(7000).requests(1000, 0.1).cpu(1.0));
            capture.slices = Slices { count, observed_ns, ..capture.slices };
            capture.services[0].p50_ns = p50_ns;
            judge(&capture).verdict.confidence
        };
        assert_eq!(confidence(1, 50 * MS, None), Confidence::High);
        assert_eq!(confidence(5, 250 * MS, Some(1)), Confidence::High);
        assert_eq!(confidence(5, 90 * MS, Some(1)), Confidence::Medium);
        assert_eq!(confidence(5, 250 * MS, None), Confidence::Medium);
    }

    #[test]
    fn many_small_losses_have_no_dominant_cause() {
        let flow = FlowBuilder::new(1, Role::Client)
            .every(100 * MS, 0, 10 * MS, FlowState::Sndbuf, Release::RxAck)
            .every(100 * MS, 10 * MS, 10 * MS, FlowState::Qdisc, Release::RxAck)
            .every(100 * MS, 20 * MS, 10 * MS, FlowState::Paced, Release::RxAck)
            .every(100 * MS, 30 * MS, 10 * MS, FlowState::PeerWindow, Release::RxAck)
            .streams(1000, 16_384);
        let report = judge(&capture(vec![flow], vec![]));
        assert_eq!(report.verdict.status, Status::NoDominantCause);
        assert!(report.findings.is_empty());
    }

    #[test]
    fn every_cause_is_either_found_or_ruled_out() {
        let flow = FlowBuilder::new(1, Role::Client)
            .every(41 * MS, 0, 20 * MS, FlowState::Nagle, Release::RxAckDelayed)
            .every(41 * MS, 20 * MS, 15 * MS, FlowState::IdleAfterSend, Release::RxData)
            .talks_in_parts(24);
        let report =
            judge(&capture(vec![flow], vec![ThreadBuilder::new(101).blocked(0, 900 * MS, "epoll_wait", FdKind::Anon)]));
        assert_eq!(report.findings.len(), 2);
        assert_eq!(report.findings.len() + report.ruled_out.len() + report.not_tested.len(), CAUSES.len());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2 * ProptestConfig::default().cases))]

        #[test]
        fn never_panics_and_is_deterministic(capture in arb::capture()) {
            let report = judge(&capture);
            prop_assert_eq!(&report, &judge(&capture));
            let json = serde_json::to_string(&report).expect("a report is JSON");
            prop_assert!(!json.contains("null"), "{}", json);
            for s in &report.services {
                let t = &s.time;
                let shares = [t.accept_queue, t.unread, t.incomplete, t.working, t.reply_unsent];
                prop_assert!(shares.iter().all(|share| (0.0..=1.0).contains(share)), "{:?}", s);
                let sum: f64 = shares.iter().sum();
                prop_assert!(sum == 0.0 || (sum - 1.0).abs() < 0.01, "{:?}", s);
                let work: f64 = t.work.iter().map(|w| w.share).sum();
                prop_assert!((work - t.working).abs() < 0.01, "{:?}", s);
            }
            let facts = Facts::new(&capture, &capture.services);
            for s in &facts.requests.services {
                let parts: f64 = s.parts.iter().map(|p| p.ns).sum();
                prop_assert!((parts + s.unseen_ns - s.time_ns).abs() <= 0.05 * s.time_ns, "{:?}", s);
            }
            for f in &report.findings {
                for hop in &f.chain {
                    prop_assert!((0.0..=1.0).contains(&hop.share) && !hop.text.is_empty(), "{:?}", hop);
                }
                let seen = report.chain.as_ref().is_none_or(|c| c.leaf.seen || c.leaf.cause != f.cause);
                prop_assert!(seen || f.confidence < Confidence::High, "{:?}", f);
                prop_assert!((0.0..=1.0).contains(&f.share) && (0.0..=1.0).contains(&f.lost_share), "{:?}", f);
                prop_assert!(f.lost_ms <= capture.window_ns as f64 / 1e6);
            }
            for account in [&report.time.flows, &report.time.threads] {
                let sum: f64 = account.states.iter().map(|s| s.share).sum();
                prop_assert!(account.wall_ms == 0.0 || (sum - 1.0).abs() < 0.01, "{}", sum);
            }
        }
    }
}

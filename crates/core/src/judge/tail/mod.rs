//! The verdict on the slowest requests of a service: the same causes, tested on the account of these requests alone.
//!
//! It takes the place of an answer without a cause, and stands beside a cause that the typical request has. That the slowest requests are
//! slower than others needs no cause; one is named where they are much slower, wait instead of working, and wait mostly for one thing.
use crate::sorting::StableSort as _;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use parshall_evidence::{Evidence, Finding, HopKind, Service, Status, TailReport, TimeShare};

use crate::judge::cause::{CAUSES, Outcome};
use crate::judge::chain;
use crate::judge::confidence::Gap;
use crate::judge::facts::Facts;
use crate::judge::facts::requests::tail as account;
use crate::judge::facts::requests::{PartFact, Requests, ServiceFact, Spent};
use crate::judge::rank::{self, Ranking};
use crate::judge::words;
use crate::stats::ratio;
use crate::units;

/// The cause has this share of what the slowest requests lost, and of all of their time.
const MIN_TAIL_SHARE: f64 = 0.5;
/// They lost most of what all requests lost if it is this share of it.
const MOST: f64 = 0.8;
/// The 99th percentile is this many times the median or more where a report says what the slowest requests wait for.
const NOTABLE_TIMES: f64 = 10.0;
/// And at least so long.
const NOTABLE_MS: f64 = 2.0;

/// Requests, and moments at which they began, that leave no doubt.
const MANY: (u64, u64) = (30, 3);
/// Fewer requests than that leave doubt.
const FEW: u64 = 10;
/// Fewer requests that wait for the cause are an accident, whatever else the slowest ones do.
const LEAST: u64 = 5;
/// Once in a while, any host with more than one program lets a thread wait for a CPU for long, and with it all requests that come meanwhile.
const RUN_QUEUE: &str = "run-queue-latency";
const OFTEN: u64 = 2;

/// The findings about the slowest requests of all services.
#[derive(Debug, Default)]
pub struct Tails {
    /// The cause that most of them wait for.
    found: Option<Found>,
    /// In figures, with the service whose they are.
    reports: Vec<(Service, TailReport)>,
    /// Requests were left without an answer, which matters more.
    waited: bool,
}

/// The cause that the slowest requests wait for.
#[derive(Debug)]
struct Found {
    finding: Finding,
    /// The end of the way to it was seen.
    seen: bool,
    /// They lost most of what all requests lost.
    is_most: bool,
}

/// Judges the slowest requests. The account of all requests is in `facts` again afterwards.
pub fn judge<'a>(facts: &mut Facts<'a>, tails: &'a [Service]) -> Tails {
    let waited = facts.requests.waited().next().is_some();
    let account = account::account(facts.capture, tails, &facts.requests);
    let whole = std::mem::replace(&mut facts.requests, account);
    let found = found(facts, &whole);
    let cause = found.as_ref().map(|found| found.finding.cause.as_str());
    let reports = facts.requests.counted().map(|fact| (fact.rec.clone(), report(fact, &whole, cause)));
    let reports = reports.collect();
    facts.requests = whole;
    Tails { found, reports, waited }
}

impl Tails {
    /// The report of a service's slowest requests; None where they were not told apart.
    pub fn of(&self, service: &Service) -> Option<TailReport> {
        let own = self.reports.iter().find(|(rec, _)| account::is_same(rec, service));
        own.filter(|_| !service.waited).map(|(_, report)| report.clone())
    }

    /// The answer with regard to them.
    pub fn conclude(self, mut ranking: Ranking) -> Ranking {
        let Some(Found { mut finding, seen, is_most }) = self.found else { return ranking };
        if ranking.verdict.status == Status::InsufficientEvidence {
            return ranking;
        }
        if let Some(at) = ranking.findings.iter().position(|known| known.cause == finding.cause) {
            // The typical request does not have this cause: what is said is about those that do.
            if is_most && !self.waited {
                let known = &ranking.findings[at];
                if known.confidence > finding.confidence {
                    (finding.confidence, finding.gaps) = (known.confidence, known.gaps.clone());
                }
                ranking.findings[at] = finding;
                return if at == 0 { answered(ranking, seen) } else { ranking };
            }
            return ranking;
        }
        ranking.ruled_out.retain(|entry| entry.cause != finding.cause);
        ranking.not_tested.retain(|entry| entry.cause != finding.cause);
        let alone = ranking.verdict.status != Status::Cause && !self.waited;
        ranking.findings.push(finding);
        if alone { answered(ranking, seen) } else { ranking }
    }
}

/// The first finding is the answer.
fn answered(mut ranking: Ranking, seen: bool) -> Ranking {
    let Some(first) = ranking.findings.first() else { return ranking };
    ranking.verdict = rank::answer(first);
    ranking.chain = chain::of_finding(first, seen);
    ranking
}

/// The cause of most of what the slowest requests lost.
fn found(facts: &Facts<'_>, whole: &Requests<'_>) -> Option<Found> {
    let lost_ns = facts.requests.lost_ns();
    if lost_ns <= 0.0 {
        return None;
    }
    let held = CAUSES.iter().filter_map(|cause| match (cause.test)(facts) {
        Outcome::Holds(candidate) if candidate.refused.is_none() => {
            let ns = candidate.requests.as_ref()?.ns;
            Some((cause, *candidate, ns))
        }
        _ => None,
    });
    let (cause, mut candidate, ns) = held.max_by(|a, b| a.2.total_cmp(&b.2))?;
    let loss = candidate.requests.as_ref()?;
    let (lost_share, share) = (ratio(ns, lost_ns).min(1.0), ratio(ns, loss.time_ns).min(1.0));
    let seen = loss.seen;
    if lost_share < MIN_TAIL_SHARE || share < MIN_TAIL_SHARE || candidate.may_be.is_some() {
        return None;
    }
    if requests_of(facts, cause.id) < LEAST {
        return None;
    }
    let service = facts.requests.counted().filter(|s| s.slow).max_by(|a, b| a.lost_ns().total_cmp(&b.lost_ns()))?;
    let tail = service.rec.tail.as_ref()?;
    if cause.id == RUN_QUEUE && tail.moments < OFTEN {
        return None;
    }
    candidate.gaps.extend(match tail.requests {
        n if n >= MANY.0 && tail.moments >= MANY.1 => None,
        n if n >= FEW => Some(Gap::Few(n, "slow requests")),
        _ => Some(Gap::Guessed("the slow requests are very few")),
    });
    candidate.summary = summary(service, share_of(service, whole), &candidate.summary);
    candidate.evidence.insert(0, evidence(service));
    let finding = Finding { tail: true, ..rank::finding(facts, cause, candidate, lost_share, share) };
    Some(Found { finding, seen, is_most: ns >= MOST * whole.lost_ns() })
}

/// Of the slowest requests, how many lost something to this cause, as far as they were followed. One that claims what another use of time
/// is named after has those that lost anything.
fn requests_of(facts: &Facts<'_>, cause: &str) -> u64 {
    let count = |claims: &dyn Fn(Spent) -> bool| {
        let of = |service: &ServiceFact<'_>| {
            let lost = service.parts.iter().filter(|part| service.slow && claims(part.spent));
            lost.map(|part| part.rec.requests).fold(0, u64::saturating_add).min(service.rec.followed_requests)
        };
        facts.requests.counted().map(of).fold(0, u64::saturating_add)
    };
    match count(&|spent| spent.cause() == Some(cause)) {
        0 => count(&Spent::is_lost),
        own => own,
    }
}

/// `The slowest 5 % of the requests (from 16 ms; the typical one takes 271 us) wait: ` and what the cause says.
fn summary(service: &ServiceFact<'_>, share: f64, sentence: &str) -> String {
    let Some(tail) = &service.rec.tail else { return sentence.to_string() };
    let computes = |part: &PartFact<'_>| is_queued(part) && on_cpu(part) && part.spent != Spent::RunQueue;
    let queued = worst(service).is_some_and(computes);
    let behind = match tail.blockers.first() {
        Some(client) if queued => format!(" behind another request, which comes from {client}"),
        None if queued => " for the thread that is to read them".to_string(),
        _ => String::new(),
    };
    format!(
        "The slowest {} of the requests (from {}; the typical one takes {}) wait{behind}: {}",
        units::percent(share),
        units::duration(tail.from_ns as f64),
        units::duration(service.typical_ns()),
        words::behind_colon(sentence, service.names())
    )
}

fn evidence(service: &ServiceFact<'_>) -> Evidence {
    let rec = service.rec;
    Evidence {
        what: "slowest requests, their whole time".to_string(),
        count: Some(rec.requests),
        mean_ms: Some(ratio(rec.outstanding_ns as f64, rec.requests as f64) / 1e6).filter(|_| rec.requests > 0),
        ..Evidence::default()
    }
}

fn is_queued(part: &PartFact<'_>) -> bool {
    part.rec.hops.first().is_some_and(|hop| hop.kind.is_queue())
}

fn on_cpu(part: &PartFact<'_>) -> bool {
    part.rec.hops.last().is_some_and(|leaf| matches!(leaf.kind, HopKind::OnCpu | HopKind::RunQueue))
}

/// Of what the slowest requests lost most to, the largest part.
fn worst<'f, 'a>(service: &'f ServiceFact<'a>) -> Option<&'f PartFact<'a>> {
    let lost = || service.parts.iter().filter(|part| service.slow && part.spent.is_lost());
    let mut by_spent: BTreeMap<Spent, f64> = BTreeMap::new();
    lost().for_each(|part| *by_spent.entry(part.spent).or_default() += part.ns);
    let (most, _) = by_spent.into_iter().max_by(|a, b| a.1.total_cmp(&b.1))?;
    lost().filter(|part| part.spent == most).max_by(|a, b| a.ns.total_cmp(&b.ns))
}

fn report(fact: &ServiceFact<'_>, whole: &Requests<'_>, cause: Option<&str>) -> TailReport {
    let rec = fact.rec;
    let tail = rec.tail.clone().unwrap_or_default();
    let mean_ms = ratio(tail.ns as f64, tail.requests as f64) / 1e6;
    let ms = |ns: Option<u64>| ns.map(|ns| ns as f64 / 1e6);
    let far =
        ms(rec.p50_ns).zip(ms(rec.p99_ns)).is_some_and(|(p50, p99)| p99 >= NOTABLE_MS && p99 >= NOTABLE_TIMES * p50);
    TailReport {
        from_ms: tail.from_ns as f64 / 1e6,
        requests: tail.requests,
        share: share_of(fact, whole),
        mean_ms,
        notable: far || fact.slow,
        time: time(fact),
        behind: behind(fact, &tail.blockers),
        cause: cause.filter(|_| fact.slow).map(str::to_string),
    }
}

/// Of all requests of a service, the share that the slowest ones are.
fn share_of(fact: &ServiceFact<'_>, whole: &Requests<'_>) -> f64 {
    let all = whole.counted().find(|s| !s.rec.waited && account::is_same(s.rec, fact.rec));
    ratio(fact.rec.requests as f64, all.map_or(0, ServiceFact::seen_requests) as f64).min(1.0)
}

/// The time of the slowest requests by its use, the largest share first.
fn time(fact: &ServiceFact<'_>) -> Vec<TimeShare> {
    let mut by_spent: BTreeMap<Spent, f64> = BTreeMap::new();
    for part in &fact.parts {
        *by_spent.entry(part.spent).or_default() += part.ns;
    }
    *by_spent.entry(Spent::Unseen).or_default() += fact.unseen_ns;
    by_spent.retain(|_, ns| *ns > 0.0);
    let share = |(spent, ns): (Spent, f64)| TimeShare {
        state: spent.label().to_lowercase().replace(' ', "-"),
        label: spent.label().to_string(),
        ms: ns / 1e6,
        share: ratio(ns, fact.time_ns).clamp(0.0, 1.0),
    };
    let mut list: Vec<TimeShare> = by_spent.into_iter().map(share).collect();
    list.stable_sort_by(|a, b| b.ms.total_cmp(&a.ms));
    list
}

/// The thread or process that most of them wait for, in a few words; empty where there is none.
fn behind(fact: &ServiceFact<'_>, blockers: &[String]) -> String {
    let Some(part) = worst(fact) else { return String::new() };
    let Some(leaf) = part.rec.hops.last() else { return String::new() };
    let holder =
        || part.rec.hops.iter().position(|hop| hop.kind == HopKind::Lock).and_then(|at| part.rec.hops.get(at + 1));
    match (leaf.kind, blockers.first()) {
        (HopKind::RunQueue, _) if part.spent == Spent::RunQueue => leaf.target.clone(),
        (_, Some(client)) if is_queued(part) => format!("another request, from {client}"),
        (HopKind::Reply | HopKind::Close | HopKind::Connect | HopKind::NameServer, _) => leaf.target.clone(),
        _ if part.spent == Spent::Lock => holder().map(chain::named).unwrap_or_default(),
        _ => String::new(),
    }
}

//! From a capture to a verdict. No probe and no text format is known here.
//!
//! [`ledger`] splits the wall time of every flow and thread into states that exclude each other; [`facts`] finds out which of
//! that time was lost and who is to blame for each piece, `evidence_type` which cause may claim what; [`cause`] tests each cause
//! against its look-alikes, and answers with a [`denial`] where one does not hold; [`rank`] names those that own enough of the lost
//! time, `confidence` how sure that is and `gain` what its removal would give, `tail` judges the slowest requests apart from the
//! others, `felt` says whether anybody notices what was lost, and `health` whether nothing is wrong where no cause is named; [`account`]
//! prints the ledgers into the report, `usage` the calls and the CPUs, `event` the events of the kernel that were asked for, `uring` its
//! requests to io_uring, [`service`] the services, and [`chain`] the way from a service to what its requests wait for. [`counted`] says
//! which events count into the figures of all this.
pub mod account;
mod capacity;
pub mod cause;
pub mod chain;
pub mod check;
mod confidence;
pub mod counted;
pub mod denial;
mod event;
mod evidence_type;
pub mod facts;
mod felt;
mod gain;
mod handshakes;
mod health;
mod known_names;
pub mod ledger;
pub mod rank;
pub mod record;
mod runtime;
pub mod service;
mod stream;
mod tail;
#[cfg(test)]
mod tests;
mod uring;
mod usage;
pub mod waiting;
mod words;

use parshall_evidence::{Capture, Hop, ProbeReport, Report, Service, VERDICT_SCHEMA};

pub use counted::Counted;
pub use known_names::telling;

use crate::critical_path::{self, Index};
use crate::stats::ratio;
use crate::units;

/// A report, and what was derived from the capture for it.
pub struct Judged<'a> {
    /// The report.
    pub report: Report,
    /// The events that count into its figures.
    pub counted: Counted,
    /// The capture's timeline, indexed; None where it has none.
    pub index: Option<Index<'a>>,
}

/// Judges a capture: pure, deterministic, and total (no capture makes it panic).
pub fn judge(capture: &Capture) -> Report {
    concluded(capture, |_, _| ()).0
}

/// As [`judge`], for those who need more than the report.
pub fn judged(capture: &Capture) -> Judged<'_> {
    let (report, index, counted) = concluded(capture, Counted::new);
    Judged { report, counted, index }
}

/// The report, the indexed timeline, and what `more` derives from the facts for it.
fn concluded<T>(
    capture: &Capture,
    more: impl FnOnce(&facts::Facts<'_>, &Report) -> T,
) -> (Report, Option<Index<'_>>, T) {
    let index = capture.timeline.as_ref().map(Index::new);
    // The services that were seen, and the waits of their clients outside of requests.
    let (mut found, clients) =
        index.as_ref().map_or_else(|| (capture.services.clone(), Vec::new()), critical_path::all);
    let waited = waiting::waited(capture, &found);
    found.extend(waited.services);
    found.iter_mut().flat_map(|service| &mut service.path).flat_map(|part| &mut part.hops).for_each(without_backticks);
    let slowest = facts::requests::tail::services(&found);
    let mut facts = facts::Facts::new(capture, &found);
    (facts.quiet, facts.clients) = (waited.quiet, clients);
    let tails = tail::judge(&mut facts, &slowest);
    let services = service::all(&facts, |service| tails.of(service));
    let ranking = tails.conclude(rank::rank(&facts));
    let mut report = Report {
        schema: VERDICT_SCHEMA.to_string(),
        subject: capture.subject.clone(),
        origin: capture.origin.clone(),
        command: capture.command.clone(),
        window_s: capture.window_ns as f64 / 1e9,
        rung: capture.rung,
        blind: blind(&facts),
        verdict: ranking.verdict,
        service: services.first().filter(|service| !service.followed).cloned(),
        services,
        chain: ranking.chain,
        findings: ranking.findings,
        ruled_out: ranking.ruled_out,
        not_tested: ranking.not_tested,
        time: account::time(&facts),
        calls: usage::calls(capture),
        cpus: usage::cpus(capture),
        events: event::events(capture),
        uring: uring::uring(capture),
        log: capture.log.clone(),
        probe: probe(capture),
    };
    let mut contradictions = check::contradictions(&report);
    contradictions.extend(check::denials(&facts, &report.ruled_out));
    let note = |what| format!("this report contradicts itself, which is an error of parshall: {what}");
    // Nothing says more of how far a report can be trusted.
    report.blind.splice(0..0, contradictions.into_iter().map(note));
    let more = more(&facts, &report);
    (report, index, more)
}

/// Takes backticks out of the names of a hop: what stands between them in a fix is to be typed, and a process names itself as it likes.
fn without_backticks(hop: &mut Hop) {
    for name in [&mut hop.process, &mut hop.thread, &mut hop.target, &mut hop.title] {
        if name.contains('`') {
            *name = name.replace('`', "'");
        }
    }
}

/// The services that are found in the timeline; those of a case of `parshall.capture/1` as they were saved.
pub fn services(capture: &Capture) -> Vec<Service> {
    capture.timeline.as_ref().map_or_else(|| capture.services.clone(), critical_path::services)
}

/// The report mentions a hypervisor that takes this much of the CPUs' time.
const STOLEN_REPORTED: f64 = 0.02;

fn blind(facts: &facts::Facts<'_>) -> Vec<String> {
    let mut blind = facts.capture.blind.clone();
    let stolen = facts.stolen_share();
    if stolen >= STOLEN_REPORTED {
        blind.push(format!(
            "the hypervisor took {} of this machine's CPU time: what waited for a CPU, or for a thread on this host, may \
             have waited for that",
            units::percent(stolen)
        ));
    }
    blind.extend(overlapping(facts));
    blind.extend(quiet(facts));
    let left_out = facts.capture.waiting.as_ref().map_or(0, |waiting| waiting.left_out);
    if left_out > 0 {
        let further = units::plural(left_out, "further connection", "further connections");
        blind.push(format!("of {further} it was not looked at whether something waits on them"));
    }
    blind
}

/// Connections whose replies cannot be told apart.
fn overlapping(facts: &facts::Facts<'_>) -> Option<String> {
    let n = facts.requests.services.iter().fold(0u64, |n, service| n.saturating_add(service.rec.overlapping));
    (n > 0).then(|| {
        let connections = units::plural(n, "connection", "connections");
        format!("several requests are under way on {connections}: single times are not known")
    })
}

/// Requests that a service lets wait, which owe nothing as far as can be seen.
fn quiet(facts: &facts::Facts<'_>) -> Option<String> {
    let waiting::Quiet { count, longest_ns } = facts.quiet;
    (count > 0).then(|| {
        format!(
            "{} not answered (the longest for {}) by a service none of whose threads is blocked: long polls, data that is owed \
             no reply, or a wait inside of the process, which cannot be told apart from outside",
            units::plural(count, "request was", "requests were"),
            units::duration(longest_ns as f64)
        )
    })
}

fn probe(capture: &Capture) -> ProbeReport {
    let cost = &capture.probe;
    ProbeReport {
        cpu_ms: (cost.kernel_cpu_ns as f64 + cost.own_cpu_ns as f64) / 1e6,
        kernel_cpu_ms: cost.kernel_cpu_ns as f64 / 1e6,
        observed_share: ratio(capture.slices.observed_ns as f64, capture.window_ns as f64).min(1.0),
        events: capture.slices.events.max(cost.events),
        lost_events: cost.lost_events,
        missed_events: cost.missed_events,
        missed_share: capture.missed_share(),
        untracked: cost.untracked,
        rss_mib: cost.rss_bytes as f64 / (1024.0 * 1024.0),
        attach_ms: if cost.attach_ms.is_finite() { cost.attach_ms } else { 0.0 },
    }
}

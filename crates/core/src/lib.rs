//! Everything in parshall that decides: ledgers of time, causes, statistics.
//!
//! What belongs here: functions from evidence to a verdict. No I/O, no clock, no unsafe code; `clippy.toml` names what
//! is disallowed, and the crate builds for wasm32-unknown-unknown. The one entry is [`judge`].
//!
//! The way through: [`ledger`] splits the wall time of every flow and thread into states that exclude each other;
//! [`facts`] finds out which of that time was lost and who is to blame for each piece; [`cause`] tests each cause
//! against its look-alikes and ranks those that hold; [`account`] prints the ledgers into the report.
#![forbid(unsafe_code)]
#![deny(clippy::disallowed_methods, clippy::disallowed_types)]

pub mod account;
pub mod background;
pub mod cause;
#[cfg(test)]
mod claims_tests;
pub mod facts;
pub mod ledger;
pub mod relay;
pub mod signals;
pub mod slice;
pub mod sockets;
pub mod stats;
pub mod words;

#[cfg(any(test, feature = "testkit"))]
pub mod testkit;

use parshall_evidence::{Capture, ProbeReport, Report, VERDICT_SCHEMA};

/// Judges a capture: pure, deterministic, and total (no capture makes it panic).
pub fn judge(capture: &Capture) -> Report {
    let facts = facts::Facts::new(capture);
    let ranking = cause::rank::rank(&facts);
    Report {
        schema: VERDICT_SCHEMA.to_string(),
        subject: capture.subject.clone(),
        origin: capture.origin.clone(),
        command: capture.command.clone(),
        window_s: capture.window_ns as f64 / 1e9,
        rung: capture.rung,
        blind: blind(&facts),
        verdict: ranking.verdict,
        findings: ranking.findings,
        ruled_out: ranking.ruled_out,
        not_tested: ranking.not_tested,
        time: account::time(&facts),
        probe: probe(capture),
    }
}

/// A hypervisor that takes this much of the CPUs' time is told of.
const STOLEN_TOLD: f64 = 0.02;

fn blind(facts: &facts::Facts<'_>) -> Vec<String> {
    let mut blind = facts.capture.blind.clone();
    let stolen = facts.stolen_share();
    if stolen >= STOLEN_TOLD {
        blind.push(format!(
            "the hypervisor took {} of this machine's CPU time: what waited for a CPU, or for a thread on this host, may \
             have waited for that",
            words::percent(stolen)
        ));
    }
    blind
}

fn probe(capture: &Capture) -> ProbeReport {
    let cost = &capture.probe;
    ProbeReport {
        cpu_ms: (cost.kernel_cpu_ns as f64 + cost.own_cpu_ns as f64) / 1e6,
        kernel_cpu_ms: cost.kernel_cpu_ns as f64 / 1e6,
        observed_share: stats::ratio(capture.slices.observed_ns as f64, capture.window_ns as f64).min(1.0),
        events: capture.slices.events.max(cost.events),
        lost_events: cost.lost_events,
        untracked: cost.untracked,
        rss_mib: cost.rss_bytes as f64 / (1024.0 * 1024.0),
        attach_ms: if cost.attach_ms.is_finite() { cost.attach_ms } else { 0.0 },
    }
}

//! All counters, summed over the workers at one moment (`parshall.relay/1` in docs/json.md), for the metrics and `relay top`.
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::SystemTime;

use parshall_core::relay::connection::CloseReason;
use parshall_core::relay::direction::Direction;
use parshall_core::sorting::IntoOrdered as _;
use serde::{Deserialize, Serialize};

use super::status::{Row, Status};
use crate::log;
use crate::service::Service;
use crate::service::target::TargetState;
use crate::stats::{Count, EngineKind, Fallback, ListenerStats};
use parshall_host::process::Process;
use parshall_host::utc::iso;

/// Name and version of the format.
pub const SCHEMA: &str = "parshall.relay/1";

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Snapshot {
    /// [`SCHEMA`].
    pub schema: String,
    /// In UTC.
    pub time: String,
    pub uptime_s: f64,
    /// Whether the relay accepts no more and waits for its last connections.
    pub draining: bool,
    pub process: Process,
    /// Reloads that were put into force.
    pub reloads: u64,
    /// Reloads that were refused.
    pub reloads_refused: u64,
    /// Failed lookups of names.
    pub lookups_failed: u64,
    /// Failed checks of targets.
    pub checks_failed: u64,
    /// Log lines written.
    pub log_lines: u64,
    /// Log lines that could not be written.
    pub log_lines_lost: u64,
    /// The listeners in force, then the removed ones.
    pub listeners: Vec<ListenerView>,
}

/// A listener's counters, summed over all workers, since the start of the relay.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ListenerView {
    pub name: String,
    /// `tcp` or `udp`; empty for a removed listener.
    pub protocol: String,
    /// The address; empty for a removed listener.
    pub listen: String,
    /// Whether it is in the configuration in force.
    pub in_force: bool,
    /// Connections accepted, or sessions begun.
    pub accepted: u64,
    /// Open now.
    pub active: u64,
    /// Ended, by reason.
    pub closed: BTreeMap<String, u64>,
    /// Bytes from clients to targets, by engine.
    pub up_bytes: BTreeMap<String, u64>,
    /// Bytes from targets to clients, by engine.
    pub down_bytes: BTreeMap<String, u64>,
    /// Directions that fell back to copying, by reason.
    pub fallbacks: BTreeMap<String, u64>,
    /// Pauses of accepting because descriptors or memory ran out.
    pub accept_pauses: u64,
    /// Connection attempts to targets.
    pub dials: u64,
    pub dial_failures: u64,
    /// Datagrams from clients to targets.
    pub datagrams_up: u64,
    /// Datagrams from targets to clients.
    pub datagrams_down: u64,
    pub datagrams_dropped: u64,
    /// Log lines lost because the log thread was too slow.
    pub log_lines_lost: u64,
    pub targets: Vec<TargetView>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct TargetView {
    /// As it was configured.
    pub target: String,
    /// Whether it has an address and active checks have not found it down.
    pub up: bool,
    pub addresses: Vec<String>,
    /// The error of the last attempt to reach it, by a connection or a check; null unless it is reported down.
    #[serde(default)]
    pub error: Option<String>,
}

impl Snapshot {
    pub fn take(status: &Status) -> Self {
        let (log_lines, log_lines_lost) = status.log();
        Self {
            schema: SCHEMA.to_owned(),
            time: iso(SystemTime::now()),
            uptime_s: status.uptime().as_millis() as f64 / 1000.0,
            draining: status.draining(),
            process: Process::now(),
            reloads: status.reloads.get(),
            reloads_refused: status.reloads_refused.get(),
            lookups_failed: status.lookups_failed.get(),
            checks_failed: status.checks_failed.get(),
            log_lines,
            log_lines_lost,
            listeners: status.rows().iter().map(ListenerView::of).collect(),
        }
    }
}

impl ListenerView {
    fn of(row: &Row) -> Self {
        let sum = |count: fn(&ListenerStats) -> &Count| row.stats.iter().map(|s| count(s).get()).sum::<u64>();
        let list = |names: Vec<&'static str>, counts: fn(&ListenerStats) -> &[Count]| {
            let total = |place: usize| row.stats.iter().map(|s| counts(s)[place].get()).sum::<u64>();
            names.iter().enumerate().map(|(place, name)| ((*name).to_owned(), total(place))).into_map()
        };
        let engines = || EngineKind::ALL.iter().map(|e| e.name()).collect();
        let service = row.service.as_ref();
        Self {
            name: row.name.clone(),
            protocol: service.map_or("", |(s, _)| log::protocol(s.config.protocol)).to_owned(),
            listen: service.map_or(String::new(), |(_, bound)| bound.clone()),
            in_force: service.is_some(),
            accepted: sum(|s| &s.accepted),
            active: sum(|s| &s.active),
            closed: list(CloseReason::ALL.iter().map(|r| r.name()).collect(), |s| &s.closed),
            up_bytes: list(engines(), |s| &s.bytes[Direction::ClientToTarget]),
            down_bytes: list(engines(), |s| &s.bytes[Direction::TargetToClient]),
            fallbacks: list(Fallback::ALL.iter().map(|f| f.name()).collect(), |s| &s.fallbacks),
            accept_pauses: sum(|s| &s.accept_pauses),
            dials: sum(|s| &s.dials),
            dial_failures: sum(|s| &s.dial_failures),
            datagrams_up: sum(|s| &s.datagrams[Direction::ClientToTarget]),
            datagrams_down: sum(|s| &s.datagrams[Direction::TargetToClient]),
            datagrams_dropped: sum(|s| &s.datagrams_dropped),
            log_lines_lost: sum(|s| &s.log_lines_lost),
            targets: service.map(|(s, _)| targets(s)).unwrap_or_default(),
        }
    }
}

fn targets(service: &Arc<Service>) -> Vec<TargetView> {
    let view = |endpoint: String, state: &TargetState| {
        let addresses: Vec<String> = state.addresses().iter().map(ToString::to_string).collect();
        TargetView {
            target: endpoint,
            up: !state.is_down() && !addresses.is_empty(),
            addresses,
            error: state.trouble(),
        }
    };
    let all = service.config.targets.iter().zip(&service.targets);
    all.map(|(target, state)| view(target.endpoint.to_string(), state)).collect()
}

//! The state of a tunnel as `tunnel show` and the metrics have it (`parshall.tunnel/1`). It has no secrets.
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use parshall_core::sorting::IntoOrdered as _;
use parshall_core::tunnel::{DropCause, PeerState};
use parshall_host::process::Process;
use serde::{Deserialize, Serialize};

use super::owner::{DeviceOwner, State};
use crate::counters::Counters;

/// The version of the document.
pub const SCHEMA: &str = "parshall.tunnel/1";

/// The key of the report in the answer to `report=1`.
pub const REPORT_KEY: &str = "report";

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    pub schema: String,
    pub interface: String,
    /// Since the process that moves packets was started.
    pub uptime_s: f64,
    pub public_key: Option<String>,
    pub listen_port: u16,
    /// 0 for none.
    pub fwmark: u32,
    pub peers: Vec<PeerReport>,
    /// Packets and datagrams that were dropped, by cause. Causes without any are left out.
    pub drops: BTreeMap<String, u64>,
    pub counters: Counters,
    pub process: Process,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct PeerReport {
    pub public_key: String,
    pub endpoint: Option<String>,
    pub allowed_ips: Vec<String>,
    /// 0 for none.
    pub persistent_keepalive_s: u16,
    /// Handshakes that ended with a session.
    pub handshakes: u64,
    /// Since the last of them.
    pub handshake_age_s: Option<f64>,
    /// Bytes of datagrams, handshakes included.
    pub received_bytes: u64,
    pub sent_bytes: u64,
    /// Data messages, keepalives included.
    pub received_packets: u64,
    pub sent_packets: u64,
    /// Runs of data messages that were opened, or sealed, together.
    pub received_batches: u64,
    pub sent_batches: u64,
    /// Packets and datagrams of the peer that were dropped, by cause.
    pub drops: BTreeMap<String, u64>,
}

impl Report {
    pub(super) fn new(interface: &str, uptime: Duration, state: &State, now: SystemTime) -> Self {
        let unix = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Self {
            schema: SCHEMA.to_owned(),
            interface: interface.to_owned(),
            uptime_s: uptime.as_secs_f64(),
            public_key: state.device.private_key.as_ref().map(|key| key.public().to_string()),
            listen_port: state.device.listen_port,
            fwmark: state.device.fwmark,
            peers: state.device.peers.iter().map(|peer| PeerReport::new(peer, unix)).collect(),
            drops: by_name(&state.drops),
            counters: state.counters,
            process: Process::now(),
        }
    }

    /// CPU time of the process for each Gbit that its peers' datagrams have, in both directions. None without any.
    pub fn cpu_s_per_gbit(&self) -> Option<f64> {
        let bytes: u64 = self.peers.iter().map(|peer| peer.received_bytes + peer.sent_bytes).sum();
        (bytes > 0).then(|| self.process.cpu_s / (bytes as f64 * 8e-9))
    }
}

impl PeerReport {
    fn new(peer: &PeerState, now: Duration) -> Self {
        Self {
            public_key: peer.public_key.to_string(),
            endpoint: peer.endpoint.map(|endpoint| endpoint.to_string()),
            allowed_ips: peer.allowed_ips.iter().map(ToString::to_string).collect(),
            persistent_keepalive_s: peer.persistent_keepalive_s,
            handshakes: peer.handshakes,
            handshake_age_s: peer.last_handshake.map(|at| now.saturating_sub(at).as_secs_f64()),
            received_bytes: peer.traffic.received_bytes,
            sent_bytes: peer.traffic.sent_bytes,
            received_packets: peer.traffic.received_packets,
            sent_packets: peer.traffic.sent_packets,
            received_batches: peer.traffic.received_batches,
            sent_batches: peer.traffic.sent_batches,
            drops: by_name(&peer.drops),
        }
    }
}

fn by_name(drops: &[(DropCause, u64)]) -> BTreeMap<String, u64> {
    drops.iter().map(|(cause, count)| (cause.name().to_owned(), *count)).into_map()
}

/// Makes reports.
#[derive(Clone)]
pub(super) struct Reporter {
    interface: Arc<str>,
    begun: Instant,
    owner: DeviceOwner,
}

impl Reporter {
    /// `interface` is the name that reports have.
    pub(super) fn new(interface: &str, owner: DeviceOwner) -> Self {
        Self { interface: interface.into(), begun: Instant::now(), owner }
    }

    pub(super) async fn report(&self) -> Option<Report> {
        let state = self.owner.state().await?;
        Some(Report::new(&self.interface, self.begun.elapsed(), &state, SystemTime::now()))
    }
}

//! Findings about the flows, besides the blame of their lost time.
use std::collections::BTreeSet;
use std::net::SocketAddr;

use parshall_evidence::FlowRecord;

use crate::judge::ledger::flow_rules::serves;

/// Findings about the flows, besides the blame of their lost time.
#[derive(Debug, Default)]
pub struct Network {
    /// Connection requests that were dropped or repeated.
    pub refusals: Refusals,
    /// Connections that lived for a few exchanges.
    pub setup: Setup,
    /// Requests that asked another service again and again.
    pub chatter: Vec<Chatter>,
}

/// Connection requests that were dropped by listeners of the subject.
#[derive(Debug, Default)]
pub struct Refusals {
    /// Listeners that dropped some, by namespace and port.
    pub(super) overflowed: BTreeSet<(u64, u16)>,
    /// Where listeners dropped for lack of room, the port tells the clients' flows apart, whatever their namespace.
    pub(super) ports: BTreeSet<u16>,
}

impl Refusals {
    /// The listener at the serving end of this flow dropped connection requests.
    pub fn overflows(&self, flow: &FlowRecord) -> bool {
        if serves(flow) {
            self.overflowed.contains(&(flow.netns, flow.local.port()))
        } else {
            self.ports.contains(&flow.remote.port())
        }
    }
}

/// Connections of few exchanges.
#[derive(Debug, Default, Clone, PartialEq)]
pub struct Setup {
    /// How many there were, among the flows of the capture.
    pub connections: usize,
    /// How many were opened in the window, those included that no record was kept of.
    pub opened: u64,
    /// Exchanges on each of them, on average over those that were seen whole.
    pub exchanges: f64,
    /// Mean life in nanoseconds.
    pub life_ns: f64,
    /// Of it, time until the first request could be sent, and time of exchanges before the last one.
    pub setup_ns: f64,
    /// The server to which most of them go.
    pub service: Option<SocketAddr>,
}

/// A process that asks a service many times in each of its own requests.
#[derive(Debug, Clone, PartialEq)]
pub struct Chatter {
    /// The process.
    pub pid: u32,
    /// The server that it asks.
    pub asked: SocketAddr,
    /// Questions per request.
    pub per_request: f64,
    /// Questions in the window, scaled to it.
    pub questions: f64,
    /// Time of one question in nanoseconds, mean.
    pub each_ns: f64,
    /// Share of the requests' time.
    pub share: f64,
}

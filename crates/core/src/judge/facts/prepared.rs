//! The prepared evidence, and questions about it.
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use parshall_evidence::{Capture, FlowRecord, NamespaceCounters, NetSettings, SocketFigures};

use super::flow::{FlowFact, Shape};
use super::network::findings::Network;
use super::part::{Blame, Part};
use super::requests::Requests;
use super::thread::ThreadFact;
use crate::critical_path::clients::ClientWait;
use crate::judge::ledger::flow::State;
use crate::judge::waiting::Quiet;
use crate::stats::ratio;

/// The prepared evidence.
#[derive(Debug)]
pub struct Facts<'a> {
    /// The capture that it was made from.
    pub capture: &'a Capture,
    /// The flows, in the order of the capture.
    pub flows: Vec<FlowFact<'a>>,
    /// The threads, in the order of the capture.
    pub threads: Vec<ThreadFact<'a>>,
    /// Lost time of flows, piece by piece, without what is on the account of requests.
    pub parts: Vec<Part>,
    /// The account of requests.
    pub requests: Requests<'a>,
    /// Requests that their service lets wait.
    pub(crate) quiet: Quiet,
    /// Waits of observed clients outside of their requests.
    pub(crate) clients: Vec<ClientWait>,
    /// The network, as sockets, counters and settings show it.
    pub network: Network,
    /// Lost time by blame before both ends of a connection were compared: with what is now counted at another flow.
    pub(super) raw_ns: BTreeMap<Blame, f64>,
    /// Of the time in which threads seem asleep, the share in which their group was out of quota, on a rung that cannot
    /// tell the two apart; 0 otherwise.
    pub(crate) hidden_throttling: f64,
    /// Thread id to index into `threads`.
    pub(super) by_tid: BTreeMap<u32, usize>,
    /// Process id to indices into `threads`.
    pub(super) by_pid: BTreeMap<u32, Vec<usize>>,
    /// Figures of SOCK_DIAG, by flow.
    pub(super) figures: BTreeMap<u64, &'a SocketFigures>,
    /// Counters of network namespaces, by inode.
    pub(super) spaces: BTreeMap<u64, &'a NamespaceCounters>,
    /// Addresses of this host, as far as its flows tell.
    pub(super) local_ips: BTreeSet<IpAddr>,
}

impl<'a> Facts<'a> {
    /// Share of the CPUs' time that the hypervisor gave to others, within the window.
    pub fn stolen_share(&self) -> f64 {
        let host = &self.capture.host;
        ratio(host.stolen_ns as f64, self.capture.window_ns as f64 * f64::from(host.cpus.max(1))).min(1.0)
    }

    /// All lost time of all flows, in nanoseconds.
    pub fn lost_ns(&self) -> f64 {
        self.parts.iter().map(|p| p.ns).sum()
    }

    /// Share of the flows' time that was lost with one of these blames, also where it is counted at another flow.
    pub fn raw_share(&self, blames: &[Blame]) -> f64 {
        let ns: f64 = blames.iter().filter_map(|blame| self.raw_ns.get(blame)).sum();
        ratio(ns, self.flows_wall_ns())
    }

    /// Share of the flows' time in one of these states, lost or not.
    pub fn share_in(&self, states: &[State]) -> f64 {
        let ns: f64 = self.flows.iter().flat_map(|f| states.iter().map(|&state| f.ledger.of(state))).sum();
        ratio(ns, self.flows_wall_ns())
    }

    fn flows_wall_ns(&self) -> f64 {
        self.flows.iter().map(|f| f.ledger.wall_ns).sum()
    }

    /// Why nothing can be said of what flows waited for; None when there is an account of them.
    pub fn no_account_of_flows(&self) -> Option<String> {
        if self.flows.is_empty() {
            return Some("no TCP flow was seen".to_string());
        }
        let unseen = self.flows.iter().all(|f| f.rec.observed_ns == 0 && f.rec.cells.is_empty());
        let moved = self.flows.iter().any(|f| f.shape != Shape::Idle);
        (unseen && moved).then(|| "no probe saw the flows while data moved".to_string())
    }

    /// Part of the flows' time was observed, and counts were scaled.
    pub fn scaled(&self) -> bool {
        self.flows.iter().any(|f| f.ledger.scaled)
    }

    /// Time in which all flows could have moved data.
    pub fn could_ns(&self) -> f64 {
        self.flows.iter().map(|f| f.could_ns).sum()
    }

    /// SOCK_DIAG's figures of a flow at the window's end.
    pub fn figures(&self, flow: u64) -> Option<&'a SocketFigures> {
        self.figures.get(&flow).copied()
    }

    /// The counters of a network namespace.
    pub fn space(&self, netns: u64) -> Option<&'a NamespaceCounters> {
        self.spaces.get(&netns).copied()
    }

    /// Whether an address is one of this host, as far as its flows tell.
    pub fn is_local(&self, ip: IpAddr) -> bool {
        self.local_ips.contains(&ip)
    }

    /// The settings of a network namespace, where they were read.
    pub fn settings(&self, netns: u64) -> Option<NetSettings> {
        self.space(netns)?.settings
    }

    /// The thread with this id.
    pub fn thread(&self, tid: u32) -> Option<&ThreadFact<'a>> {
        self.by_tid.get(&tid).map(|&i| &self.threads[i])
    }

    /// The threads of a process.
    pub fn threads_of(&self, pid: u32) -> impl Iterator<Item = &ThreadFact<'a>> {
        self.by_pid.get(&pid).into_iter().flatten().map(|&i| &self.threads[i])
    }

    /// The thread that serves a flow: the one named, the last seen, or the only one of the owner. 0 when nothing tells.
    pub fn server_of(&self, flow: &FlowRecord, tid: u32) -> u32 {
        if tid != 0 && self.by_tid.contains_key(&tid) {
            return tid;
        }
        if flow.last_tid != 0 && self.by_tid.contains_key(&flow.last_tid) {
            return flow.last_tid;
        }
        match self.by_pid.get(&flow.pid).map(Vec::as_slice) {
            Some([only]) => self.threads[*only].rec.tid,
            _ => 0,
        }
    }

    /// Advice where something could not be seen: `unprivileged` for users who may not see all, `root` for those who may, and for cases
    /// that do not say. Advice to run as root is none to root.
    pub fn advice<'t>(&self, unprivileged: &'t str, root: &'t str) -> &'t str {
        let is_root = self.capture.origin.as_ref().and_then(|origin| origin.root);
        if is_root == Some(true) { root } else { unprivileged }
    }

    /// Window in seconds.
    pub fn window_s(&self) -> f64 {
        self.capture.window_ns as f64 / 1e9
    }

    /// Segments retransmitted and segments with data sent, over all flows.
    pub fn retransmitted(&self) -> (u64, u64) {
        self.flows.iter().fold((0, 0), |(r, d), f| (r + f.retransmitted.min(1 << 48), d + f.data_segs.min(1 << 48)))
    }

    /// CPU time of the threads.
    pub fn cpu_ns(&self) -> f64 {
        self.threads.iter().map(|t| t.rec.cpu_ns as f64).sum()
    }

    /// Share of the threads' wall time on a CPU.
    pub fn busy(&self) -> f64 {
        ratio(self.threads.iter().map(|t| t.ledger.on_cpu()).sum(), self.threads.iter().map(|t| t.ledger.wall_ns).sum())
    }

    /// Share of the quota periods in which a control group of the subject was throttled, of the worst group.
    pub fn throttled_periods(&self) -> f64 {
        throttled_periods(self.capture)
    }

    /// Upper bound of the 99th percentile of all waits for a CPU, in microseconds; None when unknown.
    pub fn runq_p99_us(&self) -> Option<f64> {
        let mut sum: Vec<u64> = Vec::new();
        for thread in &self.threads {
            sum.resize(sum.len().max(thread.rec.runq.log2_us.len()), 0);
            for (total, n) in sum.iter_mut().zip(&thread.rec.runq.log2_us) {
                *total = total.saturating_add(*n);
            }
        }
        crate::stats::log2_quantile_us(&sum, 0.99)
    }
}

/// Share of the quota periods in which a control group was throttled, of the worst group.
pub fn throttled_periods(capture: &Capture) -> f64 {
    let share = |c: &parshall_evidence::CgroupCpu| ratio(c.throttled_periods as f64, c.periods as f64).min(1.0);
    capture.cgroups.iter().map(share).fold(0.0, f64::max)
}

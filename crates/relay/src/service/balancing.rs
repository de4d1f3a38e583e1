//! The choice of a target, shared by all threads. It is asked when a connection or session begins, and learns whether that
//! connected or failed; it is not used while bytes move.
use std::fmt::Display;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

use parshall_core::relay::Ns;
use parshall_core::relay::balance::Balancer;
use parshall_core::relay::config::Listener;

use super::Service;
use super::target::TargetState;

/// The balancer of a listener.
#[derive(Debug)]
pub struct Balancing(Mutex<Inner>);

#[derive(Debug)]
struct Inner {
    balancer: Balancer,
    /// Scratch memory: the open connections of each target, and whether checks found it down.
    open: Vec<u32>,
    down: Vec<bool>,
}

impl Balancing {
    pub fn new(config: &Listener) -> Self {
        let balancer = Balancer::new(config.balance, &config.targets, &config.health);
        Self(Mutex::new(Inner { balancer, open: Vec::new(), down: Vec::new() }))
    }

    /// Whether two configurations of a listener can share a balancer: they have the same targets and rules.
    pub fn serves_both(a: &Listener, b: &Listener) -> bool {
        let rules = |l: &Listener| (l.balance, l.health.fails, l.health.pause);
        rules(a) == rules(b) && a.targets == b.targets
    }

    fn with<T>(&self, ask: impl FnOnce(&mut Inner) -> T) -> T {
        ask(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Service {
    /// Replaces `out` with the targets to try for a new connection or session of this client, in order.
    pub fn order_targets(&self, client: IpAddr, now: Ns, out: &mut Vec<usize>) {
        self.balancing.with(|Inner { balancer, open, down }| {
            open.clear();
            open.extend(self.targets.iter().map(|t| t.open()));
            down.clear();
            down.extend(self.targets.iter().map(|t| t.is_down()));
            balancer.order(now, client, open, down, out);
        });
    }

    /// A connection to a target was established, or it has answered in a session. Logs it if the target was reported down.
    pub fn target_succeeded(&self, target: usize, now: Ns) {
        self.balancing.with(|inner| inner.balancer.succeeded(target));
        if let Some(state) = self.targets.get(target).filter(|t| t.is_failing() && !t.is_down()) {
            report_up(&self.config.name, &self.config.targets[target].endpoint, state, now);
        }
    }

    /// A connection or session could not be established with a target, or it refuses datagrams. Logs it if the target was
    /// reported up.
    pub fn target_failed(&self, target: usize, now: Ns, why: &dyn Display) {
        self.balancing.with(|inner| inner.balancer.failed(target, now));
        if let Some(state) = self.targets.get(target) {
            report_down(&self.config.name, &self.config.targets[target].endpoint, state, now, why);
        }
    }
}

/// Records that a target failed, and logs it once per outage.
pub fn report_down(listener: &str, target: &dyn Display, state: &Arc<TargetState>, now: Ns, why: &dyn Display) {
    if state.failed(now, why) {
        tracing::warn!("{listener}: the target {target} is down: {why}");
    }
}

/// Records that a target was reached, and logs it if that ends a reported outage.
pub fn report_up(listener: &str, target: &dyn Display, state: &Arc<TargetState>, now: Ns) {
    if let Some(recovery) = state.reached(now) {
        let (s, failed) = (recovery.down_ns as f64 / 1e9, recovery.failed);
        let attempts = parshall_core::units::plural(failed, "attempt", "attempts");
        tracing::info!("{listener}: the target {target} is up again after {s:.1} s, in which {attempts} failed");
    }
}

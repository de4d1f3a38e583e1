//! Which target takes a connection or a session, decided for all threads together: asked when one begins and told when it
//! has connected or failed, never while bytes move.
use std::fmt::Display;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

use parshall_core::relay::Ns;
use parshall_core::relay::balance::Balancer;
use parshall_core::relay::config::Listener;

use super::Service;
use super::target::TargetState;

/// The turns and failures of a listener's targets.
#[derive(Debug)]
pub struct Balancing(Mutex<Inner>);

#[derive(Debug)]
struct Inner {
    balancer: Balancer,
    /// Kept for their memory: open connections of each target, and whether checks found it down.
    open: Vec<u32>,
    down: Vec<bool>,
}

impl Balancing {
    /// By the rules of this configuration.
    pub fn new(config: &Listener) -> Self {
        let balancer = Balancer::new(config.balance, &config.targets, &config.health);
        Self(Mutex::new(Inner { balancer, open: Vec::new(), down: Vec::new() }))
    }

    /// Whether two configurations of a listener can share one: the same targets, chosen by the same rules.
    pub fn serves_both(a: &Listener, b: &Listener) -> bool {
        let rules = |l: &Listener| (l.balance, l.health.fails, l.health.pause);
        rules(a) == rules(b) && a.targets == b.targets
    }

    fn with<T>(&self, ask: impl FnOnce(&mut Inner) -> T) -> T {
        ask(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Service {
    /// Replaces `out` with the targets to try for a new connection or session of this client, the best one first.
    pub fn order_targets(&self, client: IpAddr, now: Ns, out: &mut Vec<usize>) {
        self.balancing.with(|Inner { balancer, open, down }| {
            open.clear();
            open.extend(self.targets.iter().map(|t| t.open()));
            down.clear();
            down.extend(self.targets.iter().map(|t| t.is_down()));
            balancer.order(now, client, open, down, out);
        });
    }

    /// A target has taken a connection, or answered for the first time in a session.
    pub fn target_succeeded(&self, target: usize, now: Ns) {
        self.balancing.with(|inner| inner.balancer.succeeded(target));
        self.target_reached(target, now);
    }

    /// A target has not taken a connection or session, for this reason.
    pub fn target_failed(&self, target: usize, now: Ns, why: &dyn Display) {
        self.balancing.with(|inner| inner.balancer.failed(target, now));
        self.target_unreached(target, now, why);
    }

    /// Something came from a target. Reports on stderr if that is news.
    pub fn target_reached(&self, target: usize, now: Ns) {
        if let Some(state) = self.targets.get(target).filter(|t| t.is_failing() && !t.is_down()) {
            report_up(&self.config.name, &self.config.targets[target].endpoint, state, now);
        }
    }

    /// A target cannot be reached, which counts for no choice. Reports on stderr if that is news.
    pub fn target_unreached(&self, target: usize, now: Ns, why: &dyn Display) {
        if let Some(state) = self.targets.get(target) {
            report_down(&self.config.name, &self.config.targets[target].endpoint, state, now, why);
        }
    }
}

/// Notes that a target of a listener failed, and says so unless that was said.
pub fn report_down(listener: &str, target: &dyn Display, state: &Arc<TargetState>, now: Ns, why: &dyn Display) {
    if state.failed(now, why) {
        tracing::warn!("{listener}: the target {target} is down: {why}");
    }
}

/// Notes that a target of a listener was reached, and says so if it was said to be down.
pub fn report_up(listener: &str, target: &dyn Display, state: &Arc<TargetState>, now: Ns) {
    if let Some(recovery) = state.reached(now) {
        let (s, failed) = (recovery.down_ns as f64 / 1e9, recovery.failed);
        let attempts = parshall_core::units::plural(failed, "attempt", "attempts");
        tracing::info!("{listener}: the target {target} is up again after {s:.1} s, in which {attempts} failed");
    }
}

//! The choice of a target, shared by all threads. It is asked when a connection or session begins, and learns whether that
//! connected or failed; it is not used while bytes move.
use std::fmt::Display;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use parshall_core::relay::Ns;
use parshall_core::relay::balance::Balancer;
use parshall_core::relay::config::Listener;

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

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Replaces `out` with the targets to try for a new connection or session of this client, in order.
    pub fn order(&self, targets: &[Arc<TargetState>], client: IpAddr, now: Ns, out: &mut Vec<usize>) {
        let Inner { balancer, open, down } = &mut *self.lock();
        open.clear();
        open.extend(targets.iter().map(|t| t.open()));
        down.clear();
        down.extend(targets.iter().map(|t| t.is_down()));
        balancer.order(now, client, open, down, out);
    }

    /// A connection or session with this target has succeeded.
    pub fn succeeded(&self, target: usize) {
        self.lock().balancer.succeeded(target);
    }

    /// A connection or session with this target has failed.
    pub fn failed(&self, target: usize, now: Ns) {
        self.lock().balancer.failed(target, now);
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

//! When a connection's timer is due, and what follows.
//!
//! Every connection has one timer. It may be due too early, because progress moves the timeouts without moving the timer: then
//! it is armed again.
use std::time::Duration;

use super::{CloseReason, Connection, Pending, Rules, Stage};
use crate::relay::direction::Direction;
use crate::relay::{Ns, ns};

/// The age at which keepalive is set up at the latest.
const KEEPALIVE_LATEST: Ns = 5_000_000_000;
/// The shortest and longest time between two checks whether a peer has acknowledged its data before it is reset.
const RESET_MIN: Ns = 1_000_000;
const RESET_MAX: Ns = 100_000_000;

/// When to check again whether a reset can be sent that has waited since `since`: after a quarter of the time that it has taken.
fn next_check(now: Ns, since: Ns) -> Ns {
    now + (now.saturating_sub(since) / 4).clamp(RESET_MIN, RESET_MAX)
}

impl Connection {
    /// When the current stage times out, and the reason with which the connection is closed then.
    fn timeout(&self, rules: &Rules<'_>) -> Option<(Ns, CloseReason)> {
        let (limit, reason) = match self.stage {
            Stage::Header => (rules.timeouts.header, CloseReason::BadHeader),
            Stage::Transferring if self.closing.is_half_closed() => (rules.timeouts.linger, CloseReason::LingerTimeout),
            Stage::Transferring => (rules.timeouts.idle, CloseReason::IdleTimeout),
            Stage::Resetting(_, reason) => (rules.timeouts.linger, reason),
            Stage::Connecting(_) | Stage::Closed(_) => return None,
        };
        (limit > Duration::ZERO).then(|| (self.progress_at.saturating_add(ns(limit)), reason))
    }

    /// When keepalive is set up, unless that was done. Most connections end before: two system calls and four changes of a
    /// timer for each of them were 3 % of the CPU time of a short connection.
    fn keepalive_at(&self, rules: &Rules<'_>) -> Option<Ns> {
        let idle = rules.keepalive.filter(|_| !self.keepalive_started && self.stage == Stage::Transferring)?;
        Some(self.accepted_at.saturating_add((ns(idle) / 2).min(KEEPALIVE_LATEST)))
    }

    /// When [`Event::Timer`](super::Event::Timer) is needed; None for never.
    pub(super) fn next_timer(&self, now: Ns, rules: &Rules<'_>) -> Option<Ns> {
        let own = match self.stage {
            Stage::Connecting(connecting) => Some(connecting.due_at),
            Stage::Resetting(..) => Some(next_check(now, self.progress_at)),
            Stage::Transferring => self.directions.iter().map(|d| d.paused_until).filter(|&at| at > 0).min(),
            Stage::Header => None,
            Stage::Closed(_) => return None,
        };
        let timeout = self.timeout(rules).map(|(at, _)| at);
        [timeout, own, self.keepalive_at(rules), rules.drain_until].into_iter().flatten().min()
    }

    /// The timer is due.
    pub(super) fn timer_due(&mut self, now: Ns, rules: &Rules<'_>) {
        if rules.drain_until.is_some_and(|at| at <= now) {
            return self.close(CloseReason::Drained, None);
        }
        let timeout = self.timeout(rules).filter(|(at, _)| *at <= now);
        match (self.stage, timeout) {
            (Stage::Resetting(peer, _), Some((_, reason))) => return self.close(reason, Some(peer)),
            (_, Some((_, reason))) => return self.close(reason, None),
            (Stage::Resetting(..), None) => return self.ask(Pending::CHECK_DELIVERED),
            // This arms the timer once no further attempt begins.
            (Stage::Connecting(_), None) => return self.ask(Pending::CONNECT),
            (Stage::Transferring, None) => {
                if self.keepalive_at(rules).is_some_and(|at| at <= now) {
                    self.ask(Pending::START_KEEPALIVE);
                }
                self.resume(now);
            }
            (Stage::Header | Stage::Closed(_), None) => {}
        }
        self.ask(Pending::ARM_TIMER);
    }

    /// Asks for turns of the directions whose pause is over.
    fn resume(&mut self, now: Ns) {
        for direction in Direction::ALL {
            let paused_until = &mut self.directions[direction].paused_until;
            if *paused_until > 0 && *paused_until <= now {
                *paused_until = 0;
                self.run(direction);
            }
        }
    }
}

//! Signals that reach `parshall run`: which are passed on to the command, and when they end the observation before it.
//!
//! A signal that is typed at a terminal (Ctrl-C, Ctrl-\\) or sent to the whole process group, as timeout(1) does,
//! reaches the command too. Passed on, it would arrive twice, which many programs take for "at once". A signal to
//! parshall alone is meant for the command.

/// Two typed interrupts within this time end the observation of a command that goes on.
const TYPED_TWICE_NS: u64 = 1_000_000_000;
/// A command that was asked to end by another process is observed for this long at most.
const SENT_GRACE_NS: u64 = 2_000_000_000;

/// A signal that arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Arrival {
    /// It asks the receiver to end (SIGINT, SIGQUIT, SIGTERM), unlike SIGHUP, SIGUSR1 and SIGUSR2.
    pub ends: bool,
    /// The kernel sent it, for a terminal.
    pub typed: bool,
    /// A process sent it to the process group, of which the command is a member.
    pub to_group: bool,
    /// When, in nanoseconds on any steady clock.
    pub at_ns: u64,
}

/// The signals that have arrived so far.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Signals {
    last_typed_ns: Option<u64>,
    /// From here on the observation is over.
    over_at_ns: Option<u64>,
}

impl Signals {
    /// Takes note of a signal, and returns whether it must be passed on to the command.
    pub fn arrived(&mut self, signal: Arrival) -> bool {
        let Arrival { ends, typed, to_group, at_ns } = signal;
        if ends && typed {
            let twice = self.last_typed_ns.is_some_and(|last| at_ns.saturating_sub(last) <= TYPED_TWICE_NS);
            self.last_typed_ns = Some(at_ns);
            if twice {
                self.over_at_ns = Some(at_ns);
            }
        } else if ends {
            self.over_at_ns.get_or_insert(at_ns.saturating_add(SENT_GRACE_NS));
        }
        !typed && !to_group
    }

    /// Whether the observation is to end, even if the command goes on.
    pub fn over(&self, now_ns: u64) -> bool {
        self.over_at_ns.is_some_and(|at| now_ns >= at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn typed(at_ns: u64) -> Arrival {
        Arrival { ends: true, typed: true, to_group: false, at_ns }
    }

    fn sent(at_ns: u64) -> Arrival {
        Arrival { ends: true, typed: false, to_group: false, at_ns }
    }

    #[test]
    fn what_is_typed_has_reached_the_command_and_ends_nothing() {
        let mut signals = Signals::default();
        assert!(!signals.arrived(typed(5 * MS)));
        assert!(!signals.over(u64::MAX));
        // Cancelling one query after the other in an interactive client.
        assert!(!signals.arrived(typed(1006 * MS)));
        assert!(!signals.over(u64::MAX));
        assert!(!signals.arrived(typed(1500 * MS)));
        assert!(signals.over(1500 * MS));
    }

    #[test]
    fn what_is_sent_is_passed_on_and_ends_the_observation_after_a_while() {
        let mut signals = Signals::default();
        assert!(signals.arrived(sent(100 * MS)));
        assert!(!signals.over(2099 * MS));
        assert!(signals.over(2100 * MS));
        // Repeating it passes it on again and does not put the end off.
        assert!(signals.arrived(sent(2000 * MS)));
        assert!(signals.over(2100 * MS));
    }

    #[test]
    fn what_the_group_is_sent_has_reached_the_command_and_ends_the_observation_after_a_while() {
        let mut signals = Signals::default();
        assert!(!signals.arrived(Arrival { to_group: true, ..sent(0) }));
        assert!(!signals.over(1999 * MS));
        assert!(signals.over(2000 * MS));
    }

    #[test]
    fn a_reload_is_passed_on_and_ends_nothing() {
        let mut signals = Signals::default();
        assert!(signals.arrived(Arrival { ends: false, ..sent(0) }));
        assert!(!signals.arrived(Arrival { ends: false, ..typed(0) }));
        assert!(!signals.over(u64::MAX));
    }
}

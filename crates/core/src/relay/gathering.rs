//! When a worker hands over its ended connections to the log.
//!
//! Handing over wakes the log's thread, which costs more than a short connection's line: on a busy relay that was one wake-up
//! for every other connection, and a twentieth of its CPU. So what ends soon after a handover waits for the next one. What
//! ends after a quiet time is handed over at once and needs no timer.
use super::Ns;

/// Between two handovers.
const PAUSE_NS: Ns = 20_000_000;
/// So many do not wait, so that a burst neither fills memory nor comes to the log in one lump.
const WAITING_MAX: usize = 1024;

/// When the next handover may be.
#[derive(Debug, Clone, Copy, Default)]
pub struct Gathering {
    next_at: Ns,
}

impl Gathering {
    /// When `waiting` connections are to be handed over: maybe at once. None without any.
    pub fn due_at(&self, waiting: usize) -> Option<Ns> {
        match waiting {
            0 => None,
            WAITING_MAX.. => Some(0),
            _ => Some(self.next_at),
        }
    }

    /// They were.
    pub fn handed_over(&mut self, now: Ns) {
        self.next_at = now.saturating_add(PAUSE_NS);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Ns = 1_000_000;

    /// Handovers, as (when, how many), of connections that end at these times; the worker looks whenever it has something to do.
    fn handovers(ends: &[Ns]) -> Vec<(Ns, usize)> {
        let (mut gathering, mut waiting, mut told) = (Gathering::default(), 0, Vec::new());
        let mut ends = ends.iter().copied().peekable();
        loop {
            let due = gathering.due_at(waiting);
            let Some(now) = [due, ends.peek().copied()].into_iter().flatten().min() else { return told };
            let now = now.max(told.last().map_or(0, |(at, _)| *at));
            waiting += usize::from(ends.next_if(|&at| at <= now).is_some());
            if gathering.due_at(waiting).is_some_and(|at| at <= now) {
                told.push((now, waiting));
                waiting = 0;
                gathering.handed_over(now);
            }
        }
    }

    #[test]
    fn what_ends_now_and_then_is_told_at_once() {
        assert_eq!(handovers(&[100 * MS, 150 * MS, 300 * MS]), [(100 * MS, 1), (150 * MS, 1), (300 * MS, 1)]);
    }

    #[test]
    fn what_ends_in_close_succession_is_told_together_and_none_stays() {
        let ends: Vec<Ns> = (100 * MS..200 * MS).step_by(MS as usize / 4).collect();
        let told = handovers(&ends);
        assert_eq!(told.iter().map(|(_, n)| n).sum::<usize>(), 400);
        assert_eq!(told.iter().map(|(at, _)| at / MS).collect::<Vec<_>>(), [100, 120, 140, 160, 180, 200]);
    }

    #[test]
    fn very_many_do_not_wait() {
        let told = handovers(&vec![100 * MS; 5000]);
        assert_eq!(told[..3], [(100 * MS, 1), (100 * MS, 1024), (100 * MS, 1024)]);
        assert_eq!(told.iter().map(|(_, n)| n).sum::<usize>(), 5000);
    }
}

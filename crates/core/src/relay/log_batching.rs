//! When a worker passes its ended connections on to the log thread.
//!
//! Each batch wakes the log thread. On a busy relay that was one wake-up for every other connection and a twentieth of its
//! CPU. So connections that end within 20 ms of a batch wait for the next one; after a longer pause a connection is passed on
//! at once, without a timer.
use super::Ns;

/// The shortest time between two batches.
const PAUSE_NS: Ns = 20_000_000;
/// This many ended connections are passed on at once, which bounds the memory of a burst.
const QUEUED_MAX: usize = 1024;

/// When the next batch is due.
#[derive(Debug, Clone, Copy, Default)]
pub struct LogBatching {
    next_at: Ns,
}

impl LogBatching {
    /// When `queued` ended connections are to be passed on, which may be in the past. None if there are none.
    pub fn due_at(&self, queued: usize) -> Option<Ns> {
        match queued {
            0 => None,
            QUEUED_MAX.. => Some(0),
            _ => Some(self.next_at),
        }
    }

    /// The queued connections were passed on.
    pub fn passed_on(&mut self, now: Ns) {
        self.next_at = now.saturating_add(PAUSE_NS);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Ns = 1_000_000;

    /// The batches, as (time, connections), of connections that end at these times. The worker asks at each end and when one
    /// is due.
    fn batches_of(ends: &[Ns]) -> Vec<(Ns, usize)> {
        let (mut batching, mut queued, mut batches) = (LogBatching::default(), 0, Vec::new());
        let mut ends = ends.iter().copied().peekable();
        loop {
            let due = batching.due_at(queued);
            let Some(now) = [due, ends.peek().copied()].into_iter().flatten().min() else { return batches };
            let now = now.max(batches.last().map_or(0, |(at, _)| *at));
            queued += usize::from(ends.next_if(|&at| at <= now).is_some());
            if batching.due_at(queued).is_some_and(|at| at <= now) {
                batches.push((now, queued));
                queued = 0;
                batching.passed_on(now);
            }
        }
    }

    #[test]
    fn a_single_connection_is_passed_on_at_once() {
        assert_eq!(batches_of(&[100 * MS, 150 * MS, 300 * MS]), [(100 * MS, 1), (150 * MS, 1), (300 * MS, 1)]);
    }

    #[test]
    fn connections_that_end_together_are_batched_and_none_is_left() {
        let ends: Vec<Ns> = (100 * MS..200 * MS).step_by(MS as usize / 4).collect();
        let batches = batches_of(&ends);
        assert_eq!(batches.iter().map(|(_, n)| n).sum::<usize>(), 400);
        assert_eq!(batches.iter().map(|(at, _)| at / MS).collect::<Vec<_>>(), [100, 120, 140, 160, 180, 200]);
    }

    #[test]
    fn a_full_batch_does_not_wait() {
        let batches = batches_of(&vec![100 * MS; 5000]);
        assert_eq!(batches[..3], [(100 * MS, 1), (100 * MS, 1024), (100 * MS, 1024)]);
        assert_eq!(batches.iter().map(|(_, n)| n).sum::<usize>(), 5000);
    }
}

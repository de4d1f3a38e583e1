//! Observing at idle priority, so that requests of a busy service do not wait for the observer.
mod group;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use parshall_core::observe::background::{EVERY_NS, INTERVALS, Interval, Phase, gives_up};
use parshall_sys::background as thread;

use group::IdleGroup;

/// The rule by which the background is left, with the samples of the phase that it needs.
fn rule(phases: Receiver<Phase>) -> impl FnMut(thread::Sample) -> bool {
    let mut intervals = VecDeque::with_capacity(INTERVALS);
    let mut last: Option<thread::Sample> = None;
    let mut phase = Phase::Preparing;
    move |now| {
        if let Some(next) = phases.try_iter().last() {
            phase = next;
            intervals.clear();
        }
        let Some(before) = last.replace(now) else { return false };
        if intervals.len() == INTERVALS {
            intervals.pop_front();
        }
        intervals.push_back(Interval {
            elapsed: now.at_ns - before.at_ns,
            ran: now.ran_ns.saturating_sub(before.ran_ns),
            waited: now.waited_since_ns(&before),
        });
        let intervals = &*intervals.make_contiguous();
        gives_up(phase, intervals).then(|| tracing::debug!(?phase, ?intervals, "leaving the background")).is_some()
    }
}

/// Until it is dropped, the thread that created it runs only where a CPU is otherwise idle, unless it makes no progress that way.
#[derive(Debug)]
pub struct Background {
    group: Option<Arc<IdleGroup>>,
    phases: Sender<Phase>,
    // Owns the group too, until the watcher has ended, so the group is removed after that.
    _thread: thread::Background,
}

impl Background {
    /// None, with nothing changed, if it is not possible or already so.
    pub fn enter() -> Option<Self> {
        let group = IdleGroup::create().map(Arc::new);
        let watched = group.clone();
        let given_up = move || {
            if let Some(group) = &watched {
                group.give_up();
            }
        };
        let (phases, begun) = channel();
        let thread = thread::Background::enter(Duration::from_nanos(EVERY_NS), rule(begun), given_up)?;
        // After the watcher was started, which would have to wait for its turns there too.
        let group = group.filter(|group| group.enter());
        Some(Self { group, phases, _thread: thread })
    }

    /// Where the phases of the work are announced; it begins with [`Phase::Preparing`]. How long the work may stand still depends on
    /// them.
    pub fn phases(&self) -> Sender<Phase> {
        self.phases.clone()
    }

    /// Moves the process back to its old control group; its threads stay in the background. For a subject that has threads in this
    /// process.
    pub fn leave_group(&self) {
        if let Some(group) = &self.group {
            group.leave();
        }
    }
}

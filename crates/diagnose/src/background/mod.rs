//! Observing at idle priority, so that requests of a busy service do not wait for the observer.
mod group;

use std::sync::Arc;
use std::time::Duration;

use parshall_core::observe::background::{EVERY_NS, gives_up};
use parshall_sys::background as thread;

use group::IdleGroup;

/// Until it is dropped, the thread that created it runs only where a CPU is otherwise idle, unless it makes no progress that way.
#[derive(Debug)]
pub struct Background {
    group: Option<Arc<IdleGroup>>,
    // Owns the group too, until the watcher has ended, so the group is removed after that.
    _thread: thread::Background,
}

impl Background {
    /// None, with nothing changed, if it is not possible or already so.
    pub fn enter() -> Option<Self> {
        let group = IdleGroup::enter().map(Arc::new);
        let watched = group.clone();
        let given_up = move || {
            if let Some(group) = &watched {
                group.leave();
            }
        };
        let thread = thread::Background::enter(
            Duration::from_nanos(EVERY_NS),
            |last, now| {
                gives_up(now.at_ns - last.at_ns, now.ran_ns.saturating_sub(last.ran_ns), now.waited_since_ns(&last))
            },
            given_up,
        )?;
        Some(Self { group, _thread: thread })
    }

    /// Moves the process back to its old control group; its threads stay in the background. For a subject that has threads in this
    /// process.
    pub fn leave_group(&self) {
        if let Some(group) = &self.group {
            group.leave();
        }
    }
}

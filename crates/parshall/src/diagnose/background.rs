//! Observing in the background, so that the requests of a busy service do not wait for it.
use std::time::Duration;

use parshall_core::background::{EVERY_NS, gives_up};
use parshall_sys::background::Background;

/// The calling thread gives way to everybody else until what this returns is dropped, or until that leaves it standing still.
/// None where it is not possible, or so already: then nothing changes.
pub fn enter() -> Option<Background> {
    Background::enter(Duration::from_nanos(EVERY_NS), |last, now| {
        gives_up(now.at_ns - last.at_ns, now.ran_ns.saturating_sub(last.ran_ns), last.ready && now.ready)
    })
}

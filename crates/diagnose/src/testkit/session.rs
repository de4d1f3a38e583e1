//! Sessions for tests, on a rung that the test chooses.
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use parshall_bpf::diagnose::event::Source;
use parshall_evidence::{Capture, Rung};

use crate::log::Logs;
use crate::observe::Session;
use crate::request::{Naming, ObserveOptions};
use crate::subject::{Select, resolve};
use crate::window::Stop;

/// One test at a time attaches probes: what they hold can then be counted, and they do not see each other.
pub fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Never ends a window.
pub struct Never;

impl Stop for Never {
    fn requested(&self) -> bool {
        false
    }

    fn subject_gone(&self) -> bool {
        false
    }
}

/// Ends a window when the load has ended, however long a busy host lets that take.
pub struct Loaded<'a>(pub &'a AtomicBool);

impl Stop for Loaded<'_> {
    fn requested(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }

    fn subject_gone(&self) -> bool {
        false
    }
}

/// Attaches to what is selected.
pub fn open(select: &Select, rung: Option<Rung>) -> Session {
    open_with(select, rung, Vec::new())
}

/// The same, and these events are counted.
pub fn open_with(select: &Select, rung: Option<Rung>, events: Vec<Source>) -> Session {
    open_further(select, rung, events, None)
}

/// The same, and the lines of these logs are kept.
pub fn open_further(select: &Select, rung: Option<Rung>, events: Vec<Source>, log: Option<Logs>) -> Session {
    let options = ObserveOptions {
        window: Duration::from_secs(30),
        rung,
        peek: true,
        interpreters: false,
        progress: false,
        naming: Naming::Shown,
        events,
        log,
        from_its_start: false,
        read_relay: |_| None,
    };
    Session::open(resolve(select).expect("it runs"), &options, None).expect("some rung is possible")
}

/// A window of `ms` milliseconds.
pub fn window(session: &mut Session, ms: u64, stop: &dyn Stop) -> Capture {
    session.window(Duration::from_millis(ms), stop, || Ok(())).expect("a capture")
}

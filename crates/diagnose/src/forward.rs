//! Signals that reach `parshall run` are passed on to its command. Which ones is decided in `parshall_core::observe::signals`.
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use anyhow::Context;
use parshall_core::observe::signals::{Arrival, Signals};
use parshall_sys::clock::monotonic_ns;
use parshall_sys::pidfd::Pidfd;
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::exfiltrator::WithOrigin;
use signal_hook::iterator::{Handle, SignalsInfo};
use signal_hook::low_level::siginfo::Cause;

/// What is passed on. SIGTSTP, SIGCONT and SIGWINCH of a terminal reach the command by themselves.
const SIGNALS: [i32; 6] = [SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2];

/// Passes signals on from its start until it is dropped.
pub struct Forward {
    signals: Arc<Mutex<Signals>>,
    handle: Handle,
    thread: Option<JoinHandle<()>>,
}

impl Forward {
    /// Begins to pass signals on to a child of ours that has not been reaped.
    pub fn to(pid: u32) -> anyhow::Result<Self> {
        let target = Pidfd::open(pid).context("opening the command's process")?;
        let mut arrivals = SignalsInfo::<WithOrigin>::new(SIGNALS).context("listening for signals")?;
        let handle = arrivals.handle();
        let signals = Arc::new(Mutex::new(Signals::default()));
        let seen = Arc::clone(&signals);
        let thread = std::thread::spawn(move || {
            for origin in arrivals.forever() {
                let ends = matches!(origin.signal, SIGINT | SIGQUIT | SIGTERM);
                let typed = matches!(origin.cause, Cause::Kernel);
                let arrival = Arrival { ends, typed, at_ns: monotonic_ns() };
                if seen.lock().unwrap_or_else(PoisonError::into_inner).arrived(arrival) {
                    // It fails only once the command has ended, or became another user's: then it is not ours to end.
                    target.send(origin.signal).ok();
                }
            }
        });
        Ok(Self { signals, handle, thread: Some(thread) })
    }

    /// Whether the observation is to end although the command goes on.
    pub fn over(&self) -> bool {
        self.signals.lock().unwrap_or_else(PoisonError::into_inner).over(monotonic_ns())
    }
}

impl Drop for Forward {
    fn drop(&mut self) {
        self.handle.close();
        if let Some(thread) = self.thread.take() {
            // It does nothing that could panic, and no caller to report to.
            thread.join().ok();
        }
    }
}

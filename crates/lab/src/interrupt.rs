//! Signals by which the user stops the lab.
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parshall_host::end_signals::end_signals;

/// Whether SIGINT, SIGTERM or SIGHUP has arrived. Everything that waits checks it, so that the guards of testbeds are dropped
/// in order.
#[derive(Debug, Clone)]
pub struct Interrupt {
    /// The number of the signal; 0 until one has arrived.
    signal: Arc<AtomicUsize>,
}

impl Interrupt {
    /// Handles the signals from now on.
    pub fn register() -> anyhow::Result<Self> {
        let arrived = Arc::new(AtomicUsize::new(0));
        for signal in end_signals() {
            signal_hook::flag::register_usize(signal, Arc::clone(&arrived), signal.unsigned_abs() as usize)?;
        }
        Ok(Self { signal: arrived })
    }

    /// The signal that has arrived, if any.
    pub fn signal(&self) -> Option<u8> {
        u8::try_from(self.signal.load(Ordering::Relaxed)).ok().filter(|signal| *signal != 0)
    }

    /// An error once a signal has arrived.
    pub fn check(&self) -> anyhow::Result<()> {
        if self.signal().is_some() { Err(anyhow::anyhow!("interrupted")) } else { Ok(()) }
    }

    /// Sleeps until the time is over, or fails when a signal arrives.
    pub fn sleep(&self, time: Duration) -> anyhow::Result<()> {
        let end = Instant::now() + time;
        loop {
            self.check()?;
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            std::thread::sleep(left.min(Duration::from_millis(20)));
        }
    }
}

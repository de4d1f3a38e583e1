//! The options that every load has, its end, and the line by which it says that it is ready.
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parshall_host::end_signals::end_signals;

use crate::units::{self, Format};

/// The options of every load.
#[derive(Debug, Clone, clap::Args)]
pub struct Common {
    /// End after this time
    #[arg(long = "for", value_name = "TIME", default_value = "10s", value_parser = units::duration)]
    pub(super) time: Duration,
    /// How the result is printed
    #[arg(long, value_enum, default_value_t = Format::Text)]
    pub(super) format: Format,
}

/// When a load has to end.
#[derive(Debug, Clone)]
pub struct Clock {
    begin: Instant,
    end: Instant,
    stop: Arc<AtomicBool>,
}

impl Clock {
    /// Starts now and ends after the time the user gave, or at SIGINT, SIGTERM or SIGHUP.
    pub fn start(common: &Common) -> anyhow::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        for signal in end_signals() {
            signal_hook::flag::register(signal, Arc::clone(&stop))?;
        }
        let begin = Instant::now();
        Ok(Self { begin, end: begin + common.time, stop })
    }

    pub fn over(&self) -> bool {
        self.stop.load(Ordering::Relaxed) || Instant::now() >= self.end
    }

    /// The time since the start.
    pub fn elapsed(&self) -> Duration {
        self.begin.elapsed()
    }

    /// The time until the end.
    pub fn left(&self) -> Duration {
        self.end.saturating_duration_since(Instant::now())
    }

    /// The same clock with a later end, for servers: they must not close before the clients have ended.
    pub fn late(&self) -> Self {
        Self { end: self.end + Duration::from_millis(500), ..self.clone() }
    }

    /// Waits until it is time to end, or `done` returns true.
    pub fn sleep_until_over(&self, done: impl Fn() -> bool) {
        while !self.over() && !done() {
            std::thread::sleep(Duration::from_millis(20).min(self.end.saturating_duration_since(Instant::now())));
        }
    }

    /// Whether a signal or an error has ended the load.
    pub fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// A clock that no signal stops.
    #[cfg(test)]
    pub fn for_test(time: Duration) -> Self {
        let begin = Instant::now();
        Self { begin, end: begin + time, stop: Arc::default() }
    }

    /// Ends the load early, for example because its only connection was closed.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// Prints that the load is ready. Scripts and the lab wait for this line.
pub fn print_ready(kind: &str, role: &str, port: Option<u16>) {
    let port = port.map(|port| format!(" port={port}")).unwrap_or_default();
    eprintln!("ready {kind} role={role} pid={}{port}", std::process::id());
}

//! What the main thread, the control thread and those who ask know in common: the listeners in force and the counters
//! that no worker has.
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::log::LogCounts;
use crate::serve::Relay;
use crate::service::Service;
use crate::stats::ListenerStats;

/// A listener as it is shown.
#[derive(Debug, Clone)]
pub struct Row {
    /// Its name.
    pub name: String,
    /// What it listens on; None once it is gone and only its counters are left.
    pub service: Option<(Arc<Service>, String)>,
    /// Its counters in each worker.
    pub stats: Vec<Arc<ListenerStats>>,
}

/// A number that anyone may count up.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// One more.
    pub fn add(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// Its value.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// The board.
#[derive(Debug)]
pub struct Board {
    rows: Mutex<Arc<[Row]>>,
    log: Mutex<Option<LogCounts>>,
    started: Instant,
    draining: std::sync::atomic::AtomicBool,
    /// Configurations put into force after the first.
    pub reloads: Counter,
    /// Configurations refused.
    pub reloads_refused: Counter,
    /// Lookups of names that failed.
    pub lookups_failed: Counter,
    /// Checks of targets that failed.
    pub checks_failed: Counter,
}

impl Default for Board {
    fn default() -> Self {
        Self {
            rows: Mutex::new(Arc::from([])),
            log: Mutex::new(None),
            started: Instant::now(),
            draining: false.into(),
            reloads: Counter::default(),
            reloads_refused: Counter::default(),
            lookups_failed: Counter::default(),
            checks_failed: Counter::default(),
        }
    }
}

impl Board {
    /// Shows the listeners that are in force now.
    pub fn show(&self, relay: &Relay) {
        let now = relay.listeners.iter().map(|r| Row {
            name: r.service.config.name.clone(),
            service: Some((r.service.clone(), r.bound.clone())),
            stats: r.stats.clone(),
        });
        let gone = relay.gone().map(|(name, stats)| Row { name: name.clone(), service: None, stats: stats.clone() });
        *self.rows.lock().unwrap_or_else(PoisonError::into_inner) = now.chain(gone).collect();
    }

    /// The listeners, those in force first.
    pub fn rows(&self) -> Arc<[Row]> {
        self.rows.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Says where the counters of the log are.
    pub fn set_log(&self, counts: LogCounts) {
        *self.log.lock().unwrap_or_else(PoisonError::into_inner) = Some(counts);
    }

    /// Lines of the log written and lost.
    pub fn log(&self) -> (u64, u64) {
        let log = self.log.lock().unwrap_or_else(PoisonError::into_inner);
        log.as_ref().map_or((0, 0), |log| (log.written(), log.lost()))
    }

    /// Since the start.
    pub fn uptime(&self) -> Duration {
        self.started.elapsed()
    }

    /// Accepts no more.
    pub fn set_draining(&self) {
        self.draining.store(true, Ordering::Relaxed);
    }

    /// Whether it accepts no more.
    pub fn draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }
}

//! The state that metrics and `relay top` show: the listeners in force, and the counters that are not a worker's.
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::log::LogCounts;
use crate::serve::Relay;
use crate::service::Service;
use crate::stats::ListenerStats;

/// A listener with its counters.
#[derive(Debug, Clone)]
pub struct Row {
    pub name: String,
    /// The service and the address; None for a removed listener, of which only the counters are left.
    pub service: Option<(Arc<Service>, String)>,
    /// The counters of each worker.
    pub stats: Vec<Arc<ListenerStats>>,
}

/// A counter that any thread may increment.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    pub fn add(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

#[derive(Debug)]
pub struct Status {
    rows: Mutex<Arc<[Row]>>,
    log: Mutex<Option<LogCounts>>,
    started: Instant,
    draining: std::sync::atomic::AtomicBool,
    /// Reloads that were put into force.
    pub reloads: Counter,
    /// Reloads that were refused.
    pub reloads_refused: Counter,
    /// Failed lookups of names.
    pub lookups_failed: Counter,
    /// Failed checks of targets.
    pub checks_failed: Counter,
}

impl Default for Status {
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

impl Status {
    /// Sets the listeners to those of the relay now.
    pub fn set_listeners(&self, relay: &Relay) {
        let now = relay.listeners.iter().map(|r| Row {
            name: r.service.config.name.clone(),
            service: Some((r.service.clone(), r.bound.clone())),
            stats: r.stats.clone(),
        });
        let gone = relay.gone().map(|(name, stats)| Row { name: name.clone(), service: None, stats: stats.clone() });
        *self.rows.lock().unwrap_or_else(PoisonError::into_inner) = now.chain(gone).collect();
    }

    /// The listeners in force, then the removed ones.
    pub fn rows(&self) -> Arc<[Row]> {
        self.rows.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub fn set_log(&self, counts: LogCounts) {
        *self.log.lock().unwrap_or_else(PoisonError::into_inner) = Some(counts);
    }

    /// Log lines written and lost.
    pub fn log(&self) -> (u64, u64) {
        let log = self.log.lock().unwrap_or_else(PoisonError::into_inner);
        log.as_ref().map_or((0, 0), |log| (log.written(), log.lost()))
    }

    pub fn uptime(&self) -> Duration {
        self.started.elapsed()
    }

    /// The relay accepts no more connections.
    pub fn set_draining(&self) {
        self.draining.store(true, Ordering::Relaxed);
    }

    /// Whether the relay accepts no more connections.
    pub fn draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }
}

//! What is known of targets by all threads: where they are and whether checks find them up (written by the control thread),
//! the connections to them, and whether attempts fail.
//!
//! A worker asks when it begins a connection: no lock is taken where bytes move.
use std::fmt::Display;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use parshall_core::relay::Ns;
use parshall_core::relay::outage::{Outage, Recovery};
use parshall_sys::stream_socket::StreamAddr;

/// What is known of one target.
#[derive(Debug, Default)]
pub struct TargetState {
    addresses: Mutex<Arc<[StreamAddr]>>,
    /// Set by active checks only; what failed connections mean is the balancer's.
    down: AtomicBool,
    /// Open connections or sessions.
    open: AtomicU32,
    /// An attempt has failed and none has succeeded since: only then is there something to look at in `trouble`.
    failing: AtomicBool,
    trouble: Mutex<Option<Trouble>>,
}

/// Attempts that failed.
#[derive(Debug)]
struct Trouble {
    outage: Outage,
    /// Why the last one failed.
    why: String,
}

impl TargetState {
    /// A target with these addresses.
    pub fn new(addresses: impl Into<Arc<[StreamAddr]>>) -> Self {
        Self { addresses: Mutex::new(addresses.into()), ..Self::default() }
    }

    /// Its addresses, in the order of preference.
    pub fn addresses(&self) -> Arc<[StreamAddr]> {
        self.addresses.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Replaces the addresses when they differ.
    pub fn set_addresses(&self, new: Vec<StreamAddr>) {
        let mut addresses = self.addresses.lock().unwrap_or_else(PoisonError::into_inner);
        if addresses[..] != new[..] {
            *addresses = new.into();
        }
    }

    /// Whether active checks have found it down.
    pub fn is_down(&self) -> bool {
        self.down.load(Ordering::Relaxed)
    }

    /// Says what active checks have found.
    pub fn set_down(&self, down: bool) {
        self.down.store(down, Ordering::Relaxed);
    }

    /// A connection or session with it has begun.
    pub fn began(&self) {
        self.open.fetch_add(1, Ordering::Relaxed);
    }

    /// A connection or session with it has ended.
    pub fn ended(&self) {
        self.open.fetch_sub(1, Ordering::Relaxed);
    }

    /// Connections and sessions open now.
    pub fn open(&self) -> u32 {
        self.open.load(Ordering::Relaxed)
    }

    /// Whether the last attempt failed, as far as was reported.
    pub fn is_failing(&self) -> bool {
        self.failing.load(Ordering::Relaxed)
    }

    /// Why attempts fail; None while it is up, or before that was reported.
    pub fn trouble(&self) -> Option<String> {
        let trouble = self.trouble.lock().unwrap_or_else(PoisonError::into_inner);
        trouble.as_ref().filter(|t| t.outage.is_reported()).map(|t| t.why.clone())
    }

    /// An attempt has failed. Answers whether that is to be reported.
    pub fn failed(&self, now: Ns, why: &dyn Display) -> bool {
        let mut trouble = self.trouble.lock().unwrap_or_else(PoisonError::into_inner);
        let trouble = trouble.get_or_insert_with(|| Trouble { outage: Outage::new(now), why: String::new() });
        trouble.why = why.to_string();
        self.failing.store(true, Ordering::Relaxed);
        trouble.outage.failed(now)
    }

    /// It was reached. Answers the outage that this ends, if that is to be reported.
    pub fn reached(&self, now: Ns) -> Option<Recovery> {
        let mut trouble = self.trouble.lock().unwrap_or_else(PoisonError::into_inner);
        let outage = &mut trouble.as_mut()?.outage;
        let recovery = outage.reached(now);
        // One that is still reported down is looked at again with the next success.
        self.failing.store(outage.is_reported(), Ordering::Relaxed);
        recovery
    }
}

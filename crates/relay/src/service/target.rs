//! The state of a target, shared by all threads: its addresses and the result of active checks (written by the control
//! thread), its open connections, and failed attempts.
//!
//! Workers use it when a connection begins and ends; no lock is taken while bytes move.
use std::fmt::Display;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use parshall_core::relay::Ns;
use parshall_core::relay::outage::{Outage, Recovery};
use parshall_sys::stream_socket::StreamAddr;

#[derive(Debug, Default)]
pub struct TargetState {
    addresses: Mutex<Arc<[StreamAddr]>>,
    /// Changes with the addresses and the result of checks: UDP sessions compare it with what they began with.
    version: AtomicU32,
    /// Active checks found it down. Failed connections count in the balancer only.
    down: AtomicBool,
    /// Its name has led to the listener itself, which was reported.
    leads_back: AtomicBool,
    /// Open connections or sessions.
    open: AtomicU32,
    /// An attempt has failed and none has succeeded since: only then `trouble` needs to be locked.
    failing: AtomicBool,
    trouble: Mutex<Option<Trouble>>,
}

#[derive(Debug)]
struct Trouble {
    outage: Outage,
    /// Why the last attempt failed.
    why: String,
}

impl TargetState {
    pub fn new(addresses: impl Into<Arc<[StreamAddr]>>) -> Self {
        Self { addresses: Mutex::new(addresses.into()), ..Self::default() }
    }

    /// In the order of preference.
    pub fn addresses(&self) -> Arc<[StreamAddr]> {
        self.addresses.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub fn set_addresses(&self, new: Vec<StreamAddr>) {
        let mut addresses = self.addresses.lock().unwrap_or_else(PoisonError::into_inner);
        if addresses[..] != new[..] {
            *addresses = new.into();
            self.version.fetch_add(1, Ordering::Release);
        }
    }

    /// Another number once the addresses or the result of checks have changed.
    pub fn version(&self) -> u32 {
        self.version.load(Ordering::Acquire)
    }

    /// Its name leads to the listener itself, or not any more. Returns whether to report that.
    pub fn leads_back(&self, now: bool) -> bool {
        now && !self.leads_back.swap(now, Ordering::Relaxed)
    }

    /// Whether active checks found it down.
    pub fn is_down(&self) -> bool {
        self.down.load(Ordering::Relaxed)
    }

    /// Sets the result of active checks.
    pub fn set_down(&self, down: bool) {
        if self.down.swap(down, Ordering::Relaxed) != down {
            self.version.fetch_add(1, Ordering::Release);
        }
    }

    /// A connection or session has begun.
    pub fn began(&self) {
        self.open.fetch_add(1, Ordering::Relaxed);
    }

    /// A connection or session has ended.
    pub fn ended(&self) {
        self.open.fetch_sub(1, Ordering::Relaxed);
    }

    /// Open connections and sessions.
    pub fn open(&self) -> u32 {
        self.open.load(Ordering::Relaxed)
    }

    /// Whether an attempt has failed and none has succeeded since, or the target is still reported down.
    pub fn is_failing(&self) -> bool {
        self.failing.load(Ordering::Relaxed)
    }

    /// The error of the last attempt; None unless the target is reported down.
    pub fn trouble(&self) -> Option<String> {
        let trouble = self.trouble.lock().unwrap_or_else(PoisonError::into_inner);
        trouble.as_ref().filter(|t| t.outage.is_reported()).map(|t| t.why.clone())
    }

    /// An attempt has failed. Returns whether to report it.
    pub fn failed(&self, now: Ns, why: &dyn Display) -> bool {
        let mut trouble = self.trouble.lock().unwrap_or_else(PoisonError::into_inner);
        let trouble = trouble.get_or_insert_with(|| Trouble { outage: Outage::new(now), why: String::new() });
        trouble.why = why.to_string();
        self.failing.store(true, Ordering::Relaxed);
        trouble.outage.failed(now)
    }

    /// The target was reached. Returns the outage that this ends, if that is to be reported.
    pub fn reached(&self, now: Ns) -> Option<Recovery> {
        let mut trouble = self.trouble.lock().unwrap_or_else(PoisonError::into_inner);
        let outage = &mut trouble.as_mut()?.outage;
        let recovery = outage.reached(now);
        // While it is still reported down, the next success has to lock `trouble` again.
        self.failing.store(outage.is_reported(), Ordering::Relaxed);
        recovery
    }
}

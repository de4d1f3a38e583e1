//! Where targets are: written by the control thread (names resolved, health checked), read by the workers.
//!
//! A worker asks when it begins a connection: no lock is taken where bytes move.
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use parshall_sys::stream_socket::StreamAddr;

/// What is known of one target.
#[derive(Debug, Default)]
pub struct TargetState {
    addresses: Mutex<Arc<[StreamAddr]>>,
    /// Set by active checks only; workers judge failed connections themselves.
    down: AtomicBool,
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
}

//! Where targets are: written by the control thread (names resolved, health checked), read by the workers.
//!
//! A worker asks when it begins a connection: no lock is taken where bytes move.
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// One address of a target.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Address {
    /// An address and port.
    Ip(SocketAddr),
    /// A Unix stream socket: a path, or an abstract name after `@`.
    Unix(String),
}

/// What is known of one target.
#[derive(Debug, Default)]
pub struct TargetState {
    addresses: Mutex<Arc<[Address]>>,
    /// Set by active checks only; workers judge failed connections themselves.
    down: AtomicBool,
}

impl TargetState {
    /// A target with these addresses.
    pub fn new(addresses: impl Into<Arc<[Address]>>) -> Self {
        Self { addresses: Mutex::new(addresses.into()), ..Self::default() }
    }

    /// Its addresses, in the order of preference.
    pub fn addresses(&self) -> Arc<[Address]> {
        self.addresses.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Replaces the addresses when they differ.
    pub fn set_addresses(&self, new: Vec<Address>) {
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

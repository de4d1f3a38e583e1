//! Carries packets between a TUN device and WireGuard peers.
//!
//! Everything that is decided is in `parshall_core::tunnel`; this crate has the sockets, the device and the loop ([`plain`]).
#![forbid(unsafe_code)]

pub mod plain;
mod sockets;

use parshall_core::tunnel::Random;
use ring::rand::{SecureRandom, SystemRandom};

/// The random bytes of the operating system.
#[derive(Debug)]
pub struct SystemBytes;

impl Random for SystemBytes {
    fn fill(&mut self, bytes: &mut [u8]) {
        SystemRandom::new().fill(bytes).expect("getrandom(2) gives bytes once the system has started");
    }
}

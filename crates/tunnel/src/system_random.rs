//! The operating system's random bytes, which keys are made of.
use parshall_core::tunnel::Random;
use ring::rand::{SecureRandom, SystemRandom};

/// getrandom(2).
#[derive(Debug)]
pub struct SystemBytes;

impl Random for SystemBytes {
    fn fill(&mut self, bytes: &mut [u8]) {
        SystemRandom::new().fill(bytes).expect("getrandom(2) gives bytes once the system has started");
    }
}

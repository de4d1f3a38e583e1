//! A fast hash of the numbers by which names are looked up.
use std::hash::{BuildHasherDefault, Hasher};

/// Hashes a number of the kernel. Not resistant to chosen inputs.
#[derive(Debug, Default)]
pub struct Mix(u64);

impl Hasher for Mix {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(u64::from(*byte)));
    }

    fn write_u32(&mut self, value: u32) {
        self.write_u64(value.into());
    }

    fn write_u64(&mut self, value: u64) {
        self.0 = (self.0.rotate_left(5) ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}

pub type Mixed = BuildHasherDefault<Mix>;

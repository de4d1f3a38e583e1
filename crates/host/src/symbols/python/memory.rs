//! The memory of an observed process, which may hold anything.
use std::fs::File;
use std::os::unix::fs::FileExt;

/// Reads memory.
pub trait Memory {
    /// Fills `into` with what is at an address; None if not all of it is there.
    fn read(&mut self, address: u64, into: &mut [u8]) -> Option<()>;

    /// An array of bytes.
    fn bytes<const N: usize>(&mut self, address: u64) -> Option<[u8; N]> {
        let mut bytes = [0; N];
        self.read(address, &mut bytes)?;
        Some(bytes)
    }

    /// A pointer, or another number of 64 bits.
    fn word(&mut self, address: u64) -> Option<u64> {
        self.bytes(address).map(u64::from_ne_bytes)
    }
}

/// That of a running process. A page of it may lie on a file system that does not answer, so it is read on a timed worker only.
pub struct ProcessMemory(File);

impl ProcessMemory {
    /// None for a process that is gone, or that must not be read.
    pub fn open(tgid: u32) -> Option<Self> {
        File::open(format!("/proc/{tgid}/mem")).ok().map(Self)
    }
}

impl Memory for ProcessMemory {
    fn read(&mut self, address: u64, into: &mut [u8]) -> Option<()> {
        // The kernel takes no offset with the highest bit, and no user memory is there.
        (address <= i64::MAX.cast_unsigned()).then_some(())?;
        self.0.read_exact_at(into, address).ok()
    }
}

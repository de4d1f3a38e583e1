//! Reads sockets with BPF: programs in C that fill a [`SocketRecord`] or find its holders, each beside its loader of the same
//! name. Output is not formatted here.
mod arena;
pub mod closes;
mod in_order;
pub mod owners;
mod rest;
pub mod walk;
mod walk_builds;

pub use walk::{Means, Walk, WalkError};

use std::sync::OnceLock;

use parshall_evidence::socket::SocketRecord;

use crate::kernel_types::KernelTypes;

/// Structures that the programs read through pointers, in the order of `enum followed` in the generated header.
const FOLLOWED: &[&str] = include!(concat!(env!("OUT_DIR"), "/followed.rs"));

/// The kernel types that the programs beside the walk use, reduced once per process.
fn kernel_types() -> Option<&'static KernelTypes> {
    static TYPES: OnceLock<Option<KernelTypes>> = OnceLock::new();
    let names: &[&str] = include!(concat!(env!("OUT_DIR"), "/socket_type_names.rs"));
    TYPES.get_or_init(|| KernelTypes::read(names, FOLLOWED)).as_ref()
}

/// Decodes the record at the beginning of `bytes`. Returns `None` if `bytes` is shorter than a record.
fn record(bytes: &[u8]) -> Option<SocketRecord> {
    if bytes.len() < size_of::<SocketRecord>() {
        return None;
    }
    // SAFETY: `bytes` has at least the size of a record, and the read is unaligned. A record consists of integers without
    // padding (asserted at its definition), so any bytes are a valid one.
    Some(unsafe { bytes.as_ptr().cast::<SocketRecord>().read_unaligned() })
}

/// The kernel's tick (CONFIG_HZ), for `read.bpf.h`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Tick {
    hz: u32,
    /// The length of a tick in microseconds and in milliseconds; 0 if it is not a whole number.
    us: u32,
    ms: u32,
}

impl Tick {
    fn of_kernel() -> Self {
        Self::of(u32::try_from(crate::clock::tick_hz()).unwrap_or(250))
    }

    fn of(hz: u32) -> Self {
        let whole = |unit: u32| if unit.is_multiple_of(hz) { unit / hz } else { 0 };
        Self { hz, us: whole(1_000_000), ms: whole(1000) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_needs_all_its_bytes_and_no_alignment() {
        let mut bytes = vec![0; size_of::<SocketRecord>()];
        assert!(record(&bytes).is_some());
        assert!(record(&bytes[1..]).is_none());
        bytes.insert(0, 9);
        bytes[1] = 7;
        assert_eq!(
            record(&bytes[1..]).map(|record| record.address),
            Some(u64::from_ne_bytes([7, 0, 0, 0, 0, 0, 0, 0]))
        );
    }

    #[test]
    fn a_tick_is_a_whole_number_or_none() {
        let ticks = [100, 250, 300, 1000, 1024].map(|hz| (Tick::of(hz).us, Tick::of(hz).ms));
        assert_eq!(ticks, [(10_000, 10), (4000, 4), (0, 0), (1000, 1), (0, 0)]);
    }
}

//! The fields that each record of the ring buffer begins with.
use zerocopy::{FromBytes, Immutable, KnownLayout};

/// `struct record_head` of `records.h`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct RecordHead {
    /// `enum record_kind`.
    pub kind: u32,
    /// The thread; 0 if the record belongs to none.
    pub tid: u32,
    /// CLOCK_MONOTONIC nanoseconds.
    pub at: u64,
}

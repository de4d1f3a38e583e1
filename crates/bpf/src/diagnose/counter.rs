//! The counters of the probes. This is their only list: `build.rs` writes `enum counter` of the programs from it.

/// Defines the counters and the names that they have in the programs, in the order of their numbers.
macro_rules! counters {
    ($($(#[$doc:meta])* $counter:ident = $name:literal,)+) => {
        /// A counter of the map `counters`.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Counter {
            $($(#[$doc])* $counter,)+
        }

        impl Counter {
            /// All counters by number, with their names in the programs.
            pub const ALL: &[(Self, &str)] = &[$((Self::$counter, $name),)+];
        }
    };
}

counters! {
    /// Runs of probes that did something.
    Events = "CNT_EVENTS",
    /// Records that found no space in the ring buffer.
    Lost = "CNT_LOST",
    /// Threads and processes that were not tracked because of a limit.
    Untracked = "CNT_UNTRACKED",
    /// Retransmitted segments of the subject's connections.
    Retransmits = "CNT_RETRANS",
    /// RST segments that they sent.
    ResetsSent = "CNT_RST_OUT",
    /// RST segments that they received.
    ResetsReceived = "CNT_RST_IN",
    /// Delayed-ACK timers that expired.
    DelackTimers = "CNT_DELACK",
    /// Flows that were not tracked because of a limit.
    UntrackedFlows = "CNT_UNTRACKED_FLOWS",
    /// Intervals off the CPU that found no cell.
    UntrackedCells = "CNT_UNTRACKED_CELLS",
}

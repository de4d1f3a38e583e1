//! The BPF probes beside their loaders and decoders.
//!
//! Invariants: a probe leaves in its first instructions unless a slice is on and the socket or thread is the subject's;
//! what is attached is owned by a [`Probes`] and gone when it is dropped; what crosses from the kernel is decoded here
//! into the vocabulary of `parshall-evidence`, and nothing is judged.
#![warn(missing_docs)]

pub mod classic;
pub mod flow;
mod kernel_types;
mod kit;
pub mod lifecycle;
mod load;
pub mod probes;
pub mod record;
pub mod relay;
pub mod sample;
mod small_btf;
pub mod sockets;
pub mod syscall;
pub mod thread;
pub mod timer;

pub use probes::{Config, Counters, Error, Probes, Scope};
pub use record::Event;

/// The generated skeleton of `probes.bpf.c`.
#[allow(missing_docs, clippy::all, clippy::unwrap_used, clippy::undocumented_unsafe_blocks, dead_code, unused)]
mod skel {
    include!(concat!(env!("OUT_DIR"), "/probes.skel.rs"));
}

/// The generated skeleton of `classic/classic.bpf.c`.
#[allow(missing_docs, clippy::all, clippy::unwrap_used, clippy::undocumented_unsafe_blocks, dead_code, unused)]
mod classic_skel {
    include!(concat!(env!("OUT_DIR"), "/classic.skel.rs"));
}

/// The generated skeleton of `relay/redirect.bpf.c`.
#[allow(missing_docs, clippy::all, clippy::unwrap_used, clippy::undocumented_unsafe_blocks, dead_code, unused)]
mod redirect_skel {
    include!(concat!(env!("OUT_DIR"), "/redirect.skel.rs"));
}

/// The generated skeleton of `sockets/walk.bpf.c`.
#[allow(missing_docs, clippy::all, clippy::unwrap_used, clippy::undocumented_unsafe_blocks, dead_code, unused)]
mod walk_skel {
    include!(concat!(env!("OUT_DIR"), "/walk.skel.rs"));
}

/// A thread's name.
pub fn thread_name(dump: &thread::ThreadDump) -> String {
    comm(&dump.comm)
}

/// A name in the kernel's fixed array.
pub fn comm(bytes: &[u8; 16]) -> String {
    record::comm(bytes)
}

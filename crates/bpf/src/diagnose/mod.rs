//! The probes of the diagnosis. A folder has the programs of a probe in C and their decoder. They make two BPF objects:
//! [`Probes`] for kernels with BTF, [`classic`] for others; [`event`], [`log`] and [`uring`] are further ones, beside either.
//!
//! A probe returns in its first instructions unless a slice is on and the socket or thread belongs to the subject. An object
//! (`loaded.rs`) owns what it attaches and detaches it when it is dropped. Records are decoded into the types of
//! `parshall-evidence`. Nothing is judged here.
pub mod classic;
pub mod counter;
pub mod event;
pub mod features;
pub mod flow;
pub mod frame;
pub mod interpreter;
pub mod lifecycle;
mod loaded;
pub mod log;
pub mod net;
mod observed;
pub mod probes;
pub mod record;
pub mod record_head;
pub mod sample;
pub mod signal;
pub mod syscall;
pub mod thread;
pub mod timeline;
pub mod timer;
pub mod udp;
pub mod uring;

pub use features::{best_programs, stand_ins};
pub use loaded::Counters;
pub use observed::Observed;
pub use probes::{Config, Error, PORTS_MAX, Probes, Process, Scope, Tried};
pub use record::Event;

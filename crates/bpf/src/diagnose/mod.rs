//! The probes of the diagnosis: a folder for each (the programs in C beside their decoder), and the two objects made of them:
//! [`Probes`] for kernels with BTF, [`classic`] for others.
//!
//! A probe leaves in its first instructions unless a slice is on and the socket or thread is the subject's; what is attached
//! belongs to an object (`loaded.rs`) and is detached when it is dropped; records are decoded into the vocabulary of `parshall-evidence`, and
//! nothing is judged.
pub mod classic;
pub mod flow;
pub mod lifecycle;
mod loaded;
pub mod probes;
pub mod record;
pub mod sample;
pub mod syscall;
pub mod thread;
pub mod timeline;
pub mod timer;
pub mod udp;

pub use loaded::Counters;
pub use probes::{Config, Error, Probes, Process, Scope};
pub use record::Event;

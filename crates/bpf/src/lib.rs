//! BPF programs in C beside their loaders and decoders.
//!
//! [`diagnose`], [`lab`] and [`sockets`] have the programs of one product each and do not import each other. They share the
//! kernel's structures (`include/kernel.h`), loading, the kernel's type information, clocks, and reading plain structures.
#![allow(unsafe_code)]
#![warn(missing_docs)]

mod bytes;
pub mod clock;
pub mod diagnose;
pub mod kernel_names;
pub mod kernel_release;
mod kernel_types;
pub mod lab;
mod load;
mod packed;
mod program_info;
mod small_btf;
pub mod sockets;

pub use bytes::comm;
pub use load::{log_libbpf, transcript};

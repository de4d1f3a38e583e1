//! Sockets read with BPF: programs that fill a [`SocketRecord`](parshall_evidence::socket::SocketRecord), and their loaders.
//! How rows become output is not here.
mod arena;
pub mod walk;

pub use walk::{Prefix, Sides, Walk, WalkError, WalkSelection};

//! The prepared evidence that all causes are tested on: ledgers, both ends of a connection joined, and for each piece
//! of lost time the one to blame.
//!
//! This module decides whether time was lost and whose it is. [`crate::judge::cause`] decides which causes are *named*.
mod blame;
mod broadcast;
mod doing;
mod flow;
mod held_back;
mod lost;
pub mod network;
mod off;
mod pair;
mod part;
mod prepare;
mod prepared;
pub mod requests;
mod thread;

pub use blame::THINK_MIN_NS;
pub use flow::{FlowFact, LOSSY, Shape, is_client, rtt_ns};
pub use lost::Lost;
pub use network::Network;
pub use part::{Blame, Part};
pub use prepared::Facts;
pub use requests::{Requests, Spent};
pub use thread::{CHEAP_NS, CHEAP_WHEN_IDLE_NS, MOSTLY_BUSY, ThreadFact};

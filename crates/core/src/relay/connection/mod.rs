//! A connection's life in the relay.
//!
//! - [`closing`]: half-close, resets and the reason a connection ended.
//! - [`happy_eyeballs`]: connecting to a target that has several addresses.
pub mod closing;
pub mod happy_eyeballs;

pub use closing::{CloseReason, Ended, Failure};

//! Exact accounts of time: every nanosecond of a flow's or a thread's wall time lies in exactly one state.
//!
//! What belongs here: the states, and the rules that map kernel evidence to them. Whether a state is *bad* is decided
//! in [`crate::judge::facts`].
pub mod flow;
pub mod flow_rules;
mod flow_state;
pub mod thread;

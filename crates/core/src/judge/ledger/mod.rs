//! Exact accounts of time: every nanosecond of a flow's or a thread's wall time lies in exactly one state.
//!
//! This module has the states, and the rules that map kernel evidence to them. [`crate::judge::facts`] decides whether a state is
//! *bad*.
pub mod flow;
pub mod flow_rules;
mod flow_state;
pub mod thread;

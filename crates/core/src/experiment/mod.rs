//! Decisions of an experiment (`parshall lab ab`, `lab sweep`): the order of the trials, when to stop, what the answer is, which
//! trials the host spoilt. Nothing here knows what is measured; running it is the crate `parshall-lab`'s.
//!
//! An A/B experiment is made of blocks. Each holds a trial of A, a trial of B and another of A as a control, in random order, so what
//! drifts over minutes changes all three alike and their differences not at all. [`judge`] is asked after each of a few numbers of
//! blocks that are known before the first ([`looks`]), and each time only so much chance is allowed that all of them together err in
//! at most 5 % of all experiments. A sweep visits all values in random order, again and again ([`sweep`]).
mod conditions;
mod family;
mod judge;
mod schedule;
pub mod sweep;

pub use conditions::{Conditions, Limits};
pub use family::family;
pub use judge::{Answer, Effect, Rule, Verdict, effect, judge};
pub use schedule::{BLOCKS_MAX, BLOCKS_MIN, LOOK_ALPHA, Role, blocks_order, duets_order, looks, sweep_order};

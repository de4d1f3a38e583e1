//! Decisions of a trial (`parshall try`): the order of its windows, what a window says of the service, and whether the change
//! helped. Nothing here knows which change it is; making and reverting it is the crate `parshall-diagnose`'s.
mod compare;
mod figure;
mod schedule;

pub use compare::{PAIRS_MIN, compare, outcome, signed, value_text};
pub use figure::{Figure, measured, window};
pub use schedule::{Step, steps};

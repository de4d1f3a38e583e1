//! What a report says, for every format: the sentences that are made of its figures.
mod why;

pub use why::why;

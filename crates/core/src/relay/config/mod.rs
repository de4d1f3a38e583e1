//! The relay's configuration: one validated model, however it was written down.
pub mod model;

pub use model::*;

//! What unit tests of several modules share.
pub use parshall_testkit::{root, skip};

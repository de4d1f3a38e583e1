//! What the tests of this crate share: sample rows, and peers that read what formats and sinks write.
pub mod peers;
pub mod samples;

//! Everything in parshall that decides.
#![forbid(unsafe_code)]

use parshall_evidence::{Capture, Report};

/// Judges a capture.
pub fn judge(_capture: &Capture) -> Report {
    unimplemented!()
}

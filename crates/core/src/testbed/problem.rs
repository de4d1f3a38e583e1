//! Errors at a place of a testbed's text.
use crate::values::ValueError;

/// An error at a byte of the text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The offset of the byte.
    pub at: usize,
    /// The error, and the correct form.
    pub error: ValueError,
}

/// Fails at a byte of the text.
pub(super) fn fail<T>(at: usize, what: impl Into<String>, hint: impl Into<String>) -> Result<T, Problem> {
    Err(Problem { at, error: ValueError::new(what, hint) })
}

/// Positions of the parts of a link in the file, for errors.
pub(super) struct LinkPlaces {
    pub ends: [EndPlaces; 2],
    pub mtu: usize,
    pub impairments: [usize; 2],
}

/// Positions of the parts of an end in the file.
pub(super) struct EndPlaces {
    pub namespace: usize,
    pub device: usize,
    pub addresses: Vec<usize>,
    pub shaper: usize,
}

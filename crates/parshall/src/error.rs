//! Errors that a user can mend: one line that says what is wrong, and a hint that says what to do.
use std::fmt;

/// A user's mistake or a limit of the host. `main` prints it as `error: WHAT` and `hint: HINT`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UserError {
    /// What is wrong, without a full stop.
    pub what: String,
    /// What to do about it.
    pub hint: String,
}

impl UserError {
    /// An error with its hint.
    pub fn new(what: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { what: what.into(), hint: hint.into() }
    }
}

impl fmt::Display for UserError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)
    }
}

impl std::error::Error for UserError {}

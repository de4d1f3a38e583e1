//! User-facing errors: one line that says what is wrong, and a hint that says what to do.
use std::fmt;
use std::io::{self, Write};
use std::process::ExitCode;

use parshall_core::text::printable;
use parshall_core::values::ValueError;

/// An error of usage or a limit of the host. `main` prints it as `error: WHAT` and `hint: HINT`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UserError {
    /// The error, without a full stop.
    pub what: String,
    /// A remedy: what to type.
    pub hint: String,
}

impl UserError {
    #[allow(missing_docs)]
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

impl From<ValueError> for UserError {
    fn from(error: ValueError) -> Self {
        Self::new(error.what, error.hint)
    }
}

/// Prints an error on stderr; a failure to do so is ignored.
pub fn print(error: &UserError) {
    let text = format!("error: {}\nhint: {}\n", one_line(&error.what), one_line(&error.hint));
    io::stderr().write_all(text.as_bytes()).ok();
}

/// Prints the error of a command, if any, and returns the exit code.
pub fn exit(result: anyhow::Result<ExitCode>) -> ExitCode {
    match result {
        Ok(code) => code,
        // The reader of stdout has closed the pipe, as in `parshall show x.json | head`. That is not a failure.
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            print(&for_user(&error));
            ExitCode::FAILURE
        }
    }
}

/// Converts any error to one with a hint.
pub fn for_user(error: &anyhow::Error) -> UserError {
    // The context around a `UserError` says where it happened, so the whole chain is printed; the hint stays that of the `UserError`.
    let what = format!("{error:#}");
    match error.chain().find_map(|e| e.downcast_ref::<UserError>()).or_else(|| error.downcast_ref::<UserError>()) {
        Some(user) => UserError::new(what, user.hint.clone()),
        None => UserError::new(what, hint_for(error)),
    }
}

fn hint_for(error: &anyhow::Error) -> &'static str {
    match error.chain().find_map(|e| e.downcast_ref::<io::Error>()).map(io::Error::kind) {
        Some(io::ErrorKind::PermissionDenied) => "run it as root; `parshall doctor` says what is lost without root",
        Some(io::ErrorKind::NotFound) => "check the path",
        Some(io::ErrorKind::StorageFull) => "free some space, or write to another file system",
        _ => "`parshall doctor` says what this host allows",
    }
}

/// Whether the reader of a pipe has closed it.
pub fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.chain().filter_map(|e| e.downcast_ref::<io::Error>()).any(|e| e.kind() == io::ErrorKind::BrokenPipe)
}

/// Messages of the kernel or a library may have several lines, and names may hold any characters.
fn one_line(text: &str) -> String {
    printable(text, ' ').split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use anyhow::Context;

    use super::*;

    #[test]
    fn context_goes_in_front_and_the_hint_stays() {
        let error = Err::<(), _>(UserError::new("no process 7", "`ps` lists them")).context("cannot attach");
        assert_eq!(for_user(&error.unwrap_err()), UserError::new("cannot attach: no process 7", "`ps` lists them"));
    }

    #[test]
    fn a_plain_error_gets_a_hint_by_its_kind() {
        let io = io::Error::from(io::ErrorKind::PermissionDenied);
        assert!(for_user(&anyhow::Error::from(io)).hint.contains("root"));
    }

    #[test]
    fn a_broken_pipe_is_found_below_context() {
        let io = io::Error::from(io::ErrorKind::BrokenPipe);
        assert!(is_broken_pipe(&anyhow::Error::from(io).context("cannot write")));
    }

    #[test]
    fn errors_stay_on_one_line() {
        assert_eq!(one_line("a\n  b\u{1b}[31m"), "a b [31m");
    }
}

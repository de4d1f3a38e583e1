//! Notes to the user on stderr.
use std::io::Write;

/// Writes one line. A stderr that is closed is no error.
pub fn note(text: &str) {
    let _ = writeln!(std::io::stderr(), "note: {text}");
}

//! What unit tests of several rooms share.
use std::io::Write;

/// Says what was not tested and why: on stderr and, for `scripts/check`, in $PARSHALL_SKIPS.
pub fn skip(what: &str, why: &str) {
    eprintln!("skipped: {what}: {why}");
    let Some(path) = std::env::var_os("PARSHALL_SKIPS") else { return };
    if let Ok(mut file) = std::fs::OpenOptions::new().append(true).create(true).open(path) {
        writeln!(file, "{what}: {why}").ok();
    }
}

/// Whether we are root; if not, says what is skipped.
pub fn root(what: &str) -> bool {
    let root = parshall_sys::child::is_root();
    if !root {
        skip(what, "needs root");
    }
    root
}

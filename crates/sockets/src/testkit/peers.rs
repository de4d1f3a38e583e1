//! What tests of several sinks share: the peers that `scripts/peers/fetch` put into `target/peers`.
use std::path::{Path, PathBuf};
use std::process::Command;

use parshall_testkit::skip;

/// A directory in `target/peers`; if it is not there, says what is skipped.
pub fn peer(name: &str, what: &str) -> Option<PathBuf> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/peers").join(name);
    if !path.exists() {
        skip(what, "its peer was not fetched (scripts/peers/fetch)");
    }
    path.exists().then_some(path)
}

/// Runs a script of `scripts/peers` with Python and its packages; none where they are not installed.
pub fn python(script: &str, words: &[&str], what: &str) -> Option<Command> {
    let python = peer("python/.complete", what)?.with_file_name("bin").join("python");
    let mut command = Command::new(python);
    command.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/peers").join(script)).args(words);
    Some(command)
}

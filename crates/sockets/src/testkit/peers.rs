//! Programs for the tests of sinks, which `scripts/peers/fetch` has downloaded into `target/peers`.
use std::path::{Path, PathBuf};
use std::process::Command;

use parshall_testkit::skip;

/// A directory in `target/peers`. Returns `None` and reports a skip if it is not there.
pub fn peer(name: &str, what: &str) -> Option<PathBuf> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/peers").join(name);
    if !path.exists() {
        skip(what, "its peer was not fetched (scripts/peers/fetch)");
    }
    path.exists().then_some(path)
}

/// The command that runs a script of `scripts/peers` in Python with the packages of `scripts/peers/PACKAGES.txt`. Returns `None`
/// and reports a skip if they were not downloaded.
pub fn python(packages: &str, script: &str, words: &[&str], what: &str) -> Option<Command> {
    let python = peer(&format!("{packages}/.complete"), what)?.with_file_name("bin").join("python");
    let mut command = Command::new(python);
    command.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/peers").join(script)).args(words);
    Some(command)
}

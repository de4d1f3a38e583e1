//! Helpers that the tests of all crates share. Only dev-dependencies name this crate; it depends on nothing.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

use std::io::Write;

/// Reports that a test, or a part of one, cannot run on this host: on stderr and, for `scripts/check`, as a line
/// `WHAT: WHY` in the file named by `PARSHALL_SKIPS`. The test then returns and passes.
pub fn skip(what: &str, why: &str) {
    eprintln!("skipped: {what}: {why}");
    let Some(path) = std::env::var_os("PARSHALL_SKIPS") else { return };
    // One write per line: several test processes append to the file at once.
    let line = format!("{what}: {why}\n");
    if let Ok(mut file) = std::fs::OpenOptions::new().append(true).create(true).open(path) {
        file.write_all(line.as_bytes()).ok();
    }
}

/// Whether the effective user is root; if not, reports `what` as skipped.
pub fn root(what: &str) -> bool {
    let root = is_root();
    if !root {
        skip(what, "needs root");
    }
    root
}

/// Whether the effective user is root.
pub fn is_root() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let uids = status.lines().find_map(|line| line.strip_prefix("Uid:")).unwrap_or_default();
    uids.split_whitespace().nth(1) == Some("0")
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    /// The environment belongs to the whole process, so a child process runs the test with the variable set.
    #[test]
    fn a_skip_is_appended_to_the_file() {
        if std::env::var_os("TESTKIT_CHILD").is_some() {
            return skip("a part", "this host");
        }
        let path = std::env::temp_dir().join(format!("testkit-{}", std::process::id()));
        for lines in [1, 2] {
            let output = Command::new(std::env::current_exe().expect("a path"))
                .args(["--exact", "tests::a_skip_is_appended_to_the_file"])
                .env("TESTKIT_CHILD", "1")
                .env("PARSHALL_SKIPS", &path)
                .output()
                .expect("it starts");
            assert!(output.status.success());
            assert_eq!(std::fs::read_to_string(&path).expect("written"), "a part: this host\n".repeat(lines));
        }
        std::fs::remove_file(&path).expect("ours");
    }
}

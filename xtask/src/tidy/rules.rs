//! Rules for single files.
use super::allow::Allowed;

/// The most lines of a Rust file: a longer one has more than one topic.
const MAX_FILE_LINES: usize = 800;
/// The marker of unfinished work.
const MARK: &str = concat!("FIX", "ME");

/// Checks one file. `path` is relative to the root.
pub fn check(path: &str, text: &str, allowed: &mut Allowed, complaints: &mut Vec<String>) {
    for (i, line) in text.lines().enumerate() {
        if line.ends_with([' ', '\t']) {
            complaints.push(format!("{path}:{}: trailing white space", i + 1));
        }
    }
    if !text.is_empty() && !text.ends_with('\n') {
        complaints.push(format!("{path}: no newline at its end"));
    }
    if [".rs", ".c", ".h", ".py", ".sh"].iter().any(|e| path.ends_with(e)) {
        check_length(path, text, allowed, complaints);
        for (i, _) in text.lines().enumerate().filter(|(_, line)| line.contains(MARK)) {
            complaints.push(format!("{path}:{}: {MARK}: do it, or open an issue", i + 1));
        }
    }
    let opens = text.lines().find(|l| !l.trim().is_empty()).unwrap_or("");
    if path.ends_with(".rs") && !opens.starts_with("//!") {
        complaints.push(format!("{path}: does not open with `//!`: say what belongs here and what does not"));
    }
}

fn check_length(path: &str, text: &str, allowed: &mut Allowed, complaints: &mut Vec<String>) {
    let lines = text.lines().count();
    if lines > MAX_FILE_LINES && !allowed.permits(path, lines) {
        complaints.push(format!("{path}: {lines} lines, more than {MAX_FILE_LINES}: split it by topic"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn complaints(path: &str, text: &str) -> Vec<String> {
        let mut complaints = Vec::new();
        check(path, text, &mut Allowed::default(), &mut complaints);
        complaints
    }

    #[test]
    fn a_good_file_passes() {
        assert!(complaints("crates/x/src/a.rs", "//! A topic.\nfn f() {}\n").is_empty());
    }

    #[test]
    fn each_rule_complains() {
        let long_file = format!("//! x\n{}", "const A: u8 = 1;\n".repeat(800));
        let cases = [
            ("crates/x/src/a.rs", "fn f() {}\n".to_owned(), "does not open"),
            ("crates/x/src/a.rs", long_file, "801 lines"),
            ("crates/x/src/a.rs", concat!("//! x\n// FIX", "ME later\n").to_owned(), "a.rs:2: FIX"),
            ("docs/a.md", "a \n".to_owned(), "docs/a.md:1: trailing"),
            ("docs/a.md", "a".to_owned(), "no newline"),
        ];
        for (path, text, what) in cases {
            let got = complaints(path, &text);
            assert_eq!(got.len(), 1, "{what}: {got:?}");
            assert!(got[0].contains(what), "{what}: {got:?}");
        }
    }
}

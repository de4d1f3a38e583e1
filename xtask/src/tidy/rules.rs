//! The rules that one file must keep.
use super::allow::Allowed;
use super::source;

/// Longer files hold more than one topic.
const MAX_FILE_LINES: usize = 800;
/// Longer functions do not fit a screen.
const MAX_FUNCTION_LINES: usize = 70;
/// The homes of `unsafe`: system calls, and what the BPF side shares with the kernel.
const UNSAFE_HOMES: [&str; 2] = ["crates/sys/", "crates/bpf/"];

/// Checks one file, given by its path from the root.
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
        let mark = concat!("FIX", "ME");
        for line in source::lines_with(text, mark) {
            complaints.push(format!("{path}:{line}: {mark}: mend it, or open an issue"));
        }
    }
    if path.ends_with(".rs") {
        check_rust(path, text, allowed, complaints);
    }
}

fn check_length(path: &str, text: &str, allowed: &mut Allowed, complaints: &mut Vec<String>) {
    let lines = text.lines().count();
    if lines > MAX_FILE_LINES && !allowed.permits(path, lines) {
        complaints.push(format!("{path}: {lines} lines, more than {MAX_FILE_LINES}: split it by topic"));
    }
}

fn check_rust(path: &str, text: &str, allowed: &mut Allowed, complaints: &mut Vec<String>) {
    let opens = text.lines().find(|l| !l.trim().is_empty()).unwrap_or("");
    // A build script's shebang-like first lines do not exist here; a licence header would go into the crate's files.
    if !opens.starts_with("//!") {
        complaints.push(format!("{path}: does not open with `//!`: say what belongs here and what does not"));
    }
    let code = source::blank(text);
    for function in source::functions(&code) {
        let what = format!("{path}::{}", function.name);
        if function.lines > MAX_FUNCTION_LINES && !allowed.permits(&what, function.lines) {
            complaints.push(format!(
                "{path}:{}: `{}` has {} lines, more than {MAX_FUNCTION_LINES}",
                function.line, function.name, function.lines
            ));
        }
    }
    if !UNSAFE_HOMES.iter().any(|home| path.starts_with(home)) {
        for line in source::lines_with(&code, "unsafe") {
            complaints.push(format!("{path}:{line}: `unsafe` outside of {}", UNSAFE_HOMES.join(" and ")));
        }
    }
    for name in ["todo", "unimplemented"] {
        for line in source::lines_with(&code, name) {
            if code.lines().nth(line - 1).is_some_and(|l| l.contains(&format!("{name}!"))) {
                complaints.push(format!("{path}:{line}: `{name}!`"));
            }
        }
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
        assert!(complaints("crates/x/src/a.rs", "//! A room.\nfn f() {}\n").is_empty());
    }

    #[test]
    fn each_rule_fires() {
        let long_file = format!("//! x\n{}", "const A: u8 = 1;\n".repeat(800));
        let long_function = format!("//! x\nfn f() {{\n{}}}\n", "    g();\n".repeat(70));
        let cases = [
            ("crates/x/src/a.rs", "fn f() {}\n".to_owned(), "does not open"),
            ("crates/x/src/a.rs", long_file, "801 lines"),
            ("crates/x/src/a.rs", long_function, "`f` has 72 lines"),
            ("crates/parshall/src/a.rs", "//! x\nfn f() { unsafe {} }\n".to_owned(), "a.rs:2: `unsafe`"),
            ("crates/x/src/a.rs", "//! x\nfn f() { todo!() }\n".to_owned(), "`todo!`"),
            ("crates/x/src/a.rs", "//! x\nfn f() { unimplemented!() }\n".to_owned(), "`unimplemented!`"),
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

    #[test]
    fn unsafe_has_its_homes_and_words_are_free() {
        assert!(complaints("crates/sys/src/a.rs", "//! x\nfn f() { unsafe {} }\n").is_empty());
        let text = "//! unsafe todo!()\n#![forbid(unsafe_code)]\nconst A: &str = \"unsafe todo!()\";\nlet todo = 1;\n";
        assert!(complaints("crates/x/src/a.rs", text).is_empty());
    }
}

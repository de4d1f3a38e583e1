//! `cargo xtask tidy --commits BASE`: checks the messages of the commits since BASE.
use std::path::Path;
use std::process::{Command, ExitCode};

/// The most columns of a subject, and of a body's line that can be broken.
const MAX_COLUMNS: usize = 72;

/// Checks the messages of all commits in `base..HEAD`. Prints a line for each complaint.
pub fn run(root: &Path, base: &str) -> ExitCode {
    let range = format!("{base}..HEAD");
    let log =
        Command::new("git").current_dir(root).args(["log", "--no-merges", "-z", "--format=%h %B", &range]).output();
    let text = match log {
        Ok(out) if out.status.success() => String::from_utf8_lossy(&out.stdout).into_owned(),
        Ok(out) => return fail(String::from_utf8_lossy(&out.stderr).trim()),
        Err(error) => return fail(&error.to_string()),
    };
    let commits: Vec<(&str, &str)> = text.split('\0').filter_map(|commit| commit.trim().split_once(' ')).collect();
    let mut complaints = 0;
    for (hash, message) in &commits {
        for complaint in check(message) {
            println!("tidy: {hash}: {complaint}");
            complaints += 1;
        }
    }
    println!("tidy: {} commits, {complaints} complaints", commits.len());
    if complaints == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn fail(why: &str) -> ExitCode {
    eprintln!("error: cannot read the commits: {why}\nhint: name an existing commit, as in --commits origin/main");
    ExitCode::FAILURE
}

/// The complaints about a message.
fn check(message: &str) -> Vec<String> {
    let mut lines = message.trim_end().lines();
    let subject = lines.next().unwrap_or_default();
    let mut complaints = Vec::new();
    let columns = subject.chars().count();
    if columns > MAX_COLUMNS {
        complaints.push(format!("the subject has {columns} columns, more than {MAX_COLUMNS}: {subject}"));
    }
    let is_area =
        |area: &str| !area.is_empty() && area.chars().all(|c| c.is_ascii_lowercase() || "0123456789-_/".contains(c));
    let is_named = subject
        .split_once(": ")
        .is_some_and(|(area, what)| is_area(area) && what.starts_with(|c: char| c.is_ascii_uppercase()));
    if !is_named || subject.ends_with('.') || subject.contains(';') {
        complaints.push(format!("the subject does not have the form `area: Do something`: {subject}"));
    }
    let body: Vec<&str> = lines.collect();
    if body.first().is_none_or(|line| !line.is_empty()) || body.len() < 2 {
        complaints.push(format!("there is no body, after an empty line, that says why: {subject}"));
    }
    // A URL, the output of a command or a table cannot be broken.
    let is_long = |line: &&&str| line.chars().count() > MAX_COLUMNS && !line.starts_with(' ') && line.contains(' ');
    if let Some(line) = body.iter().find(is_long) {
        complaints.push(format!("the body has a line of more than {MAX_COLUMNS} columns: {line}"));
    }
    complaints
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_say_what_and_why() {
        assert!(check("relay: Close idle pipes\n\nThey hold 64 KiB each.\n").is_empty());
        let long = "x".repeat(60);
        let cases = [
            (format!("relay: Close {long}\n\nWhy."), "columns"),
            ("Close idle pipes\n\nWhy.".to_owned(), "does not have the form"),
            ("relay: close idle pipes\n\nWhy.".to_owned(), "does not have the form"),
            ("relay: Close pipes; count them\n\nWhy.".to_owned(), "does not have the form"),
            ("relay: Close idle pipes".to_owned(), "no body"),
            ("relay: Close idle pipes\nWhy.".to_owned(), "no body"),
            (format!("relay: Close idle pipes\n\nWhy {long} {long}."), "the body"),
        ];
        for (message, what) in cases {
            let got = check(&message);
            assert_eq!(got.len(), 1, "{message}: {got:?}");
            assert!(got[0].contains(what), "{message}: {got:?}");
        }
    }
}

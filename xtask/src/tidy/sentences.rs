//! Rules for sentences that reports are made of, read from the string literals of the code that makes them, without test code.
//!
//! A count and its noun agree because `units::plural` makes them; what is to be typed stands between backticks, which a page shows as
//! code; and a sentence that goes on in the next line of the source has no run of blanks in it.
use proc_macro2::{TokenStream, TokenTree};

use super::imports;

/// The code that makes sentences for people.
const MAKERS: [&str; 4] =
    ["crates/core/src/judge/", "crates/core/src/report/", "crates/core/src/critical_path/", "crates/diagnose/src/"];
/// Programs that a sentence may name: with an option, a path or a placeholder behind it, one is a command.
const PROGRAMS: [&str; 38] = [
    "cat", "chrt", "curl", "dig", "dmesg", "docker", "ethtool", "gdb", "grep", "ip", "iostat", "jcmd", "jstack",
    "kill", "ls", "lsof", "mpstat", "mount", "nft", "nstat", "parshall", "perf", "pidstat", "ping", "prlimit", "ps",
    "py-spy", "renice", "sed", "ss", "strace", "sysctl", "taskset", "tc", "tcpdump", "top", "unshare", "vmstat",
];
/// Words of a command line that begin no path and no option.
const SUBCOMMANDS: [&str; 12] =
    ["attach", "change", "doctor", "dump", "list", "pause", "qdisc", "record", "route", "run", "try", "unpause"];
/// Nouns that are counted.
const NOUNS: [&str; 30] = [
    "CPUs",
    "calls",
    "causes",
    "connections",
    "counters",
    "datagrams",
    "descriptors",
    "events",
    "exchanges",
    "flows",
    "frames",
    "groups",
    "listeners",
    "lines",
    "namespaces",
    "packets",
    "ports",
    "processes",
    "questions",
    "replies",
    "requests",
    "retransmits",
    "rows",
    "samples",
    "segments",
    "services",
    "sockets",
    "stacks",
    "threads",
    "times",
];
/// The blanks before a line of the source that goes on with a sentence; columns of a table are nearer to each other.
const BLANKS: &str = "        ";
/// Between a count and its noun.
const ADJECTIVES: [&str; 6] = ["connection", "further", "more", "network", "other", "slow"];

/// Checks the sentences of one file. `path` is relative to the root.
pub fn check(path: &str, text: &str, complaints: &mut Vec<String>) {
    if !MAKERS.iter().any(|maker| path.starts_with(maker)) || is_test(path) {
        return;
    }
    // A file that is no Rust is complained of where imports are read.
    let Ok(tokens) = text.parse::<TokenStream>() else { return };
    let mut found = Vec::new();
    literals(&tokens.into_iter().collect::<Vec<_>>(), &mut found);
    for sentence in found {
        complaints.extend(wrong(&sentence).map(|why| format!("{path}: {why}: {sentence:?}")));
    }
}

fn is_test(path: &str) -> bool {
    ["tests.rs", "/tests/", "/testkit"].iter().any(|part| path.contains(part))
}

/// The texts of all string literals.
fn literals(tokens: &[TokenTree], found: &mut Vec<String>) {
    let mut i = 0;
    while i < tokens.len() {
        if let Some(end) = imports::end_of_test_item(tokens, i) {
            i = end;
            continue;
        }
        match &tokens[i] {
            // A doc comment is an attribute.
            TokenTree::Punct(punct) if punct.as_char() == '#' => i += 1,
            TokenTree::Group(group) => literals(&group.stream().into_iter().collect::<Vec<_>>(), found),
            TokenTree::Literal(literal) => found.extend(unescaped(&literal.to_string())),
            _ => {}
        }
        i += 1;
    }
}

/// The text of a string literal, as far as it matters here; None of other literals and of raw strings, which are no sentences.
fn unescaped(literal: &str) -> Option<String> {
    let inner = literal.strip_prefix('"')?.strip_suffix('"')?;
    let mut text = String::new();
    let mut chars = inner.chars().peekable();
    while let Some(c) = chars.next() {
        if c != '\\' {
            text.push(c);
            continue;
        }
        match chars.next() {
            Some('\n') => while chars.next_if(|c| c.is_whitespace()).is_some() {},
            Some('n') => text.push('\n'),
            Some(other) => text.push(other),
            None => {}
        }
    }
    Some(text)
}

/// What is wrong with a sentence.
fn wrong(sentence: &str) -> Option<String> {
    if let Some(at) = sentence.find(BLANKS) {
        return Some(format!("a run of blanks behind {:?}", &sentence[..at]));
    }
    let prose: Vec<&str> = sentence.split('`').step_by(2).collect();
    if let Some(command) = prose.iter().find_map(|part| command(part)).filter(|_| !begins_a_command(sentence)) {
        return Some(format!("the command {command:?} does not stand between backticks"));
    }
    counted(sentence).map(|noun| format!("a count beside {noun:?}, of which there may be one: use units::plural"))
}

/// The literal is a command as a whole.
fn begins_a_command(sentence: &str) -> bool {
    sentence.split(' ').next().is_some_and(|word| PROGRAMS.contains(&word))
}

fn command(prose: &str) -> Option<String> {
    let words: Vec<&str> = prose.split([' ', '(', '\n']).collect();
    let is_argument = |word: &str| {
        let is_option = word.starts_with('-') && word.len() > 1;
        is_option || word.starts_with(['/', '@']) || SUBCOMMANDS.contains(&word.trim_end_matches(['.', ',', ')']))
    };
    let pair = words.windows(2).find(|pair| PROGRAMS.contains(&pair[0]) && is_argument(pair[1]))?;
    Some(pair.join(" "))
}

/// The noun behind a placeholder that may be of the number one: neither one with decimals nor a constant.
fn counted(sentence: &str) -> Option<&str> {
    let parts: Vec<&str> = sentence.split('}').collect();
    parts.windows(2).find_map(|pair| {
        let placeholder = pair[0].rsplit('{').next()?;
        let is_constant = placeholder.starts_with(|c: char| c.is_ascii_uppercase());
        if is_constant || placeholder.contains(":.") {
            return None;
        }
        let mut words = pair[1].strip_prefix(' ')?.split(' ');
        let first = words.next()?;
        let noun = if ADJECTIVES.contains(&first) { words.next()? } else { first };
        // `{} requests/s` is a rate.
        let word = noun.trim_end_matches([',', '.', ':', ';', ')']);
        NOUNS.contains(&word).then_some(word)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn complaints(source: &str) -> Vec<String> {
        let mut complaints = Vec::new();
        check("crates/core/src/judge/cause/x.rs", source, &mut complaints);
        complaints
    }

    #[test]
    fn good_sentences_pass() {
        for good in [
            r#"const A: &str = "Who has which: `ss -tnp`";"#,
            "const A: &str = \"It goes on \\\n         here: {} requests/s, {:.1} times, {MOST} flows.\";",
            r#"fn f() -> String { format!("perf record -g -p {pid}") }"#,
            r#"const A: &str = "The top half of ip and tc statistics, kill or cat.";"#,
            r#"/// See ls -l and {} threads.
               const A: u8 = 1;"#,
            r#"#[cfg(test)] mod tests { const A: &str = "ls -l of {} threads"; }"#,
        ] {
            assert_eq!(complaints(good), [""; 0], "{good}");
        }
    }

    #[test]
    fn each_rule_complains() {
        for (bad, what) in [
            (r#"const A: &str = "Who has which: ss -tnp";"#, "\"ss -tnp\" does not stand between backticks"),
            (r#"const A: &str = "`ls` or (kill -CONT {})";"#, "\"kill -CONT\""),
            (r#"fn f() { g("Run perf record.") }"#, "\"perf record.\""),
            (r#"const A: &str = "rather than spin          while they wait";"#, "a run of blanks"),
            (r#"fn f() { format!("{} processes do not read", 1) }"#, "beside \"processes\""),
            (r#"fn f() { format!("{n} network namespaces, and more", 1) }"#, "beside \"namespaces\""),
        ] {
            let got = complaints(bad);
            assert_eq!(got.len(), 1, "{bad}: {got:?}");
            assert!(got[0].contains(what), "{bad}: {got:?}");
        }
    }
}

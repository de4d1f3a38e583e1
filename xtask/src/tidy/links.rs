//! Links of Markdown files: each leads to a file of the repository and to a heading in it. Those of the documentation stay within it, since
//! the site is made of it alone.
use std::collections::BTreeSet;

/// The directory of which `make book` makes a site.
const DOCS: &str = "docs/";

/// Checks all links but those to other sites; `exists` tells whether the repository has a file or directory.
pub fn check(files: &[(String, String)], exists: &dyn Fn(&str) -> bool, complaints: &mut Vec<String>) {
    for (path, text) in files.iter().filter(|(path, _)| path.ends_with(".md")) {
        for (line, target) in links(text) {
            if target.contains(':') {
                continue;
            }
            let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
            let to = if file.is_empty() { Some(path.clone()) } else { resolved(path, file) };
            let Some(to) = to.filter(|to| exists(to)) else {
                complaints.push(format!("{path}:{line}: the link to {target} leads nowhere"));
                continue;
            };
            if path.starts_with(DOCS) && !to.starts_with(DOCS) {
                complaints
                    .push(format!("{path}:{line}: the link to {target} leaves {DOCS}, which the site consists of"));
            }
            let heads = || files.iter().find(|(path, _)| *path == to).map(|(_, text)| anchors(text));
            if !anchor.is_empty() && heads().is_some_and(|heads| !heads.contains(anchor)) {
                complaints.push(format!("{path}:{line}: {to} has no heading #{anchor}"));
            }
        }
    }
}

/// The targets of the links of a text with their line numbers, without those in blocks of code.
fn links(text: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    for (number, line) in prose(text) {
        for part in line.split("](").skip(1) {
            let target = part.split([')', ' ']).next().unwrap_or_default();
            found.push((number, target));
        }
    }
    found
}

/// The lines outside of blocks of code, with their numbers.
fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut in_code = false;
    text.lines().enumerate().filter_map(move |(n, line)| {
        let is_fence = line.trim_start().starts_with("```");
        in_code ^= is_fence;
        (!in_code && !is_fence).then_some((n + 1, line))
    })
}

/// The names by which links lead to the headings of a text: lower case, with hyphens for spaces, without other punctuation.
fn anchors(text: &str) -> BTreeSet<String> {
    let heading = |line: &str| {
        let title = line.trim_start_matches('#');
        (title.len() < line.len() && title.starts_with(' ')).then(|| title.trim().to_lowercase())
    };
    let anchor = |title: String| {
        let kept = title.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
        kept.map(|c| if c == ' ' { '-' } else { c }).collect()
    };
    prose(text).filter_map(|(_, line)| heading(line)).map(anchor).collect()
}

/// The path from the root of what a link in a file leads to; None outside of the repository.
fn resolved(from: &str, link: &str) -> Option<String> {
    let mut parts: Vec<&str> = from.split('/').collect();
    parts.pop();
    for part in link.split('/').filter(|part| !matches!(*part, "" | ".")) {
        match part {
            ".." => parts.pop().map(|_| ())?,
            _ => parts.push(part),
        }
    }
    Some(parts.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_lead_to_files_and_headings() {
        let cases = [
            ("README.md", "[a](docs/a.md)\n", ""),
            ("README.md", "[a](https://a.example/b)\n", ""),
            ("docs/b.md", "[a](a.md#a-heading-cpu)\n", ""),
            ("docs/b.md", "```sh\n[a](c.md)\n```\n", ""),
            ("docs/b.md", "![a](images/a.png)\n", ""),
            ("docs/b.md", "[a](c.md)\n", "docs/b.md:1: the link to c.md leads nowhere"),
            ("docs/b.md", "[a](../../c.md)\n", "docs/b.md:1: the link to ../../c.md leads nowhere"),
            ("docs/b.md", "[a](a.md#other)\n", "docs/b.md:1: docs/a.md has no heading #other"),
            ("docs/b.md", "[a](../README.md)\n", "docs/b.md:1: the link to ../README.md leaves docs/"),
        ];
        for (path, text, complaint) in cases {
            let files = [("docs/a.md", "# A heading: `CPU`\n"), (path, text)];
            let files = files.map(|(path, text)| (path.to_owned(), text.to_owned()));
            let exists = |path: &str| ["docs/a.md", "docs/images/a.png", "README.md"].contains(&path);
            let mut complaints = Vec::new();
            check(&files, &exists, &mut complaints);
            let found = complaints.join("\n");
            assert!(found.starts_with(complaint) && found.is_empty() == complaint.is_empty(), "{path} {text}: {found}");
        }
    }
}

//! Every command block of the README, the guide and the tutorial is run as it stands, or says why not.
//!
//! A block that begins with ```` ```sh ```` is run by `sh -e`, the blocks of a document one after the other in one empty directory, with
//! this parshall in the PATH. One with a word behind it (```` ```sh needs-service ````) is not: [`NEEDS`] has the words. Blocks in other
//! languages are no commands, and a block without any is refused, so that nobody forgets to choose.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::{PARSHALL, Scratch, finish};
use parshall_testkit::skip;

/// The needs that a block may have, and each of them in words.
const NEEDS: [(&str, &str); 6] = [
    ("needs-service", "a slow service of the reader's own"),
    ("needs-build", "a checkout, and minutes for a build"),
    ("needs-host", "the reader's host: its files, units or terminal"),
    ("needs-peer", "another host"),
    ("needs-testbed", "root, and the time of a testbed"),
    ("needs-install", "a package, and a system to install it on"),
];

/// Documents of which every block is run or marked.
const RUN: [&str; 3] = ["README.md", "docs/guide.md", "docs/tutorial.md"];

/// Languages that are no commands.
const OTHERS: [&str; 8] = ["text", "toml", "json", "ini", "diff", "html", "yaml", "python"];

struct Block {
    /// From 1.
    line: usize,
    info: String,
    text: String,
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn blocks(text: &str) -> Vec<Block> {
    let (mut blocks, mut open): (Vec<Block>, Option<Block>) = (Vec::new(), None);
    for (at, line) in text.lines().enumerate() {
        match (line.trim_start().strip_prefix("```"), open.as_mut()) {
            (Some(_), Some(_)) => blocks.extend(open.take()),
            (Some(info), None) => {
                open = Some(Block { line: at + 1, info: info.trim().to_owned(), text: String::new() })
            }
            (None, Some(block)) => block.text += &format!("{line}\n"),
            (None, None) => {}
        }
    }
    blocks
}

/// Why a block is not run; None if it is.
fn needs(block: &Block) -> Result<Option<&'static str>, String> {
    let mut words = block.info.split_whitespace();
    match (words.next(), words.next()) {
        (Some("sh"), None) => Ok(None),
        (Some("sh"), Some(word)) => {
            let known = NEEDS.iter().find(|(name, _)| *name == word);
            known.map(|(_, why)| Some(*why)).ok_or_else(|| format!("`{word}` is not one of {NEEDS:?}"))
        }
        (Some(other), _) if OTHERS.contains(&other) => Ok(Some("")),
        _ => Err("say `sh`, `sh needs-...`, or a language that is no command, such as `text`".to_owned()),
    }
}

fn run(document: &str, block: &Block, directory: &Path) {
    let path = std::env::var("PATH").unwrap_or_default();
    let own = Path::new(PARSHALL).parent().expect("a directory").display();
    let mut command = Command::new("sh");
    command.args(["-e", "-c", &block.text]).current_dir(directory).env("PATH", format!("{own}:{path}"));
    let done = finish(&mut command);
    assert_eq!(done.code, Some(0), "{document}:{}: this block fails as it stands:\n{}{done:?}", block.line, block.text);
}

fn every_block_of(document: &str) {
    let text = std::fs::read_to_string(root().join(document)).expect("the document is there");
    let scratch = Scratch::new();
    let (mut left_out, mut commands): (BTreeMap<&str, usize>, usize) = (BTreeMap::new(), 0);
    for block in blocks(&text) {
        match needs(&block) {
            Ok(None) => {
                run(document, &block, &scratch.file(""));
                commands += 1;
            }
            Ok(Some("")) => {}
            Ok(Some(why)) => *left_out.entry(why).or_default() += 1,
            Err(why) => panic!("{document}:{}: {why}", block.line),
        }
    }
    assert!(commands > 0, "{document} has no block that is run");
    for (why, count) in left_out {
        skip(&format!("{count} command blocks of {document}"), &format!("they need {why}"));
    }
}

#[test]
fn the_readme_works_as_typed() {
    every_block_of(RUN[0]);
}

#[test]
fn the_guide_works_as_typed() {
    every_block_of(RUN[1]);
}

#[test]
fn the_tutorial_works_as_typed() {
    every_block_of(RUN[2]);
}

/// The targets of the links in a document, without those to other sites.
fn links(text: &str) -> Vec<String> {
    let target = |part: &str| part.split([')', ' ']).next().unwrap_or_default().to_owned();
    text.split("](").skip(1).map(target).filter(|to| !to.contains("://") && !to.starts_with('#')).collect()
}

/// docs/install.md is written beside the packages.
#[test]
fn links_lead_to_files() {
    let root = root();
    let docs = std::fs::read_dir(root.join("docs")).expect("it is there").map(|entry| entry.expect("an entry").path());
    let documents = docs.filter(|path| path.extension().is_some_and(|end| end == "md")).chain([root.join("README.md")]);
    for document in documents {
        let text = std::fs::read_to_string(&document).expect("text");
        for link in links(&text) {
            let file = link.split('#').next().unwrap_or_default();
            let there = document.parent().expect("a directory").join(file);
            assert!(there.exists() || file.ends_with("install.md"), "{}: {link}", document.display());
        }
    }
}

/// mdBook shows what SUMMARY.md lists, and nothing else.
#[test]
fn the_book_has_every_page() {
    let docs = root().join("docs");
    let summary = std::fs::read_to_string(docs.join("SUMMARY.md")).expect("the list of pages");
    for entry in std::fs::read_dir(&docs).expect("it is there") {
        let name = entry.expect("an entry").file_name().to_string_lossy().into_owned();
        let listed = !name.ends_with(".md") || name == "SUMMARY.md" || summary.contains(&format!("({name})"));
        assert!(listed, "docs/SUMMARY.md does not list {name}");
    }
}

/// The text between backticks at the begin of a heading of the page for troubleshooting is a part of a message of the code.
#[test]
fn the_messages_of_troubleshooting_are_those_of_the_code() {
    let page = std::fs::read_to_string(root().join("docs/troubleshooting.md")).expect("the page");
    let mut sources = String::new();
    let mut folders = vec![root().join("crates")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path()) {
            if entry.is_dir() && !entry.ends_with("tests") {
                folders.push(entry);
            } else if entry.extension().is_some_and(|end| end == "rs") {
                sources += &std::fs::read_to_string(entry).expect("text");
            }
        }
    }
    let headings: Vec<&str> = page.lines().filter_map(|line| line.strip_prefix("### `")).collect();
    assert!(headings.len() >= 20, "{headings:?}");
    for heading in headings {
        let message = heading.split('`').next().unwrap_or_default();
        // A word in capitals or an ellipsis stands for what differs.
        let parts = message.split('…').flat_map(|part| part.split("PORT")).flat_map(|part| part.split("NAME"));
        for part in parts.flat_map(|part| part.split("PID")).flat_map(|part| part.split("FILE")).map(str::trim) {
            assert!(part.is_empty() || sources.contains(part), "no message has `{part}`");
        }
    }
}

//! docs/kernels.md, drawn from the tables of this suite: what the tests have seen in the guests.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use parshall_bpf::diagnose::stand_ins;

use crate::expected::{self, Seen};
use crate::programs;

const HEAD: &str = "# Kernels

The features of parshall on the stock kernels of Debian, from Linux 5.10 on. This page is drawn from the files with which the tests compare
what they see in guests that run these kernels; [CONTRIBUTING.md](https://github.com/parshall/parshall/blob/main/CONTRIBUTING.md#kernels) says how to run one. `newest` is the kernel
of Debian unstable. `lockdown` is lockdown=confidentiality, `without tcp_diag` has a kernel without this module, and `without BTF` an empty
/sys/kernel/btf. `arm64` is a kernel of that architecture, emulated as all are; `16k` has pages of 16 KiB.
";

fn file() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/kernels.md")
}

fn row(first: &str, cells: impl Iterator<Item = String>) -> String {
    // A cell must not end the table.
    let cells: Vec<String> = cells.map(|cell| cell.replace('|', "\\|").replace('\n', " ")).collect();
    format!("| {} | {} |\n", first.replace('|', "\\|"), cells.join(" | "))
}

fn table(head: &str, machines: &[String], rows: impl Iterator<Item = String>) -> String {
    let rule = format!("|---|{}\n", "---|".repeat(machines.len()));
    row(head, machines.iter().cloned()) + &rule + &rows.collect::<String>()
}

/// The best programs in whose place this one is, which has the name that the kernel keeps.
fn in_place_of(kept: &str) -> String {
    let best: BTreeSet<String> =
        stand_ins().filter(|(name, _)| programs::kept(name) == kept).map(|(_, best)| format!("`{best}`")).collect();
    best.into_iter().collect::<Vec<_>>().join(", ")
}

fn page() -> String {
    let machines: Vec<String> =
        expected::machines().into_iter().filter(|machine| expected::was_seen(machine)).collect();
    let mut text = HEAD.to_owned();
    text +=
        "\n## What is checked\n\n`ok` is what the first column names. A number refers to the list below the table.\n\n";
    let mut notes: Vec<String> = Vec::new();
    let mut number = |note: String| {
        let n = notes.iter().position(|old| *old == note).unwrap_or_else(|| {
            notes.push(note);
            notes.len() - 1
        });
        n + 1
    };
    let mut cell = |check: &str, machine: &String| match expected::seen(machine, check) {
        Seen::Not => "–".to_owned(),
        Seen::Right => "ok".to_owned(),
        Seen::Differs(value) if !value.contains(' ') => value,
        Seen::Differs(value) => format!("as it must ({})", number(format!("`{value}`"))),
        Seen::Wrong(is, why) => format!("no ({})", number(format!("{why}: `{is}`"))),
    };
    let rows: Vec<String> = expected::checks()
        .into_iter()
        .filter(|(check, _)| machines.iter().any(|machine| !matches!(expected::seen(machine, check), Seen::Not)))
        .map(|(check, value)| row(&format!("{check}: {value}"), machines.iter().map(|machine| cell(&check, machine))))
        .collect();
    text += &table("check", &machines, rows.into_iter());
    text += "\n";
    for (n, note) in notes.iter().enumerate() {
        text += &format!("{}. {note}\n", n + 1);
    }
    let held = programs::golden();
    // The guests of arm64 do not list them.
    let machines: Vec<String> = machines.into_iter().filter(|machine| held.contains_key(machine)).collect();
    text += "\n## Programs\n\nThe BPF programs that the kernel holds while a process is observed, by the rung of the observation. The kernel keeps 15 \
             characters of a name. Where the last column names a program, the one of the row is loaded on kernels that refuse that.\n\n";
    let all: BTreeSet<&String> = held.values().flat_map(|held| &held.programs).collect();
    let of = |machine: &String| held.get(machine).cloned().unwrap_or_default();
    let rungs = row("rung", machines.iter().map(|machine| of(machine).rung).chain([String::new()]));
    let has = |machine: &String, name: &String| if of(machine).programs.contains(name) { "x" } else { "" }.to_owned();
    let programs = all.iter().map(|name| {
        let cells = machines.iter().map(|machine| has(machine, name));
        row(&format!("`{name}`"), cells.chain([in_place_of(name)]))
    });
    let columns: Vec<String> = machines.iter().cloned().chain(["in place of".to_owned()]).collect();
    text += &table("program", &columns, std::iter::once(rungs).chain(programs));
    text += "\n## What an observation says that it cannot see\n";
    for machine in machines.iter().filter(|machine| !of(machine).blind.is_empty()) {
        text += &format!("\n{machine}:\n\n");
        of(machine).blind.iter().for_each(|line| text += &format!("- {line}\n"));
    }
    text
}

#[test]
fn the_page_is_drawn_from_what_was_seen() {
    let page = page();
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(file(), page).unwrap();
        return;
    }
    let documented = std::fs::read_to_string(file()).unwrap_or_default();
    assert!(documented == page, "docs/kernels.md differs from the tables of this suite; BLESS=1 writes it");
}

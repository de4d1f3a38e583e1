//! Rules about several files: each cause has documentation and a fault, and crates keep the invariants of ARCHITECTURE.md.
use std::collections::BTreeMap;

/// The directory of the causes; one file or directory each.
const CAUSES: &str = "crates/core/src/judge/cause/";
/// Files in that directory that are not causes.
const NOT_CAUSES: [&str; 4] = ["mod", "base", "common", "tests"];
/// The documentation of the causes, with a row for each.
const CAUSE_DOCS: &str = "docs/causes.md";
/// The faults of the lab, and the docket's cases of real programs with known causes. Each cause needs at least one of either.
const FAULTS: &str = "faults/";
const DOCKET: &str = "bench/docket/cases/";
/// Crates that must hold `#![forbid(unsafe_code)]`, by their root file.
const SAFE_ROOTS: [&str; 11] = [
    "crates/evidence/src/lib.rs",
    "crates/core/src/lib.rs",
    "crates/host/src/lib.rs",
    "crates/diagnose/src/lib.rs",
    "crates/relay/src/lib.rs",
    "crates/sockets/src/lib.rs",
    "crates/tunnel/src/lib.rs",
    "crates/lab/src/lib.rs",
    "crates/parshall/src/main.rs",
    "crates/testkit/src/lib.rs",
    "xtask/src/main.rs",
];
/// The permitted dependencies (beside dev-dependencies) of crates that must not do I/O.
const PURE: [(&str, &[&str]); 2] = [
    ("crates/evidence/Cargo.toml", &["serde"]),
    (
        "crates/core/Cargo.toml",
        &[
            "arc-swap",
            "base64",
            "blake2",
            "chacha20poly1305",
            "crc",
            "fastrand",
            "hdrhistogram",
            "hmac",
            "ipnet",
            "parshall-evidence",
            "ring",
            "serde",
            "strsim",
            "subtle",
            "thiserror",
            "toml",
            "x25519-dalek",
            "zeroize",
        ],
    ),
];

/// Adds complaints, and returns the checks that were skipped, with the reason.
pub fn check(files: &[(String, String)], complaints: &mut Vec<String>) -> Vec<String> {
    let files: BTreeMap<&str, &str> = files.iter().map(|(p, t)| (p.as_str(), t.as_str())).collect();
    for root in SAFE_ROOTS {
        if files.get(root).is_some_and(|t| !t.contains("#![forbid(unsafe_code)]")) {
            complaints.push(format!("{root}: `#![forbid(unsafe_code)]` is missing"));
        }
    }
    for (manifest, permitted) in PURE {
        let dependencies = files.get(manifest).map(|t| dependencies(t)).unwrap_or_default();
        for name in dependencies.iter().filter(|d| !permitted.contains(&d.as_str())) {
            complaints.push(format!("{manifest}: depends on {name}; this crate may use only {}", permitted.join(", ")));
        }
    }
    causes(&files, complaints)
}

/// Checks that every cause has a row in the docs, and a fault or a case of the docket.
fn causes(files: &BTreeMap<&str, &str>, complaints: &mut Vec<String>) -> Vec<String> {
    let mut skipped = Vec::new();
    let ids: Vec<String> = files.keys().filter_map(|p| cause_id(p)).collect();
    if ids.is_empty() {
        skipped.push(format!("{CAUSES} does not exist yet"));
        return skipped;
    }
    let docs = files.get(CAUSE_DOCS).copied().unwrap_or("");
    let faults: Vec<&str> = files.iter().filter(|(p, _)| p.starts_with(FAULTS)).map(|(_, t)| *t).collect();
    let cases: Vec<&str> = files.iter().filter(|(p, _)| p.starts_with(DOCKET)).map(|(_, t)| *t).collect();
    if faults.is_empty() {
        skipped.push(format!("{FAULTS} does not exist yet, so no fault can show a cause"));
    }
    for id in &ids {
        if !docs.lines().any(|l| l.starts_with(&format!("| `{id}`"))) {
            complaints.push(format!("{CAUSE_DOCS}: no row for the cause `{id}`"));
        }
        let is_fault = faults.iter().any(|t| t.contains(&format!("cause = \"{id}\"")));
        if !faults.is_empty() && !is_fault && !cases.iter().any(|t| expects(t, id)) {
            complaints.push(format!("{FAULTS} and {DOCKET}: no fault and no case whose true cause is \"{id}\""));
        }
    }
    skipped
}

/// Whether the line `causes = ["id", ...]` of a case has this id.
fn expects(case: &str, id: &str) -> bool {
    case.lines().any(|l| l.starts_with("causes = [") && l.contains(&format!("\"{id}\"")))
}

/// The id of a cause from the name of its file or directory below `CAUSES`.
fn cause_id(path: &str) -> Option<String> {
    let name = path.strip_prefix(CAUSES)?;
    let name = match name.split_once('/') {
        Some((folder, "mod.rs")) => folder,
        Some(_) => return None,
        None => name.strip_suffix(".rs")?,
    };
    if NOT_CAUSES.contains(&name) { None } else { Some(name.replace('_', "-")) }
}

/// The names in `[dependencies]` of a manifest.
fn dependencies(manifest: &str) -> Vec<String> {
    let section = manifest.lines().skip_while(|l| l.trim() != "[dependencies]").skip(1);
    section
        .take_while(|l| !l.starts_with('['))
        .filter(|l| !l.trim().is_empty() && !l.starts_with('#'))
        .map(|l| l.split(['.', '=', ' ']).next().unwrap_or("").to_owned())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(files: &[(&str, &str)]) -> (Vec<String>, Vec<String>) {
        let files: Vec<(String, String)> = files.iter().map(|(p, t)| (p.to_string(), t.to_string())).collect();
        let mut complaints = Vec::new();
        let skipped = check(&files, &mut complaints);
        (complaints, skipped)
    }

    #[test]
    fn a_cause_needs_a_row_and_a_fault() {
        let cause = ("crates/core/src/judge/cause/cork_held.rs", "");
        let rest = ("crates/core/src/judge/cause/mod.rs", "");
        let (complaints, skipped) = run(&[cause, rest]);
        assert_eq!((complaints.len(), skipped.len()), (1, 1), "{complaints:?} {skipped:?}");
        let other = ("faults/x.toml", "cause = \"packet-loss\"\n");
        assert_eq!(run(&[cause, rest, other]).0.len(), 2);
        let row = ("docs/causes.md", "| `cork-held` | ... |\n");
        let fault = ("faults/cork.toml", "cause = \"cork-held\"\n");
        assert_eq!(run(&[cause, rest, row, fault]), (vec![], vec![]));
        let case = ("bench/docket/cases/c-cork.toml", "causes = [\"nagle-hold\", \"cork-held\"]\n");
        assert_eq!(run(&[cause, rest, row, other, case]), (vec![], vec![]));
    }

    #[test]
    fn dependencies_of_crates_without_io_are_checked() {
        let bad = (
            "crates/core/Cargo.toml",
            "[package]\nname = \"x\"\n\n[dependencies]\nserde.workspace = true\nlibc = \"0.2\"\n\n[dev-dependencies]\nproptest = \"1\"\n",
        );
        let (complaints, _) = run(&[bad]);
        assert_eq!(complaints.len(), 1, "{complaints:?}");
        assert!(complaints[0].contains("libc"));
        let (complaints, _) = run(&[("crates/core/src/lib.rs", "//! x\n")]);
        assert!(complaints[0].contains("forbid"), "{complaints:?}");
    }
}

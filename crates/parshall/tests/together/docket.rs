//! Judges a recorded capture of each case of bench/docket: real programs with known causes. Needs neither root nor the programs.
//!
//! `DOCKET_RUNS=DIR cargo test -p parshall --test together docket` takes the missing recordings from a directory that `bench/docket/run --into
//! DIR` has filled: of each case the first capture whose verdict is as expected, before and after it was thinned.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Once;

use crate::common;
use crate::common::thin::thinned;
use crate::judged;
use parshall_core::judge::judge;
use parshall_evidence::Report;
use serde::Deserialize;

/// The most bytes of one file.
const BYTES_MAX: usize = 60_000;
/// The zstd level of recordings.
const LEVEL: i32 = 19;

/// The part of a case file that the test needs.
#[derive(Debug, Deserialize)]
struct Case {
    #[serde(skip)]
    name: String,
    /// The round of unseen cases that it belongs to: those have a recording from the day on that their verdict is right.
    #[serde(default)]
    round: u32,
    expect: Expect,
}

#[derive(Debug, Deserialize)]
struct Expect {
    status: Vec<String>,
    #[serde(default)]
    causes: Vec<String>,
    #[serde(default)]
    hop: Vec<Hop>,
    leaf: Option<Hop>,
}

#[derive(Debug, Deserialize)]
struct Hop {
    process: String,
    waits_on: Option<String>,
    cause: Option<String>,
}

fn place(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

fn cases() -> Vec<Case> {
    let files = fs::read_dir(place("../../bench/docket/cases")).unwrap().map(|entry| entry.unwrap().path());
    let read = |path: PathBuf| {
        let case: Case =
            toml::from_str(&fs::read_to_string(&path).unwrap()).unwrap_or_else(|e| panic!("{path:?}: {e}"));
        Case { name: path.file_stem().unwrap().to_str().unwrap().to_owned(), ..case }
    };
    let mut cases: Vec<Case> = files.filter(|path| path.extension().is_some_and(|e| e == "toml")).map(read).collect();
    cases.sort_by(|a, b| a.name.cmp(&b.name));
    cases
}

fn recording(case: &Case) -> PathBuf {
    place("tests/docket").join(format!("{}.json.zst", case.name))
}

/// The error of the verdict of a report, if there is one.
fn complaint(case: &Case, report: &Report) -> Option<String> {
    let status = serde_json::to_value(report.verdict.status).unwrap().as_str().unwrap().to_owned();
    let cause = report.verdict.cause.clone().unwrap_or_default();
    let expect = &case.expect;
    if !expect.status.contains(&status) || (status == "cause" && !expect.causes.contains(&cause)) {
        return Some(format!("{}: {status} {cause}, not {:?} {:?}", case.name, expect.status, expect.causes));
    }
    let chain = report.chain.clone().unwrap_or_default();
    for (n, want) in expect.hop.iter().enumerate() {
        let hop = chain.hops.get(n).cloned().unwrap_or_default();
        let is_next = want.waits_on.as_ref().is_none_or(|next| hop.waits_on.starts_with(next));
        if !hop.process.starts_with(&want.process) || !is_next {
            return Some(format!("{}: hop {n} is {hop:?}, not {want:?}", case.name));
        }
    }
    let leaf = &chain.leaf;
    let is_right = |want: &Hop| {
        leaf.process.starts_with(&want.process) && want.cause.as_ref().is_none_or(|cause| leaf.cause == *cause)
    };
    let wrong = expect.leaf.as_ref().filter(|want| !is_right(want));
    wrong.map(|want| format!("{}: the leaf is {leaf:?}, not {want:?}", case.name))
}

/// Takes the recording of a case from the runs in a directory.
fn take(case: &Case, runs: &Path) {
    for run in 0..20 {
        let file = runs.join(format!("{}-{run}.capture", case.name));
        if !file.exists() {
            continue;
        }
        let whole = common::capture(&file);
        if complaint(case, &judge(&whole)).is_some() {
            continue;
        }
        let thin = thinned(whole);
        let packed = zstd::encode_all(&serde_json::to_vec(&thin).unwrap()[..], LEVEL).unwrap();
        if complaint(case, &judge(&thin)).is_none() && packed.len() <= BYTES_MAX {
            return fs::write(recording(case), packed).unwrap();
        }
    }
}

/// The names of the cases that have a recording, and its file.
pub fn files() -> impl Iterator<Item = (String, PathBuf)> {
    take_missing();
    cases()
        .into_iter()
        .map(|case| (recording(&case), case))
        .filter(|(file, _)| file.exists())
        .map(|(file, case)| (case.name, file))
}

fn take_missing() {
    static TAKEN: Once = Once::new();
    TAKEN.call_once(|| {
        let Some(runs) = std::env::var_os("DOCKET_RUNS") else { return };
        let missing = cases().into_iter().filter(|case| !recording(case).exists());
        missing.for_each(|case| take(&case, Path::new(&runs)));
    });
}

#[test]
fn each_recording_gets_the_verdict_of_its_case() {
    let wrong: Vec<String> = judged::of_docket()
        .zip(cases().iter().filter(|case| recording(case).exists()))
        .filter_map(|(judged, case)| {
            assert_eq!(judged.name, case.name);
            let old = (!judged.has_timeline).then(|| format!("{}: it has no timeline", case.name));
            complaint(case, &judged.report).or(old)
        })
        .collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn each_case_has_a_recording() {
    take_missing();
    let missing = cases().into_iter().filter(|case| case.round == 0 && !recording(case).exists());
    let missing: Vec<String> = missing.map(|case| case.name).collect();
    assert!(missing.is_empty(), "make them with bench/docket/run: {missing:?}");
}

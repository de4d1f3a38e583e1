//! The BPF programs that a machine holds while a process is observed, compared with `programs.toml`, which `BLESS=1` rewrites.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, PoisonError};

use libbpf_rs::query::ProgInfoIter;
use parshall_bpf::diagnose::best_programs;
use serde::{Deserialize, Serialize};

use crate::checks::{Values, document};
use crate::expected::{Machine, path};
use crate::guest::Reports;

/// The part of a program's name that the kernel keeps (BPF_OBJ_NAME_LEN).
pub fn kept(name: &str) -> &str {
    &name[..name.len().min(15)]
}

/// The evidence that an observation has on a machine.
#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Held {
    /// The rung of the report.
    pub rung: String,
    /// Programs, with the names that the kernel gives them: at most 15 characters.
    pub programs: BTreeSet<String>,
    /// The gaps that the report explains by the kernel.
    pub blind: Vec<String>,
}

const HEAD: &str = "# The BPF programs that each machine of expected.toml holds during an observation, and what the report says that it cannot see.
# `BLESS=1 cargo test -p parshall --test kernels -- --include-ignored` rewrites this file.
";

/// Those of all machines.
pub fn golden() -> BTreeMap<String, Held> {
    toml::from_str(&std::fs::read_to_string(path("programs.toml")).unwrap()).unwrap()
}

/// Writes the names of the programs that the kernel holds to the file that is named by `LIST`, until it is killed. They are those of
/// parshall: nothing else in a guest loads any. Only what was the same for a second counts, as programs are loaded one by one, and
/// all are gone at once where one is refused.
#[test]
#[ignore = "not a test: a program for the guests"]
fn list() {
    let Some(file) = std::env::var_os("LIST") else { return };
    let mut before = BTreeSet::new();
    loop {
        let names: BTreeSet<String> =
            ProgInfoIter::default().map(|info| info.name.to_string_lossy().into_owned()).collect();
        if !names.is_empty() && names == before {
            let text: String = names.iter().map(|name| format!("{name}\n")).collect();
            std::fs::write(&file, text).unwrap();
        }
        before = names;
        std::thread::sleep(std::time::Duration::from_secs(1));
    }
}

/// Whether doctor says why the best programs of the rung btf are not held: it names each of them, or it promises no more than the rung
/// that was had and says why.
pub fn explained(reports: &Reports, values: &mut Values) {
    let doctor = document(reports, "doctor").unwrap_or_default();
    let had = document(reports, "run/nagle-delayed-ack").unwrap_or_default();
    let held: BTreeSet<&str> = reports["programs"].stdout.lines().collect();
    let said = doctor.to_string();
    let unnamed: Vec<&str> =
        best_programs().into_iter().filter(|name| !held.contains(kept(name)) && !said.contains(name)).collect();
    let lower = doctor["rung"] != "btf" && doctor["rung"] == had["rung"];
    let explained = lower && doctor["why_not_higher"].as_array().is_some_and(|why| !why.is_empty());
    let value = match unnamed.len() {
        0 => "named".to_owned(),
        _ if explained => "named".to_owned(),
        n => format!("{n} are not"),
    };
    values.insert("doctor: programs that are not loaded".into(), value);
}

pub fn compare(machine: &Machine, reports: &Reports) {
    static ONE_WRITES: Mutex<()> = Mutex::new(());
    let report = document(reports, "run/nagle-delayed-ack");
    let report = report.unwrap_or_else(|why| panic!("the observation on the machine {}: {why}", machine.name));
    // Others have figures that differ from run to run.
    const OF_THE_KERNEL: [&str; 4] = ["not on the ", "the kernel (before", "bpf(2)", "/sys/"];
    let blind = report["blind"].as_array().into_iter().flatten().filter_map(|line| line.as_str());
    let blind = blind.filter(|line| OF_THE_KERNEL.iter().any(|part| line.contains(part)));
    let held = Held {
        rung: report["rung"].as_str().unwrap_or("none").to_owned(),
        programs: reports["programs"].stdout.lines().map(str::to_owned).collect(),
        blind: blind.map(str::to_owned).collect(),
    };
    if std::env::var_os("BLESS").is_some() {
        let _one = ONE_WRITES.lock().unwrap_or_else(PoisonError::into_inner);
        let mut all = golden();
        all.insert(machine.name.clone(), held);
        std::fs::write(path("programs.toml"), format!("{HEAD}\n{}", toml::to_string(&all).unwrap())).unwrap();
        return;
    }
    let golden = golden().remove(&machine.name).unwrap_or_default();
    assert_eq!(held, golden, "the programs on the machine {}; BLESS=1 rewrites programs.toml", machine.name);
}

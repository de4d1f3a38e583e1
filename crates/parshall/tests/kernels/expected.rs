//! The reports that the machines must give (`expected.toml`), those that they give (`seen.toml`, rewritten by `BLESS=1`), and why both differ
//! (`shortfalls.toml`).

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use serde::Deserialize;

use crate::checks::Values;

/// A kernel with the circumstances in which it is booted.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Machine {
    #[serde(skip)]
    pub name: String,
    /// Its name for `scripts/kernels`.
    pub kernel: String,
    /// Options of `scripts/kernels boot`.
    #[serde(default)]
    pub boot: Vec<String>,
    /// A difference by nature: the check and its value.
    #[serde(default)]
    pub differs: BTreeMap<String, String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Expected {
    /// The check and its value on all machines.
    everywhere: BTreeMap<String, String>,
    machine: BTreeMap<String, Machine>,
}

/// The machine, the check and its value, as the last run with `BLESS=1` has seen it.
type SeenFile = BTreeMap<String, BTreeMap<String, String>>;

const HEAD: &str = "# The reports of the machines of expected.toml. `BLESS=1 cargo test -p parshall --test kernels -- --include-ignored` rewrites those of the
# machines that it boots. Where one is not the expected report, shortfalls.toml has the reason.
";

pub fn path(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/kernels").join(name)
}

fn expected() -> Expected {
    toml::from_str(include_str!("expected.toml")).unwrap()
}

/// Why a value is not the expected one, by machine and check.
fn shortfalls() -> SeenFile {
    toml::from_str(include_str!("shortfalls.toml")).unwrap()
}

fn all_seen() -> SeenFile {
    toml::from_str(&std::fs::read_to_string(path("seen.toml")).unwrap()).unwrap()
}

/// The names of the machines.
pub fn machines() -> Vec<String> {
    expected().machine.into_keys().collect()
}

pub fn machine(name: &str) -> Machine {
    let mut machine = expected().machine.remove(name).unwrap();
    name.clone_into(&mut machine.name);
    machine
}

impl Machine {
    /// Its kernel and its programs are of arm64.
    pub fn is_arm64(&self) -> bool {
        self.kernel.contains("arm64")
    }
}

impl Expected {
    /// The value that a machine must report. None for a check that has no line.
    fn right(&self, machine: &str, check: &str) -> Option<&String> {
        self.machine[machine].differs.get(check).or_else(|| self.everywhere.get(check))
    }
}

/// The value of a check on a machine.
pub enum Seen {
    /// The check was not made there.
    Not,
    Right,
    /// Right there by nature.
    Differs(String),
    /// A known shortfall, and why.
    Wrong(String, String),
}

pub fn seen(machine: &str, check: &str) -> Seen {
    let Some(value) = all_seen().remove(machine).and_then(|mut seen| seen.remove(check)) else { return Seen::Not };
    let expected = expected();
    if expected.right(machine, check) != Some(&value) {
        let why = shortfalls().remove(machine).and_then(|mut known| known.remove(check)).unwrap_or_default();
        return Seen::Wrong(value, why);
    }
    if expected.everywhere.get(check) == Some(&value) { Seen::Right } else { Seen::Differs(value) }
}

/// Whether anything was seen on a machine.
pub fn was_seen(machine: &str) -> bool {
    all_seen().contains_key(machine)
}

/// The checks and the values that are right on all machines.
pub fn checks() -> Vec<(String, String)> {
    expected().everywhere.into_iter().collect()
}

/// Compares what a machine has reported with what it reported before. The expectations are compared with the latter, by a test that
/// needs no guest.
pub fn compare(machine: &Machine, values: &Values) {
    static ONE_WRITES: Mutex<()> = Mutex::new(());
    for (check, value) in values {
        println!("{}: {check}: {value}", machine.name);
    }
    if std::env::var_os("BLESS").is_some() {
        let _one = ONE_WRITES.lock().unwrap_or_else(PoisonError::into_inner);
        let mut all = all_seen();
        all.entry(machine.name.clone()).or_default().extend(values.clone());
        std::fs::write(path("seen.toml"), format!("{HEAD}\n{}", toml::to_string(&all).unwrap())).unwrap();
        return;
    }
    let (before, expected) = (all_seen().remove(&machine.name).unwrap_or_default(), expected());
    let mut changed = Vec::new();
    for (check, value) in values {
        let right = expected.right(&machine.name, check);
        // A value that was not seen before must be right.
        let known = before.get(check).or(right);
        // A wrong verdict differs from run to run. That it has become right is news all the same.
        let fault = check.starts_with("fault ");
        let still_wrong = fault && known != right && Some(value) != right;
        // On a faster host the slices see more.
        let surer = fault && Some(value) == right && known.map(|known| cause(known)) == Some(cause(value));
        if known != Some(value) && !still_wrong && !surer {
            let [right, known] = [right, known].map(|text| text.map_or("nothing", String::as_str));
            changed.push(format!("{check}: {value}\n  before: {known}\n  expected: {right}"));
        }
    }
    let what = "if that is right, BLESS=1 rewrites seen.toml";
    assert!(changed.is_empty(), "the machine {} reports otherwise; {what}:\n{}", machine.name, changed.join("\n"));
}

/// The cause of a verdict, which its confidence follows.
fn cause(verdict: &str) -> &str {
    verdict.split(',').next().unwrap_or_default()
}

#[test]
fn what_was_seen_is_expected_or_has_a_reason() {
    let (expected, seen, mut shortfalls) = (expected(), all_seen(), shortfalls());
    let mut wrong = Vec::new();
    for (machine, checks) in &seen {
        for (check, value) in checks {
            let why = shortfalls.get_mut(machine).and_then(|known| known.remove(check));
            let Some(right) = expected.right(machine, check) else {
                wrong.push(format!("{machine}: expected.toml has no {check}"));
                continue;
            };
            match (right == value, why) {
                (true, None) => {}
                (false, Some(why)) if !why.is_empty() => {}
                (true, Some(_)) => wrong.push(format!("{machine}: {check} is right, and shortfalls.toml has it")),
                (false, _) => wrong.push(format!("{machine}: {check}: {value}, expected {right}, without a reason")),
            }
        }
    }
    shortfalls.retain(|_, known| !known.is_empty());
    assert!(wrong.is_empty() && shortfalls.is_empty(), "{}\nnot seen: {shortfalls:?}", wrong.join("\n"));
    assert!(seen.keys().all(|machine| expected.machine.contains_key(machine)));
}

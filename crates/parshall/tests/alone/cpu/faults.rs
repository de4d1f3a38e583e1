//! Faults and controls of the lab, with the real binary, processes and sockets. The recordings of all of them are judged in the
//! suite `recordings`; so `make test` runs those that show each probe and each state of the ledgers at work, `make test-all` every one.
//!
//! Other work on the host can spoil a single run of some seconds. So a run with a wrong verdict is repeated up to two times, and
//! two of three must be right. A wrong run does not count if others used the CPUs meanwhile, because a quota or a receive window
//! then fills up that should not, and requests do wait for a CPU. `bench/accuracy` measures the share of right verdicts.

use std::collections::VecDeque;
use std::sync::Mutex;

use crate::common::{self, OTHERS_MAX, Recipe, parshall, recipes};

/// Right runs that a recipe needs, of three.
const RIGHT_MIN: usize = 2;
const RUNS_MAX: usize = 3;
/// Spoiled runs of one recipe before it is skipped.
const SPOILED_MAX: usize = 2;

/// The faults of `make test`.
const FAULTS: [&str; 18] = [
    // States of flows.
    "app-limited",
    "cork-held",
    "local-shaper",
    "nagle-delayed-ack",
    "nagle-hold",
    "packet-loss-thin",
    "peer-window-limited",
    "slow-reader",
    "sndbuf-limited",
    // States of threads.
    "cpu-throttled",
    "timer-wait",
    "user-cpu-bound",
    // Events: connections, listeners, descriptors, datagrams.
    "accept-queue-overflow",
    "connection-per-request",
    "fd-limit",
    "resets",
    "syn-loss",
    "udp-rcvbuf-overflow",
];
/// The controls of `make test`.
const CONTROLS: [&str; 3] = ["nginx", "paced-client", "python-asyncio"];

/// Recipes whose processes and observation use less than a fifth of a CPU, so that several can run at once.
const IDLE: [&str; 14] = [
    "app-limited",
    "bottleneck-twin-unfilled",
    "client-pauses",
    "cork-held",
    "nagle-delayed-ack",
    "nagle-hold",
    "nagle-hold-twin-nodelay",
    "packet-loss-far",
    "packet-loss-thin",
    "paced-client",
    "peer-window-limited",
    "quota-not-reached",
    "slow-reader",
    "timer-wait",
];
const IDLE_AT_ONCE: usize = 4;

enum Outcome {
    Right(String),
    Wrong(String),
    Skipped(String),
}

fn run(recipe: &Recipe) -> Outcome {
    let scratch = common::Scratch::new();
    let page = scratch.file("page.html");
    let name = page.to_str().expect("UTF-8");
    let done = parshall(&["lab", "run", &recipe.name, "--for", "1200ms", "--format", "json", "--html", name]);
    let Ok(result) = serde_json::from_str::<serde_json::Value>(&done.stdout) else {
        return Outcome::Wrong(format!("exit code {:?}: {}", done.code, done.stderr.trim()));
    };
    assert_eq!(result["schema"], "parshall.lab-run/1");
    if result["status"] == "skipped" {
        return Outcome::Skipped(result["skipped"].as_str().unwrap().to_owned());
    }
    let verdict = &result["report"]["verdict"];
    // The report is judged here independently, and the lab's `matched` must agree.
    let right = match &recipe.cause {
        Some(cause) => verdict["status"] == "cause" && verdict["cause"] == **cause,
        None => verdict["status"] != "cause" && verdict.get("cause").is_none(),
    };
    assert_eq!(result["matched"], right, "{result}");
    let page = std::fs::read_to_string(&page).expect("a page");
    assert!(page.contains("<main") && page.ends_with("</html>"), "{name}");
    assert_eq!(done.code, Some(i32::from(!right)), "{result}");
    let got = format!("{}, {}", result["got"].as_str().unwrap(), verdict["confidence"].as_str().unwrap());
    if right { Outcome::Right(got) } else { Outcome::Wrong(format!("{got}: {}", verdict["summary"])) }
}

/// Runs a recipe, and repeats a wrong run that other programs have spoiled.
fn run_undisturbed(recipe: &Recipe, spoiled: &mut usize) -> Outcome {
    loop {
        let (outcome, others) = common::cpu_of_others_during(|| run(recipe));
        if !matches!(outcome, Outcome::Wrong(_)) || others <= OTHERS_MAX {
            return outcome;
        }
        *spoiled += 1;
        if *spoiled > SPOILED_MAX {
            return Outcome::Skipped(format!("other programs use {:.0} % of the CPUs", others * 100.0));
        }
    }
}

/// Whether the first run, or two of three, are right, and the line of the table.
fn judge(recipe: &Recipe) -> (bool, String) {
    let (mut right, mut spoiled, mut lines) = (0, 0, Vec::new());
    while lines.len() < RUNS_MAX {
        match run_undisturbed(recipe, &mut spoiled) {
            Outcome::Right(what) => {
                right += 1;
                lines.push(what);
                // If the first run is wrong, the second and third must be right.
                if lines.len() == 1 || right == RIGHT_MIN {
                    break;
                }
            }
            Outcome::Wrong(what) => lines.push(format!("WRONG {what}")),
            Outcome::Skipped(why) => {
                common::skip(&format!("lab run {}", recipe.name), &why);
                right = RIGHT_MIN;
                lines.push(format!("skipped: {why}"));
                break;
            }
        }
        if lines.len() - right > RUNS_MAX - RIGHT_MIN {
            break;
        }
    }
    let enough = right >= RIGHT_MIN || (right == 1 && lines.len() == 1);
    let expected = recipe.cause.as_deref().unwrap_or("not accused");
    let mark = if enough { "ok  " } else { "FAIL" };
    (enough, format!("{mark} {:<24} {expected:<20} {}", recipe.name, lines.join(" | ")))
}

/// Runs the recipes of a directory whose name is `wanted`, and prints the table if one of them is wrong.
fn all_right(directory: &str, wanted: impl Fn(&str) -> bool) {
    let wanted = recipes(directory).into_iter().filter(|recipe| wanted(&recipe.name));
    let (idle, busy): (VecDeque<_>, VecDeque<_>) = wanted.partition(|recipe| IDLE.contains(&recipe.name.as_str()));
    let judged = Mutex::new(Vec::new());
    for (queue, at_once) in [(Mutex::new(idle), IDLE_AT_ONCE), (Mutex::new(busy), 1)] {
        std::thread::scope(|scope| {
            for _ in 0..at_once {
                scope.spawn(|| {
                    loop {
                        let Some(recipe) = queue.lock().unwrap().pop_front() else { return };
                        let result = judge(&recipe);
                        judged.lock().unwrap().push(result);
                    }
                });
            }
        });
    }
    let judged = judged.into_inner().unwrap();
    assert!(!judged.is_empty(), "no recipe of these names");
    let table: Vec<&str> = judged.iter().map(|(_, line)| line.as_str()).collect();
    let table = table.join("\n");
    println!("{table}");
    assert!(judged.iter().all(|(right, _)| *right), "\n{table}");
}

#[test]
fn a_fault_of_each_probe_and_state_is_named() {
    if common::btf("faults of the lab") {
        all_right("faults", |name| FAULTS.contains(&name));
    }
}

#[test]
#[ignore = "make test-all"]
fn the_other_faults_are_named() {
    if common::btf("other faults of the lab") {
        all_right("faults", |name| !FAULTS.contains(&name));
    }
}

#[test]
fn healthy_programs_are_not_accused() {
    if common::btf("controls of the lab") {
        all_right("faults/controls", |name| CONTROLS.contains(&name));
    }
}

#[test]
#[ignore = "make test-all"]
fn the_other_controls_are_not_accused() {
    if common::btf("other controls of the lab") {
        all_right("faults/controls", |name| !CONTROLS.contains(&name));
    }
}

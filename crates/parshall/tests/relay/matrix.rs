//! Every case against every engine, and the table of what was seen in `docs/relay-conformance.md`.
use std::collections::{BTreeMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::bed::{Bed, Plan, Refused, end_all};
use super::net::{Tape, Target, exchange};
use crate::common::skip;

/// The engines; one that the relay refuses is reported and left out.
pub const ENGINES: [&str; 5] = ["copy", "splice", "auto", "uring", "sockmap"];
/// Cases at a time: most of them wait.
const LANES: usize = 8;
/// A case that takes longer is stuck. A wait within a case gives up earlier.
const STUCK: Duration = Duration::from_secs(90);

/// A behaviour.
#[derive(Clone, Copy)]
pub struct Case {
    /// What the relay does, in a line; also its row in the table.
    pub name: &'static str,
    /// Whether it does; panics if not.
    pub run: fn(&Bed),
}

/// Behaviours of one topic.
pub struct Topic {
    pub title: &'static str,
    pub cases: &'static [Case],
}

/// What was seen, by behaviour and engine. None: not run.
pub type Seen = BTreeMap<(&'static str, &'static str), Result<(), String>>;

/// Whether the relay takes this engine and uses it; if not, why.
pub fn refusal(engine: &'static str) -> Option<String> {
    let target = Target::new();
    let plan = Plan { targets: vec![target.place.clone()], ..Plan::default() };
    let relay = match Bed::new(engine).try_start(plan) {
        Ok(relay) => relay,
        Err(Refused(why)) => return Some(why),
    };
    let (client, server) = relay.pair(&target);
    exchange(&client, &server, &mut Tape::new(1), 100_000);
    let needed = match engine {
        "uring" => "io_uring",
        "sockmap" => "bpf-map",
        _ => return None,
    };
    // Where it is not to be had, bytes are copied: that is right, and says nothing of this engine.
    let uses = relay.descriptors().iter().any(|d| d.contains(needed));
    (!uses).then(|| format!("the relay takes it, but holds no {needed} and copies"))
}

/// Runs all cases whose name contains `only`.
pub fn run(topics: &[Topic], engines: &[&'static str], only: &str) -> Seen {
    let cases = topics.iter().flat_map(|t| t.cases).filter(|c| c.name.contains(only));
    let jobs: VecDeque<(Case, &'static str)> = cases.flat_map(|c| engines.iter().map(|e| (*c, *e))).collect();
    let (jobs, seen) = (Mutex::new(jobs), Mutex::new(Seen::new()));
    std::thread::scope(|scope| {
        for _ in 0..LANES {
            scope.spawn(|| {
                loop {
                    let Some((case, engine)) = jobs.lock().unwrap_or_else(PoisonError::into_inner).pop_front() else {
                        return;
                    };
                    let result = watched(case, engine);
                    seen.lock().unwrap_or_else(PoisonError::into_inner).insert((case.name, engine), result);
                }
            });
        }
    });
    let mut seen = seen.into_inner().unwrap_or_else(PoisonError::into_inner);
    // Once more and alone what failed beside others: some cases count what a busy machine does late.
    let failed: Vec<_> = seen.iter().filter(|(_, result)| result.is_err()).map(|(key, _)| *key).collect();
    for (name, engine) in failed {
        if let Some(case) = topics.iter().flat_map(|t| t.cases).find(|c| c.name == name) {
            seen.insert((name, engine), watched(*case, engine));
        }
    }
    seen
}

/// Runs a case under a watchdog.
fn watched(case: Case, engine: &'static str) -> Result<(), String> {
    let begun = Instant::now();
    let (tell, told) = channel();
    let bed = Bed::new(engine);
    let pids = bed.pids();
    std::thread::spawn(move || {
        let result = catch_unwind(AssertUnwindSafe(|| (case.run)(&bed)));
        drop(bed);
        let _ = tell.send(result.map_err(|panic| message(&*panic)));
    });
    let result = await_it(&told, STUCK).unwrap_or_else(|| {
        end_all(&pids);
        // With the relay gone, what the case waits for fails.
        let _ = await_it(&told, STUCK);
        Err("stuck".to_owned())
    });
    if std::env::var_os("RELAY_TIMES").is_some() {
        eprintln!("{:6} ms  {engine:8} {}", begun.elapsed().as_millis(), case.name);
    }
    if let Err(why) = &result {
        eprintln!("FAIL  {engine:8} {}: {why}", case.name);
    }
    result
}

fn await_it(told: &Receiver<Result<(), String>>, time: Duration) -> Option<Result<(), String>> {
    match told.recv_timeout(time) {
        Ok(result) => Some(result),
        Err(RecvTimeoutError::Timeout) => None,
        Err(RecvTimeoutError::Disconnected) => Some(Err("it ended without a word".to_owned())),
    }
}

fn message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).to_owned())).unwrap_or_else(|| "a panic".to_owned())
}

fn file() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/relay-conformance.md"))
}

/// The cells of the table in the documents, by behaviour and engine.
fn written() -> BTreeMap<(String, String), String> {
    let text = std::fs::read_to_string(file()).unwrap_or_default();
    let mut cells = BTreeMap::new();
    for row in text.lines().filter_map(|l| l.strip_prefix("| ")) {
        let words: Vec<&str> = row.trim_end_matches(" |").split(" | ").collect();
        for (engine, cell) in ENGINES.iter().zip(words.iter().skip(1)) {
            cells.insert((words[0].to_owned(), (*engine).to_owned()), (*cell).to_owned());
        }
    }
    cells
}

/// What the relay says of a configuration that asks an engine for what it cannot do.
const REFUSED: &str = "cannot be used together";

const INTRODUCTION: &str = "# Relay conformance

What `parshall relay` does at its edges, by engine. `cargo test -p parshall --test relay_conformance` runs the binary between
scripted clients and targets and fails when it sees something else than this table says; with `BLESS=1` it writes the table.
The behaviours are those that the tests of nginx's stream module, haproxy's PROXY protocol, tokio's `copy_bidirectional`, Go's
splice and sozu check, and what users of forwarders report.

`pass`: as the row says. `FAIL`: not so, or not always. `refused`: a configuration with this engine and setting is an error.
`–`: the engine was not available where the table was written.
";

fn blessing() -> bool {
    std::env::var_os("BLESS").is_some()
}

/// The table: what was seen, and for what was not run what the documents say.
pub fn table(topics: &[Topic], seen: &Seen) -> String {
    let before = written();
    let documented = |case: &str, engine: &str| before.get(&(case.to_owned(), engine.to_owned())).map(String::as_str);
    let mut text = INTRODUCTION.to_owned();
    for topic in topics {
        text += &format!("\n## {}\n\n| behaviour | {} |\n|---|", topic.title, ENGINES.join(" | "));
        text += &"---|".repeat(ENGINES.len());
        text += "\n";
        for case in topic.cases {
            let cells = ENGINES.map(|engine| match seen.get(&(case.name, engine)) {
                Some(Ok(())) if !blessing() && documented(case.name, engine) == Some("FAIL") => "FAIL".to_owned(),
                Some(Ok(())) => "pass".to_owned(),
                Some(Err(why)) if why.contains(REFUSED) => "refused".to_owned(),
                Some(Err(_)) => "FAIL".to_owned(),
                None => documented(case.name, engine).unwrap_or("–").to_owned(),
            });
            text += &format!("| {} | {} |\n", case.name, cells.join(" | "));
        }
    }
    text
}

/// Prints the table, and compares it with the documents or writes it there.
pub fn settle(topics: &[Topic], seen: &Seen) {
    let table = table(topics, seen);
    println!("{table}");
    let failed: Vec<String> = seen
        .iter()
        .filter_map(|((case, engine), result)| Some(format!("{engine}: {case}: {}", result.as_ref().err()?)))
        .collect();
    if blessing() {
        std::fs::write(file(), table).expect("the documents are ours");
        return;
    }
    let documented = std::fs::read_to_string(file()).unwrap_or_default();
    let differs = "docs/relay-conformance.md does not say what was seen; BLESS=1 writes it";
    assert!(documented == table, "{differs}\nfailed:\n{}", failed.join("\n"));
}

/// The engines to test, and a word on those that are left out.
pub fn available() -> Vec<&'static str> {
    let chosen = std::env::var("RELAY_ENGINE").ok();
    let wanted = ENGINES.iter().copied().filter(|e| chosen.as_ref().is_none_or(|c| c == e));
    let there = wanted.filter(|engine| match refusal(engine) {
        None => true,
        Some(why) => {
            skip(&format!("relay conformance of the engine {engine}"), &why);
            false
        }
    });
    there.collect()
}

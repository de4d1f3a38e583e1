//! Runs every case with every engine, and compares the results with the table in `docs/relay-conformance.md`.
use std::collections::{BTreeMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::bed::{Bed, end_all};

/// The engines.
const ENGINES: [&str; 3] = ["copy", "splice", "auto"];
/// Cases that run at the same time. Most of them wait most of the time.
const CONCURRENT: usize = 8;
/// The time after which a case is aborted. Waits within a case time out earlier.
const STUCK: Duration = Duration::from_secs(90);

/// A behaviour.
#[derive(Clone, Copy)]
pub struct Case {
    /// The behaviour of the relay, which is its row in the table.
    pub name: &'static str,
    /// Panics if the relay does not behave so.
    pub run: fn(&Bed),
}

/// Behaviours of one topic.
pub struct Topic {
    pub title: &'static str,
    /// Whether the cases depend on how an engine moves bytes. The others end before one does, or do the same with each.
    pub by_engine: bool,
    pub cases: &'static [Case],
}

/// The results by behaviour and engine.
pub type Results = BTreeMap<(&'static str, &'static str), Result<(), String>>;

/// Runs all cases whose name contains `only`. Without `every_engine`, the cases that do not depend on it run with the default one.
pub fn run(topics: &[Topic], engines: &[&'static str], every_engine: bool, only: &str) -> Results {
    let jobs: VecDeque<(Case, &'static str)> = topics
        .iter()
        .flat_map(|topic| topic.cases.iter().map(move |case| (topic, case)))
        .filter(|(_, case)| case.name.contains(only))
        .flat_map(|(topic, case)| engines.iter().map(move |engine| (topic, *case, *engine)))
        .filter(|(topic, _, engine)| every_engine || topic.by_engine || *engine == "auto")
        .map(|(_, case, engine)| (case, engine))
        .collect();
    let (jobs, results) = (Mutex::new(jobs), Mutex::new(Results::new()));
    std::thread::scope(|scope| {
        for _ in 0..CONCURRENT {
            scope.spawn(|| {
                loop {
                    let Some((case, engine)) = jobs.lock().unwrap_or_else(PoisonError::into_inner).pop_front() else {
                        return;
                    };
                    let result = watched(case, engine);
                    results.lock().unwrap_or_else(PoisonError::into_inner).insert((case.name, engine), result);
                }
            });
        }
    });
    let mut results = results.into_inner().unwrap_or_else(PoisonError::into_inner);
    // A case that failed is run again alone, because some cases have time limits that a busy machine exceeds.
    let failed: Vec<_> = results.iter().filter(|(_, result)| result.is_err()).map(|(key, _)| *key).collect();
    for (name, engine) in failed {
        if let Some(case) = topics.iter().flat_map(|t| t.cases).find(|c| c.name == name) {
            results.insert((name, engine), watched(*case, engine));
        }
    }
    results
}

/// Runs a case under a watchdog.
fn watched(case: Case, engine: &'static str) -> Result<(), String> {
    let begun = Instant::now();
    let (sender, receiver) = channel();
    let bed = Bed::new(engine);
    let pids = bed.pids();
    std::thread::spawn(move || {
        let result = catch_unwind(AssertUnwindSafe(|| (case.run)(&bed)));
        drop(bed);
        let _ = sender.send(result.map_err(|panic| message(&*panic)));
    });
    let result = receive(&receiver, STUCK).unwrap_or_else(|| {
        end_all(&pids);
        // Without the relay, the connections of the case fail.
        let _ = receive(&receiver, STUCK);
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

fn receive(receiver: &Receiver<Result<(), String>>, time: Duration) -> Option<Result<(), String>> {
    match receiver.recv_timeout(time) {
        Ok(result) => Some(result),
        Err(RecvTimeoutError::Timeout) => None,
        Err(RecvTimeoutError::Disconnected) => Some(Err("its thread ended without a result".to_owned())),
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

const INTRODUCTION: &str = "# Relay conformance

How `parshall relay` behaves in edge cases, by engine. `cargo test -p parshall --test relay conformance` runs the binary between
scripted clients and targets and fails where its behaviour differs from this table; with `BLESS=1` it writes the table. The
behaviours are those that the tests of nginx's stream module, haproxy's PROXY protocol, tokio's `copy_bidirectional`, Go's splice
and sozu check, and that users of forwarders report.

`pass`: the relay behaves as the row says. `FAIL`: it does not, or not always.
";

fn blessing() -> bool {
    std::env::var_os("BLESS").is_some()
}

/// The table of the results; cells of cases that did not run are taken from the documents.
pub fn table(topics: &[Topic], results: &Results) -> String {
    let before = written();
    let documented = |case: &str, engine: &str| before.get(&(case.to_owned(), engine.to_owned())).map(String::as_str);
    let mut text = INTRODUCTION.to_owned();
    for topic in topics {
        text += &format!("\n## {}\n\n| behaviour | {} |\n|---|", topic.title, ENGINES.join(" | "));
        text += &"---|".repeat(ENGINES.len());
        text += "\n";
        for case in topic.cases {
            let cells = ENGINES.map(|engine| match results.get(&(case.name, engine)) {
                Some(Ok(())) if !blessing() && documented(case.name, engine) == Some("FAIL") => "FAIL".to_owned(),
                Some(Ok(())) => "pass".to_owned(),
                Some(Err(_)) => "FAIL".to_owned(),
                None => documented(case.name, engine).unwrap_or("–").to_owned(),
            });
            text += &format!("| {} | {} |\n", case.name, cells.join(" | "));
        }
    }
    text
}

/// Prints the table, and compares it with the documents or, with BLESS, writes it there.
pub fn compare(topics: &[Topic], results: &Results) {
    let table = table(topics, results);
    println!("{table}");
    let failed: Vec<String> = results
        .iter()
        .filter_map(|((case, engine), result)| Some(format!("{engine}: {case}: {}", result.as_ref().err()?)))
        .collect();
    if blessing() {
        std::fs::write(file(), table).expect("the documents are ours");
        return;
    }
    let documented = std::fs::read_to_string(file()).unwrap_or_default();
    let differs = "docs/relay-conformance.md differs from the results; BLESS=1 writes it";
    assert!(documented == table, "{differs}\nfailed:\n{}", failed.join("\n"));
}

/// The engines to test: all, or the one that RELAY_ENGINE names.
pub fn engines() -> Vec<&'static str> {
    let chosen = std::env::var("RELAY_ENGINE").ok();
    ENGINES.into_iter().filter(|engine| chosen.as_ref().is_none_or(|chosen| chosen == engine)).collect()
}

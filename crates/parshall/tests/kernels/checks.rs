//! From the reports of a guest to values that are compared with `expected.toml`.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::guest::{Reported, Reports};

/// The checks by name, and what they found.
pub type Values = BTreeMap<String, String>;

/// A report must not differ from what its states add up to by more than this share: figures are rounded to ns.
const LEDGER_ERROR: f64 = 1e-6;

/// The delay that a path in a guest may have itself, beside the delay of a testbed.
const DELAY_ERROR_MS: f64 = 15.0;

/// The JSON document that a command has printed, or its error in one line.
pub fn document(reports: &Reports, name: &str) -> Result<Value, String> {
    let reported = reports.get(name).ok_or_else(|| "not reported".to_owned())?;
    serde_json::from_str(&reported.stdout).map_err(|_| error(reported))
}

/// The error of a command in one line.
pub fn error(reported: &Reported) -> String {
    let line = reported.stderr.lines().find(|line| line.contains("error: ")).or_else(|| reported.stderr.lines().last());
    let error = format!("exit code {}: {}", reported.code, line.unwrap_or("nothing on stderr").trim());
    // Ports that the kernel chooses are another in each run; all of them have five digits.
    error.split(' ').map(|word| if is_port(word) { "N" } else { word }).collect::<Vec<_>>().join(" ")
}

fn is_port(word: &str) -> bool {
    word.len() == 5 && word.bytes().all(|byte| byte.is_ascii_digit())
}

fn text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// The rung that `doctor` promises.
pub fn promised(reports: &Reports, values: &mut Values) {
    let rung = |name| document(reports, name).map_or_else(|why| why, |doctor| text(&doctor["rung"]));
    values.insert("doctor: rung".into(), rung("doctor"));
    values.insert("doctor with 64 KiB of locked memory".into(), rung("doctor-confined"));
}

/// Whether a port with a listener is found.
pub fn listener(reports: &Reports, values: &mut Values) {
    let listens =
        document(reports, "run/nagle-delayed-ack").map_or_else(|why| why, |_| "finds the listener".to_owned());
    values.insert("attach --port".into(), listens);
}

/// Whether a tunnel tells its state.
pub fn tunnel(reports: &Reports, values: &mut Values) {
    let state = |document: Value| match document["tunnels"][0]["process"]["rss_bytes"].as_u64() {
        Some(1..) => "tells its state".to_owned(),
        _ => format!("tells {document}"),
    };
    values.insert("tunnel show".into(), document(reports, "tunnel-show").map_or_else(|why| why, state));
}

/// Whether each engine of the relay has passed a file on, and whether a peer answers through a tunnel.
pub fn transfers(reports: &Reports, values: &mut Values) {
    let value = |reported: &Reported, right: &str| if reported.code == 0 { right.to_owned() } else { error(reported) };
    for (name, reported) in reports {
        if let Some(engine) = name.strip_prefix("transfer/") {
            values.insert(format!("relay {engine}, a file"), value(reported, "arrives"));
        }
    }
    values.insert("tunnel, a ping".into(), value(&reports["tunnel-ping"], "answered"));
}

/// The verdict of each `run/NAME`, with its confidence where the host does nothing else, the rung of all, lost events and the ledgers.
pub fn verdicts(reports: &Reports, with_confidence: bool, values: &mut Values) {
    let (mut rungs, mut lost, mut ledgers) = (Vec::new(), 0, Ok(()));
    for (name, reported) in reports {
        let Some(fault) = name.strip_prefix("run/") else { continue };
        let check = if with_confidence { format!("fault {fault}") } else { format!("cause of {fault}") };
        let report = match serde_json::from_str::<Value>(&reported.stdout) {
            Ok(result) if result["report"].is_object() => result["report"].clone(),
            Ok(report) if report["verdict"].is_object() => report,
            _ => {
                values.insert(check, error(reported));
                continue;
            }
        };
        let verdict = &report["verdict"];
        let what = text(verdict.get("cause").unwrap_or(&verdict["status"]));
        let confidence = text(&verdict["confidence"]);
        // On a busy host a weaker rung takes it for something else now and then.
        if with_confidence {
            values.insert(check, format!("{what}, {confidence}"));
        } else if report["rung"] == "btf" {
            values.insert(check, what);
        }
        rungs.push(text(&report["rung"]));
        lost += report["probe"]["lost_events"].as_u64().unwrap_or(0);
        ledgers = ledgers.and_then(|()| sums(&report["time"]).map_err(|why| format!("{fault}: {why}")));
    }
    rungs.sort();
    rungs.dedup();
    // Both kinds of runs have checks of their own, as only one of them may have worked.
    let what = if with_confidence { "faults: " } else { "" };
    let of_runs = |value: String| if rungs.is_empty() { "nothing was observed".to_owned() } else { value };
    values.insert(format!("{what}events lost"), of_runs(lost.to_string()));
    values.insert(format!("{what}ledgers"), of_runs(ledgers.map_or_else(|why| why, |()| "sum".to_owned())));
    values.insert(format!("{what}observation: rung"), of_runs(rungs.join(", ")));
}

/// What is said of a service that uses io_uring, of what `common/uring.c` does: opcodes with the time of a request, what a wait was for, and
/// errors.
pub fn uring(reports: &Reports, values: &mut Values) {
    let reported = &reports["uring"];
    let Ok(report) = serde_json::from_str::<Value>(&reported.stdout) else {
        values.insert("io_uring: requests with their times".to_owned(), error(reported));
        return;
    };
    let uring = &report["uring"];
    let rows = |of: &str| uring[of].as_array().cloned().unwrap_or_default();
    let listed = |mut found: Vec<String>| {
        found.sort();
        found.dedup();
        if found.is_empty() { "none".to_owned() } else { found.join(", ") }
    };
    let wanted = ["nop", "recv", "send"];
    let timed = rows("requests").into_iter().filter(|row| row["mean_us"].is_number()).map(|row| text(&row["opcode"]));
    let timed = listed(timed.filter(|opcode| wanted.contains(&opcode.as_str())).collect());
    let waits = rows("waits").into_iter().filter(|row| row["share"].as_f64() > Some(0.5));
    let waits = listed(waits.map(|row| row["outstanding"].as_array().unwrap().iter().map(text).collect()).collect());
    let errors = rows("requests").into_iter().flat_map(|row| row["errors"].as_array().cloned().unwrap_or_default());
    let errors = listed(errors.map(|of| text(&of["error"])).collect());
    values.insert("io_uring: requests with their times".to_owned(), timed);
    values.insert("io_uring: most waits are for".to_owned(), waits);
    values.insert("io_uring: errors".to_owned(), errors);
}

/// The counts of `ping`: packets sent and received, and the shortest round trip in ms.
fn pings(reported: &Reported) -> Option<(u32, u32, f64)> {
    // `400 packets transmitted, 361 packets received, 9% packet loss` and `round-trip min/avg/max = 40.1/41.0/55.2 ms`
    let words: Vec<&str> = reported.stdout.split_whitespace().collect();
    let before = |word: &str| words.iter().position(|w| *w == word).and_then(|at| words.get(at.checked_sub(2)?));
    let shortest = words.iter().skip_while(|word| **word != "=").nth(1)?.split('/').next()?;
    Some((before("transmitted,")?.parse().ok()?, before("received,")?.parse().ok()?, shortest.parse().ok()?))
}

/// The effect of a testbed on packets by one of two means: the specification in ms and per cent for both ways together.
fn impaired(reported: &Reported, delay_ms: f64, loss_percent: f64) -> String {
    if reported.code != 0 && reported.stdout.is_empty() {
        return error(reported);
    }
    let Some((sent, received, shortest_ms)) = pings(reported) else {
        return "nothing came back".into();
    };
    let (sent, expected) = (f64::from(sent), loss_percent / 100.0);
    let lost = 1.0 - f64::from(received) / sent;
    // Four standard deviations: 1 of 16,000 runs is outside.
    let margin = 4.0 * (expected * (1.0 - expected) / sent).sqrt();
    // A guest is slow: the path itself takes some ms there.
    let delayed = (delay_ms..delay_ms + DELAY_ERROR_MS).contains(&shortest_ms);
    let right = (lost - expected).abs() <= margin && delayed;
    if right { "as specified".into() } else { format!("{:.1} % lost, {shortest_ms} ms at least", lost * 100.0) }
}

/// The testbeds of `guest/lab.sh`, by the emulator and by netem. Each way loses 5 % or delays by 20 ms.
pub fn testbeds(reports: &Reports, values: &mut Values) {
    for (spec, delay_ms, loss_percent) in [("delay", 40.0, 0.0), ("delay-and-loss", 40.0, 9.75), ("loss", 0.0, 9.75)] {
        for means in ["emulator", "netem"] {
            let script = reports.get(&format!("{spec}/script")).filter(|script| means == "netem" && script.code != 0);
            let value = match script {
                Some(script) => error(script),
                None => impaired(&reports[&format!("{spec}/{means}")], delay_ms, loss_percent),
            };
            values.insert(format!("testbed {spec}, {means}"), value);
        }
    }
}

/// Whether each engine of the relay passes its cases, and the tests of other suites.
pub fn suites(reports: &Reports, values: &mut Values) {
    for (name, reported) in reports.iter().filter(|(name, _)| *name != "end") {
        let all = format!("{}\n{}", reported.stdout, reported.stderr);
        if let Some(engine) = name.strip_prefix("relay/") {
            let failed: Vec<&str> = reported.stderr.lines().collect();
            let value = if reported.code == 0 { "passes".to_owned() } else { failed.join(", ") };
            values.insert(format!("relay {engine}"), value);
            continue;
        }
        values.insert(format!("suite {name}"), of_suite(&results(&all), reported));
        for failure in failures(&all) {
            println!("suite {name}:\n{failure}");
        }
    }
}

/// What each test that has failed printed, which the next run of the guest overwrites.
fn failures(output: &str) -> Vec<String> {
    const LINES_MAX: usize = 40;
    let (mut failures, mut lines) = (Vec::new(), Vec::new());
    for line in output.lines() {
        if line.starts_with("test ") && line.contains(" ... ") {
            lines.clear();
        }
        lines.push(line);
        if line == "FAILED" || line.ends_with(" ... FAILED") {
            let from = lines.len().saturating_sub(LINES_MAX);
            failures.push(lines[from..].join("\n"));
        }
    }
    failures
}

/// `ok`, or how many tests of each module were skipped or have failed.
fn of_suite(results: &Values, reported: &Reported) -> String {
    let mut wrong = BTreeMap::<String, usize>::new();
    for (test, result) in results.iter().filter(|(_, result)| *result != "ok") {
        let module = test.rsplit_once("::").map_or("", |(module, _)| module);
        // The reasons are in the guest's report.
        let result = result.split(':').next().unwrap_or_default();
        *wrong.entry(format!("of {module} {result}")).or_default() += 1;
    }
    let wrong: Vec<String> = wrong.into_iter().map(|(what, n)| format!("{n} {what}")).collect();
    match (wrong.is_empty(), results.is_empty(), reported.code) {
        (true, false, 0) => "ok".into(),
        (false, ..) => wrong.join("; "),
        _ => format!("exit code {} after {} tests", reported.code, results.len()),
    }
}

/// The result of each test: `ok`, or why it was skipped or has failed.
fn results(output: &str) -> Values {
    let mut results = Values::new();
    let (mut test, mut skipped) = (String::new(), None);
    for line in output.lines() {
        // With --nocapture, what a test prints is between its name and its result.
        let (begins, rest) = match line.strip_prefix("test ").and_then(|line| line.split_once(" ... ")) {
            Some((name, rest)) if !name.contains(' ') => (Some(name), rest),
            _ => (None, line),
        };
        if let Some(name) = begins {
            name.clone_into(&mut test);
            skipped = None;
        }
        if let Some(why) = rest.strip_prefix("skipped: ") {
            skipped = Some(format!("skipped: {why}"));
        }
        let value = match rest {
            "ok" => skipped.take().unwrap_or_else(|| "ok".to_owned()),
            "FAILED" => "FAILED".to_owned(),
            _ => continue,
        };
        results.insert(std::mem::take(&mut test), value);
    }
    results
}

/// Whether the states of each flow and thread take as long as it was observed.
fn sums(time: &Value) -> Result<(), String> {
    let mut seen = 0;
    for kind in ["flows", "threads"] {
        let of_kind = &time[kind];
        for one in of_kind["each"].as_array().into_iter().flatten().chain([of_kind]) {
            let wall_ms = one["wall_ms"].as_f64().ok_or_else(|| format!("{kind} without a duration"))?;
            let states = one["states"].as_array().ok_or_else(|| format!("{kind} without states"))?;
            let sum_ms: f64 = states.iter().filter_map(|state| state["ms"].as_f64()).sum();
            if (sum_ms - wall_ms).abs() > wall_ms * LEDGER_ERROR {
                return Err(format!("the states of {} take {sum_ms} of {wall_ms} ms", one["name"]));
            }
            seen += 1;
        }
    }
    if seen == 0 { Err("there is none".to_owned()) } else { Ok(()) }
}

#[test]
fn a_ledger_that_does_not_add_up_is_named() {
    let time = |ms: f64| {
        let states = serde_json::json!([{ "ms": 4.0 }, { "ms": ms }]);
        let one = serde_json::json!({ "wall_ms": 10.0, "states": states, "name": "a" });
        let all = serde_json::json!({ "wall_ms": 10.0, "states": [{ "ms": 10.0 }], "each": [one] });
        serde_json::json!({ "flows": all, "threads": all })
    };
    assert_eq!(sums(&time(6.0)), Ok(()));
    assert!(sums(&time(5.9)).unwrap_err().contains("9.9 of 10 ms"));
}

#[test]
fn pings_are_compared_with_the_specification() {
    let ping = |received: u32, shortest: &str| Reported {
        code: 0,
        stdout: format!(
            "400 packets transmitted, {received} packets received, 9% packet loss\n\
             round-trip min/avg/max = {shortest}/41.0/55.2 ms\n"
        ),
        stderr: String::new(),
    };
    assert_eq!(impaired(&ping(361, "40.123"), 40.0, 9.75), "as specified");
    assert_eq!(impaired(&ping(400, "40.123"), 40.0, 9.75), "0.0 % lost, 40.123 ms at least");
    assert_eq!(impaired(&ping(361, "0.3"), 40.0, 9.75), "9.8 % lost, 0.3 ms at least");
    let refused = Reported { code: 1, stderr: "error: no\nhint: x\n".into(), ..Reported::default() };
    assert_eq!(impaired(&refused, 0.0, 9.75), "exit code 1: error: no");
}

#[test]
fn results_of_tests_are_read_with_what_they_print_between() {
    let output =
        "test a ... ok\ntest b ... skipped: x: needs y\nok\ntest c ... \nthread panicked\nFAILED\ntest result: ok. 1\n";
    let expected = [("a", "ok"), ("b", "skipped: x: needs y"), ("c", "FAILED")];
    assert_eq!(results(output), expected.map(|(name, value)| (name.to_owned(), value.to_owned())).into());
    assert_eq!(failures(output), ["test c ... \nthread panicked\nFAILED"]);
}

#[test]
fn an_error_is_one_line_without_what_differs_from_run_to_run() {
    let stderr = "note: x\nerror: nothing listens on port 40000\nhint: y\n".to_owned();
    let reported = Reported { code: 1, stderr, ..Reported::default() };
    assert_eq!(error(&reported), "exit code 1: error: nothing listens on port N");
}

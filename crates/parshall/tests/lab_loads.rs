//! Loads of the lab: rates, pacing, and the faults that they cause. These tests do not need root.
use std::process::{Command, Output};
use std::sync::{Mutex, MutexGuard, PoisonError};

const PARSHALL: &str = env!("CARGO_BIN_EXE_parshall");

/// Loads measure time, so they run one at a time.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn run(args: &[&str]) -> Output {
    Command::new(PARSHALL).args(["lab"]).args(args).output().expect("the binary runs")
}

fn load(args: &[&str]) -> serde_json::Value {
    let output = run(&[&["load"], args, &["--for", "1500ms", "--format", "json"]].concat());
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    assert!(String::from_utf8_lossy(&output.stderr).starts_with("ready "), "{args:?} says that it is ready");
    serde_json::from_slice(&output.stdout).expect("one JSON document")
}

fn rate(args: &[&str]) -> f64 {
    load(args)["rate_per_s"].as_f64().expect("a rate")
}

#[test]
fn small_writes_stall_and_both_fixes_help_several_times_over() {
    let _alone = alone();
    let stalled = rate(&["rpc-echo", "--clients", "4"]);
    assert!((40.0..=104.0).contains(&stalled), "about 25 requests/s per client: {stalled}");
    for remedy in ["--nodelay", "--together"] {
        let healed = rate(&["rpc-echo", "--clients", "4", remedy]);
        // It is a thousandfold on an idle machine, and less beside other work.
        assert!(healed > 20.0 * stalled, "{remedy}: {stalled} -> {healed}");
    }
}

#[test]
fn replies_in_two_parts_stall_as_well() {
    let _alone = alone();
    let stalled = rate(&["rpc-echo", "--clients", "1", "--together", "--reply-in-two"]);
    assert!((10.0..=40.0).contains(&stalled), "{stalled}");
}

#[test]
fn pacing_keeps_the_rate() {
    let _alone = alone();
    let paced = rate(&["rpc-echo", "--nodelay", "--rate", "500"]);
    // Without pacing it is thousands per second.
    assert!((250.0..=510.0).contains(&paced), "{paced}");
}

#[test]
fn think_time_and_work_limit_the_rate() {
    let _alone = alone();
    let thinking = load(&["rpc-echo", "--nodelay", "--clients", "2", "--think-ms", "20"]);
    let p50_us = thinking["latency"]["p50_us"].as_f64().expect("a latency");
    assert!((20_000.0..=80_000.0).contains(&p50_us), "{p50_us}");
    let burning = rate(&["rpc-echo", "--nodelay", "--clients", "4", "--burn-ms", "5"]);
    // About 200/s: the work was calibrated on a CPU that may have been slower at that time. Without it, tens of thousands.
    assert!(burning < 1_000.0, "one thread, 5 ms each: {burning}");
}

#[test]
fn a_cork_holds_each_request_for_200_ms() {
    let _alone = alone();
    for held in ["--cork", "--msg-more"] {
        let rate = rate(&["stream", "--request-reply", "--write-bytes", "200", held]);
        assert!(rate < 6.0, "{held}: {rate}");
    }
    assert!(rate(&["stream", "--request-reply", "--write-bytes", "200"]) > 1000.0);
}

#[test]
fn pauses_limit_the_stream() {
    let _alone = alone();
    let bytes = |args: &[&str]| load(args)["bytes_per_s"].as_f64().expect("bytes");
    let paused = bytes(&["stream", "--write-bytes", "20000", "--write-pause-ms", "20"]);
    assert!((300e3..=1e6).contains(&paused), "{paused}");
    assert!(bytes(&["stream"]) > 100.0 * paused);
}

#[test]
fn errors_get_a_line_and_a_hint() {
    for (args, what, hint) in [
        (&["run", "nagel-stall"][..], "no case, fault or control named `nagel-stall`", "nagle-stall"),
        (&["load", "stream", "--congestion", "nosuch", "--for", "1s"], "congestion control `nosuch`", "this host has"),
        (&["load", "stream", "--serve", "192.0.2.1:80", "--for", "1s"], "cannot listen on 192.0.2.1:80", "address"),
    ] {
        let output = run(args);
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success(), "{args:?}");
        assert!(stderr.contains(what) && stderr.contains("hint:") && stderr.contains(hint), "{args:?}: {stderr}");
    }
}

#[test]
fn the_list_names_every_kind() {
    let output = run(&["list"]);
    let list = String::from_utf8_lossy(&output.stdout).into_owned();
    for name in ["nagle-stall", "small-copy-buffer", "python-asyncio", "load rpc-echo"] {
        assert!(list.contains(name), "{name}: {list}");
    }
}

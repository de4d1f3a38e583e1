//! Loads of the lab: rates, pacing, and the faults that they cause. These tests do not need root. A busy host makes loads slower, so
//! that rates have upper limits, or are compared with others a hundred times higher.
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::common::{Done, PARSHALL, parshall};

/// Loads measure time, so they run one at a time.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn run(args: &[&str]) -> Done {
    parshall(&[&["lab"], args].concat())
}

/// The time for which loads run.
const SHORT: &str = "500ms";
const LONG: &str = "10s";

fn load_for(time: &str, args: &[&str]) -> serde_json::Value {
    let done = run(&[&["load"], args, &["--for", time, "--format", "json"]].concat());
    assert!(done.code == Some(0) && done.stderr.starts_with("ready "), "{args:?}: {done:?}");
    serde_json::from_str(&done.stdout).expect("one JSON document")
}

/// A figure of a load, and that of a longer run where a short one does not reach `more_than`: other programs may have had the CPUs for all
/// of its time.
fn figure(args: &[&str], name: &str, more_than: f64) -> f64 {
    let figure = |time| load_for(time, args)[name].as_f64().expect("a figure");
    Some(figure(SHORT)).filter(|short| *short > more_than).unwrap_or_else(|| figure(LONG))
}

fn rate(args: &[&str]) -> f64 {
    figure(args, "rate_per_s", 0.0)
}

#[test]
fn small_writes_stall_and_both_fixes_help_several_times_over() {
    let _alone = alone();
    let stalled = rate(&["rpc-echo", "--clients", "4"]);
    assert!(stalled > 0.0 && stalled <= 110.0, "about 25 requests/s per client: {stalled}");
    for remedy in ["--nodelay", "--together"] {
        let healed = figure(&["rpc-echo", "--clients", "4", remedy], "rate_per_s", 5.0 * stalled);
        // It is a thousandfold on an idle machine.
        assert!(healed > 5.0 * stalled, "{remedy}: {stalled} -> {healed}");
    }
}

#[test]
fn replies_in_two_parts_stall_as_well() {
    let _alone = alone();
    let stalled = rate(&["rpc-echo", "--clients", "1", "--together", "--reply-in-two"]);
    assert!(stalled > 0.0 && stalled <= 40.0, "{stalled}");
}

#[test]
fn pacing_keeps_the_rate() {
    let _alone = alone();
    let paced = rate(&["rpc-echo", "--nodelay", "--rate", "500"]);
    // Without pacing it is thousands per second.
    assert!(paced > 0.0 && paced <= 520.0, "{paced}");
}

#[test]
fn think_time_and_work_limit_the_rate() {
    let _alone = alone();
    let thinking = ["rpc-echo", "--nodelay", "--clients", "2", "--think-ms", "20"];
    let p50_us = |time| load_for(time, &thinking)["latency"]["p50_us"].as_f64();
    let p50_us = p50_us(SHORT).or_else(|| p50_us(LONG)).expect("a latency");
    assert!(p50_us >= 20_000.0, "{p50_us}");
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
    assert!(figure(&["stream", "--request-reply", "--write-bytes", "200"], "rate_per_s", 30.0) > 30.0);
}

#[test]
fn pauses_limit_the_stream() {
    let _alone = alone();
    let paused = figure(&["stream", "--write-bytes", "20000", "--write-pause-ms", "20"], "bytes_per_s", 0.0);
    assert!(paused > 0.0 && paused <= 1.1e6, "{paused}");
    assert!(figure(&["stream"], "bytes_per_s", 5.0 * paused) > 5.0 * paused);
}

/// Short runs of a generator, both ends as two processes.
fn generate(time: &str, args: &[&str]) -> serde_json::Value {
    load_for(time, &[args, &["--warm-up", "200ms"]].concat())
}

fn number(value: &serde_json::Value, pointer: &str) -> f64 {
    value.pointer(pointer).and_then(serde_json::Value::as_f64).unwrap_or_else(|| panic!("no {pointer} in {value}"))
}

#[test]
fn generators_measure_both_ends() {
    let _alone = alone();
    for args in [
        &["upload", "--connections", "2"][..],
        &["download", "--discard"],
        &["bidirectional"],
        &["request-response", "--connections", "3", "--threads", "2"],
        &["request-response", "--request-bytes", "300000", "--reply-bytes", "500000"],
        &["connect-request-response", "--threads", "2"],
        &["rpc", "--depth", "32"],
        &["many-connections", "--connections", "200"],
        &["mixed"],
        &["udp-packets"],
        &["udp-packets", "--single", "--packet-bytes", "64"],
    ] {
        let short = Some(generate(SHORT, args)).filter(|result| number(result, "/requests") > 0.0);
        let result = short.unwrap_or_else(|| generate(LONG, args));
        assert_eq!(result["errors"].as_u64(), Some(0), "{args:?}: {result}");
        // The window begins behind the warm-up.
        assert!(number(&result, "/seconds") > 0.0, "{args:?}: {result}");
        assert!(number(&result, "/requests") > 0.0, "{args:?}: {result}");
        for side in ["/cpu", "/server_cpu"] {
            let cpu = result.pointer(side).expect("both ends");
            let (seconds, per_kb) = (number(cpu, "/seconds"), number(cpu, "/us_per_kb"));
            let expected = seconds * 1e9 / number(&result, "/bytes");
            assert!(seconds > 0.0 && (per_kb / expected - 1.0).abs() < 1e-6, "{args:?}: {result}");
            assert!((0.0..=1.1).contains(&number(cpu, "/busiest_thread")), "{args:?}: {result}");
        }
        if !["upload", "download", "bidirectional", "udp-packets"].contains(&args[0]) {
            let [p50, p99, max] = ["p50_us", "p99_us", "max_us"].map(|at| number(&result, &format!("/latency/{at}")));
            assert!(p50 > 0.0 && p50 <= p99 && p99 <= max, "{args:?}: {result}");
        }
    }
}

#[test]
fn an_open_loop_keeps_its_schedule() {
    let _alone = alone();
    for args in [
        &["request-response", "--rate", "500", "--connections", "4"][..],
        &["request-response", "--rate", "500", "--connections", "4", "--arrivals", "poisson", "--threads", "2"],
        &["connect-request-response", "--rate", "500", "--threads", "2"],
        &["mixed", "--rate", "500", "--connections", "4"],
        &["udp-packets", "--rate", "500"],
        &["burst", "--burst", "50", "--every", "100ms"],
    ] {
        let result = generate(SHORT, args);
        assert_eq!(number(&result, "/offered_per_s").round(), 500.0, "{args:?}");
        // A request that was due in the window counts whenever it was sent, so a busy host changes nothing about it.
        let due = result.pointer("/latency/count").unwrap_or(&result["requests"]).as_f64().expect("a count");
        assert!((200.0..=350.0).contains(&due), "{args:?}: {result}");
        assert!(result["unanswered"].as_f64().unwrap_or(0.0) < due, "{args:?}: {result}");
    }
}

/// Coordinated omission: a server that stands still for half a second delays every request that is due meanwhile.
#[test]
fn a_stall_of_the_server_shows_in_an_open_loop() {
    let _alone = alone();
    let mut server = Command::new(PARSHALL)
        .args(["lab", "load", "request-response", "--serve", "127.0.0.1:0", "--for", "20s"])
        .stderr(std::process::Stdio::piped())
        .stdout(std::process::Stdio::null())
        .spawn()
        .expect("the binary runs");
    let mut line = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(server.stderr.take().expect("piped")), &mut line)
        .expect("the ready line");
    let port = line.trim().rsplit_once("port=").expect("a port").1.to_owned();
    let stop = std::thread::spawn({
        let pid = server.id().to_string();
        move || {
            std::thread::sleep(std::time::Duration::from_millis(700));
            for (signal, ms) in [("-STOP", 500), ("-CONT", 0)] {
                Command::new("kill").args([signal, &pid]).status().expect("kill runs");
                std::thread::sleep(std::time::Duration::from_millis(ms));
            }
        }
    });
    let address = format!("127.0.0.1:{port}");
    let client = ["request-response", "--connect", &address, "--rate", "200", "--warm-up", "200ms"];
    let result = load_for("1500ms", &client);
    stop.join().expect("no panic");
    server.kill().ok();
    server.wait().expect("our child");
    // A third of the requests were due in that time: in a closed loop it would be one of thousands.
    assert!(number(&result, "/latency/p90_us") > 150_000.0, "{result}");
    assert!((295.0..=305.0).contains(&number(&result, "/latency/count")), "{result}");
}

#[test]
fn another_server_is_not_taken_for_a_load() {
    let closed = std::net::TcpListener::bind("127.0.0.1:0").expect("loopback");
    let address = closed.local_addr().expect("bound").to_string();
    let server = std::thread::spawn(move || {
        for stream in closed.incoming().take(2) {
            drop(stream);
        }
    });
    let output = run(&["load", "udp-packets", "--connect", &address, "--for", "200ms"]);
    assert!(output.error_and_hint().1.contains("the other end must be `parshall lab load`"), "{output:?}");
    drop(std::net::TcpStream::connect(&address));
    server.join().expect("no panic");
}

#[test]
fn errors_get_a_line_and_a_hint() {
    for (args, what, hint) in [
        (&["run", "nagel-stall"][..], "no case, fault or control named `nagel-stall`", "nagle-stall"),
        (&["load", "stream", "--congestion", "nosuch", "--for", "1s"], "congestion control `nosuch`", "this host has"),
        (&["load", "stream", "--serve", "192.0.2.1:80", "--for", "1s"], "cannot listen on 192.0.2.1:80", "address"),
        (&["load", "rpc", "--serve", "192.0.2.1:80", "--for", "1s"], "cannot listen on 192.0.2.1:80", "address"),
        (&["load", "rpc", "--rate", "0"], "`0` is not a rate", "0.001 to 1e9"),
        (&["load", "upload", "--threads", "2"], "`--threads` is not an option of", "did you mean"),
        (&["load", "udp-packets", "--rcvbuf", "9"], "`--rcvbuf` is not an option of", "--help"),
        (
            &["load", "rpc", "--serve", "127.0.0.1:0", "--depth", "2"],
            "cannot be used together",
            "leave one of them out",
        ),
        (&["load", "burst", "--every", "0s"], "bursts without time between them", "100ms"),
    ] {
        let done = run(args);
        assert_ne!(done.code, Some(0), "{args:?}");
        let stderr = done.stderr;
        assert!(stderr.contains(what) && stderr.contains("hint:") && stderr.contains(hint), "{args:?}: {stderr}");
    }
}

#[test]
fn the_list_names_every_kind() {
    let list = run(&["list"]).stdout;
    for name in ["nagle-stall", "small-copy-buffer", "python-asyncio", "load rpc-echo", "load udp-packets"] {
        assert!(list.contains(name), "{name}: {list}");
    }
}

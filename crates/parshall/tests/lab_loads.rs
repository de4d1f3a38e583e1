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

/// Short runs of a generator, both ends as two processes.
fn generate(args: &[&str]) -> serde_json::Value {
    load(&[args, &["--warm-up", "200ms"]].concat())
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
        let result = generate(args);
        assert_eq!(result["errors"].as_u64(), Some(0), "{args:?}: {result}");
        // The window begins behind the warm-up.
        assert!((1.4..2.5).contains(&number(&result, "/seconds")), "{args:?}: {result}");
        assert!(number(&result, "/requests") > 50.0, "{args:?}: {result}");
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
        let result = generate(args);
        assert_eq!(number(&result, "/offered_per_s").round(), 500.0, "{args:?}");
        // What was due in the window counts whenever it was sent, so a busy host changes nothing about it.
        let due = result.pointer("/latency/count").unwrap_or(&result["requests"]).as_f64().expect("a count");
        assert!((600.0..=900.0).contains(&due), "{args:?}: {result}");
        // Only those of the last moments may be without a reply when the load ends.
        assert!(result["unanswered"].as_f64().unwrap_or(0.0) < 0.1 * due, "{args:?}: {result}");
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
    let result = generate(&["request-response", "--connect", &format!("127.0.0.1:{port}"), "--rate", "200"]);
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
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && stderr.contains("hint: the other end must be `parshall lab load`"), "{stderr}");
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
        (&["load", "burst", "--every", "0s"], "bursts without time between them", "100ms"),
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
    for name in ["nagle-stall", "small-copy-buffer", "python-asyncio", "load rpc-echo", "load udp-packets"] {
        assert!(list.contains(name), "{name}: {list}");
    }
}

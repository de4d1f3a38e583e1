//! `parshall sockets` when rows cannot be delivered: the exit code, and the reason in the last lines.
use std::fs::File;
use std::io::Write;
use std::io::{BufRead, BufReader};
use std::net::{IpAddr, Ipv4Addr, TcpListener, TcpStream};
use std::process::{Command, Stdio};

use crate::common::{self, Done, PARSHALL, parshall, until};
use crate::sockets::unused_port::listen_on_unused_port;
use crate::sockets::{Daemon, endpoint, get};

/// Runs a stream of two dumps with the sinks of this configuration.
fn two_dumps(sinks: &str) -> Done {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(sinks.as_bytes()).unwrap();
    let path = file.path().to_str().unwrap();
    parshall(&["sockets", "stream", "--every", "100ms", "--count", "2", "--kind", "tcp,unix", "-c", path])
}

/// Asserts that a stream failed because of lost rows, and returns its error and its hint.
fn lost_rows(done: &Done) -> (&str, &str) {
    assert_eq!(done.code, Some(1), "{done:?}");
    let last = |what: &str| done.stderr.lines().find(|line| line.starts_with(what)).unwrap_or_default();
    let (error, hint) = (last("error: "), last("hint: "));
    assert!(error.contains("rows were not delivered: "), "{done:?}");
    (error, hint)
}

#[test]
fn a_receiver_that_rejects_rows_makes_a_stream_fail_with_its_reason() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let at = listener.local_addr().unwrap();
    // It ends with the process of the test.
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let mut head = BufReader::new(stream.try_clone().unwrap()).lines();
            let length =
                head.find_map(|line| line.ok()?.to_ascii_lowercase().strip_prefix("content-length: ")?.parse().ok());
            assert!(length.is_some_and(|bytes: usize| bytes > 0));
            // Then comes the rest of the head and the body, which is not read.
            write!(stream, "HTTP/1.1 400 Bad Request\r\nContent-Length: 7\r\n\r\ntoo old").ok();
        }
    });
    let done = two_dumps(&format!("[[otlp]]\nurl = \"http://{at}\"\n"));
    let (error, _) = lost_rows(&done);
    assert!(error.contains("otlp: ") && error.contains("400 Bad Request: too old"), "{error}");
}

#[test]
#[ignore = "make test-all"]
fn a_receiver_that_is_not_there_makes_a_stream_fail_with_the_reason() {
    for (sinks, name) in [
        ("[[kafka]]\nbrokers = [\"127.0.0.1:1\"]\ntopic = \"x\"\n", "kafka: "),
        ("[[otlp]]\nurl = \"http://127.0.0.1:1\"\n", "otlp: "),
    ] {
        let done = two_dumps(sinks);
        let (error, hint) = lost_rows(&done);
        assert!(error.contains(name) && error.contains("refused"), "{error}");
        assert!(hint.contains("`spool`"), "{hint}");
    }
}

#[test]
#[ignore = "make test-all"]
fn rows_in_a_spool_are_not_lost() {
    let spool = tempfile::tempdir().unwrap();
    let sinks = format!(
        "[[kafka]]\nbrokers = [\"127.0.0.1:1\"]\ntopic = \"x\"\nspool = {{ directory = {:?}, size = \"16MiB\" }}\n",
        spool.path()
    );
    let done = two_dumps(&sinks);
    assert!(done.code == Some(0) && done.stderr.contains("rows are in the spool and wait"), "{done:?}");
}

#[test]
fn what_a_full_disk_did_not_take_makes_a_stream_and_a_dump_fail() {
    if !common::root("sockets: a full file system") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let script = "mount -t tmpfs -o size=16k tmpfs \"$1\" && exec \"$2\" sockets stream --every 100ms --count 2 \
                  --kind all --format parquet --to \"$1/d\"";
    let mut full = Command::new("unshare");
    let output = full.args(["-m", "sh", "-c", script, "sh"]).arg(directory.path()).arg(PARSHALL).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("error: files: ") && said.contains("No space left"), "{said}");
    for format in ["json", "parquet"] {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let mut once = Command::new(PARSHALL);
        once.args(["sockets", "once", "--kind", "all", "--format", format]).stdout(full);
        let output = once.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(1) && said.contains("No space left"), "{format}: {said}");
    }
}

#[test]
fn a_reader_that_leaves_is_no_failure() {
    let mut child = Command::new(PARSHALL)
        .args(["sockets", "stream", "--every", "100ms", "--kind", "all"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(0) && !said.contains("not delivered"), "{said}");
}

/// The value of a series of `/metrics`; 0 if it is not there.
fn value(metrics: &str, name: &str, port: u16) -> f64 {
    let series = format!("parshall_sockets_{name}{{local_port=\"{port}\"");
    let found = metrics.lines().filter(|line| line.starts_with(&series));
    found.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
}

#[test]
fn connections_in_time_wait_are_not_counted_as_opened_again() {
    if !common::btf("sockets: opened and closed") {
        return;
    }
    const COUNT: f64 = 20.0;
    let mut sinks = tempfile::NamedTempFile::new().unwrap();
    write!(sinks, "[prometheus]\nlisten = \"127.0.0.1:0\"\nseries = {{ by = [\"local_port\"] }}\n").unwrap();
    let mut child = Command::new(PARSHALL);
    child.args(["sockets", "stream", "--every", "100ms", "-c"]).arg(sinks.path()).stderr(Stdio::piped());
    let mut child = child.spawn().unwrap();
    let mut log = BufReader::new(child.stderr.take().unwrap()).lines().map(|line| line.unwrap());
    let daemon = Daemon(child);
    let at = endpoint(&mut log);
    let metrics = || get(&at, "/metrics");
    let dumps = |text: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix("parshall_sockets_collector_dumps_total "));
        line.and_then(|n| n.parse::<u64>().ok()).unwrap_or(0)
    };
    until("the first dumps", || dumps(&metrics()) >= 2);
    let listener = listen_on_unused_port(IpAddr::V4(Ipv4Addr::LOCALHOST));
    let to = listener.local_addr().unwrap();
    let pairs: Vec<_> = (0..COUNT as u32)
        .map(|_| {
            let client = TcpStream::connect(to).unwrap();
            (listener.accept().unwrap().0, client)
        })
        .collect();
    until("they are open", || value(&metrics(), "open", to.port()) >= COUNT + 1.0);
    // The listener's ends close first, so that they stay in TIME_WAIT.
    pairs.into_iter().for_each(drop);
    until("they are in TIME_WAIT", || value(&metrics(), "closed_total", to.port()) >= COUNT);
    let before = dumps(&metrics());
    until("further dumps", || dumps(&metrics()) >= before + 3);
    let text = metrics();
    assert!(value(&text, "open", to.port()) > COUNT, "the listener, and what is in TIME_WAIT: {text}");
    assert_eq!(value(&text, "opened_total", to.port()), COUNT + 1.0, "{text}");
    drop(listener);
    until("the listener is closed", || value(&metrics(), "closed_total", to.port()) >= COUNT + 1.0);
    assert_eq!(value(&metrics(), "opened_total", to.port()), COUNT + 1.0);
    daemon.end();
}

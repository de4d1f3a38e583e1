//! The sink with receivers that accept, refuse, throttle and reject. The bytes are decoded with the messages of
//! opentelemetry-proto in Python.
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::sync::mpsc;
use std::time::Instant;

use parshall_core::sockets::retry::Retry;
use parshall_evidence::socket::SocketRecord;

use super::config::Receiver;
use super::*;
use crate::testkit::peers::python;
use crate::wire::MessageWriter;

fn quick() -> QueueConfig {
    QueueConfig { queue_bytes: 8 << 20, spool: None, retry: Retry { first_ns: 10_000_000, longest_ns: 50_000_000 } }
}

fn config(at: SocketAddr) -> OtlpConfig {
    let headers = vec![("x-tenant".to_owned(), "t1".to_owned())];
    OtlpConfig { url: format!("http://{at}"), headers, tls: None, timeout: Duration::from_millis(500) }
}

/// Answers requests, one after the other, with these heads and bodies. Returns the bodies of the requests.
fn receiver(answers: Vec<(&'static str, Vec<u8>)>) -> (SocketAddr, mpsc::Receiver<Vec<u8>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    let (send, got) = mpsc::channel();
    std::thread::spawn(move || {
        for (head, body) in answers {
            let Ok((mut stream, _)) = listener.accept() else { return };
            let mut reader = BufReader::new(stream.try_clone().unwrap());
            let (mut length, mut line) = (0, String::new());
            while reader.read_line(&mut line).unwrap_or(0) > 2 {
                if let Some(n) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                    length = n.trim().parse().unwrap();
                }
                line.clear();
            }
            let mut request = vec![0; length];
            reader.read_exact(&mut request).unwrap();
            write!(stream, "HTTP/1.1 {head}\r\nContent-Length: {}\r\n\r\n", body.len()).unwrap();
            stream.write_all(&body).unwrap();
            if send.send(request).is_err() {
                return;
            }
        }
    });
    (at, got)
}

/// Passes a dump with one row to the sink.
fn send_dump(sink: &mut OtlpSink, sequence: u64) {
    let at_unix_ns = 1_700_000_000_000_000_000 + sequence * 1_000_000_000;
    let dump = Dump { at_unix_ns, sequence, host: "test-host".into(), backend: "walk" };
    let mut record = SocketRecord {
        family: 2,
        protocol: 6,
        state: 1,
        local_port: 443,
        rtt_us: 100,
        bytes_sent: 1000 * sequence,
        ..Default::default()
    };
    record.remote_address[..4].copy_from_slice(&[192, 0, 2, 1]);
    sink.rows(&dump, &[Row { socket: 1, cgroup: "/web", ..Row::bare(&record) }]).unwrap();
    sink.end(&dump, &Completeness::default()).unwrap();
}

/// Waits until all rows are delivered or dropped.
fn drain(sink: &OtlpSink) -> Account {
    let begun = Instant::now();
    while sink.account().rows_waiting > 0 {
        assert!(begun.elapsed() < Duration::from_secs(120), "{:?}", sink.account());
        std::thread::sleep(Duration::from_millis(5));
    }
    sink.account()
}

#[test]
fn a_receiver_that_throttles_and_fails_gets_every_row() {
    let busy = "429 Too Many Requests\r\nRetry-After: 0";
    let (at, got) = receiver(vec![
        (busy, Vec::new()),
        ("503 Service Unavailable", Vec::new()),
        ("200 OK", Vec::new()),
        ("200 OK", Vec::new()),
    ]);
    let mut sink = OtlpSink::start(config(at), Settings::default(), quick()).unwrap();
    send_dump(&mut sink, 1);
    let account = drain(&sink);
    assert_eq!((account.rows_in, account.rows_dropped), (account.rows_out, 0), "{account:?}");
    assert_eq!((account.errors["throttled"], account.errors["not-ready"]), (1, 1));
    let requests: Vec<Vec<u8>> = got.try_iter().collect();
    assert!(requests.len() == 3 && requests[0] == requests[2], "the same bytes again");
    send_dump(&mut sink, 2);
    drain(&sink);
    assert_eq!(got.recv_timeout(Duration::from_secs(5)).map(|r| r[..2] == [0x1f, 0x8b]), Ok(true));
}

#[test]
fn rejected_rows_are_counted() {
    let mut partial = MessageWriter::default();
    partial.message(1, |m| {
        m.uint(1, 2);
        m.bytes(2, "too old");
    });
    let (at, _got) = receiver(vec![("200 OK", partial.0), ("400 Bad Request", b"no\nsuch\tthing".to_vec())]);
    let mut sink = OtlpSink::start(config(at), Settings::default(), quick()).unwrap();
    send_dump(&mut sink, 1);
    let first = drain(&sink);
    assert_eq!((first.rows_dropped, first.rows_in - first.rows_out, first.errors["partial"]), (2, 2, 1), "{first:?}");
    assert!(first.loss.as_ref().is_some_and(|why| why.ends_with("rejected 2 data points: too old")), "{first:?}");
    send_dump(&mut sink, 2);
    let account = drain(&sink);
    assert_eq!((account.errors["rejected"], account.rows_out), (1, first.rows_out), "{account:?}");
    assert!(account.last_error.as_ref().is_some_and(|e| e.contains("400") && !e.contains('\n')), "{account:?}");
}

#[test]
fn receivers_that_refuse_or_hang_do_not_block_the_collector() {
    let refusing = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let hanging = TcpListener::bind("127.0.0.1:0").unwrap();
    for (at, kind) in [(refusing, "refused"), (hanging.local_addr().unwrap(), "timeout")] {
        let mut sink = OtlpSink::start(config(at), Settings::default(), quick()).unwrap();
        let begun = Instant::now();
        (1..100).for_each(|sequence| send_dump(&mut sink, sequence));
        assert!(begun.elapsed() < Duration::from_secs(5), "the collector waited for {kind}");
        while !sink.account().errors.contains_key(kind) {
            assert!(begun.elapsed() < Duration::from_secs(120), "{kind}: {:?}", sink.account());
            std::thread::sleep(Duration::from_millis(5));
        }
        let account = Box::new(sink).close(Duration::from_millis(100));
        assert_eq!((account.rows_out, account.rows_dropped), (0, account.rows_in));
    }
}

#[test]
fn opentelemetry_proto_decodes_the_requests() {
    let Some(mut reader) = python("python", "otlp_read.py", &[], "OTLP by opentelemetry-proto") else { return };
    let (at, got) = receiver(vec![("200 OK", Vec::new()), ("200 OK", Vec::new())]);
    let mut sink = OtlpSink::start(config(at), Settings::default(), quick()).unwrap();
    send_dump(&mut sink, 1);
    send_dump(&mut sink, 3);
    drain(&sink);
    let last = got.iter().nth(1).unwrap();
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), last).unwrap();
    let output = reader.arg(file.path()).output().unwrap();
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{stderr}");
    let web = "cgroup=/web,local_port=443,peer=192.0.2.0/24";
    for line in [
        "resource host.name=test-host,service.name=parshall-sockets".to_owned(),
        "parshall.sockets.open {socket} gauge cgroup=/web,kind=tcp,local_port=443,peer=192.0.2.0/24,state=established 1".to_owned(),
        format!("parshall.sockets.sent_bytes By cumulative-monotonic {web} 2000 over 2000000000 ns"),
        format!("parshall.sockets.rtt_seconds s cumulative-histogram {web} count 2 sum 0.0002 under 0.000128 2"),
    ] {
        assert!(stdout.lines().any(|l| l == line), "{line} is not in\n{stdout}");
    }
}

#[test]
fn urls_of_receivers_are_parsed() {
    let parsed = |url: &str| Receiver::parse(url).map(|r| (r.tls, r.host, r.port, r.path)).ok();
    let path = || "/v1/metrics".to_owned();
    assert_eq!(parsed("http://h:1"), Some((false, "h".into(), 1, path())));
    assert_eq!(parsed("https://h/x/y"), Some((true, "h".into(), 443, "/x/y".into())));
    assert_eq!(parsed("http://[::1]"), Some((false, "::1".into(), 4318, path())));
    for wrong in ["", "h:1", "ftp://h", "http://", "http://user:secret@h", "http://h:99999"] {
        assert_eq!(parsed(wrong), None, "{wrong}");
    }
    let headers = vec![("bad name".to_owned(), "x".to_owned())];
    let config = OtlpConfig { headers, ..config("127.0.0.1:1".parse().unwrap()) };
    let error = OtlpSink::start(config, Settings::default(), quick()).map(drop).unwrap_err();
    assert!(error.downcast_ref::<UserError>().is_some());
}

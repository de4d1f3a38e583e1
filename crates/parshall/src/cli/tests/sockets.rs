//! The requests that command lines of `parshall sockets` become, and the errors in them.
use parshall_evidence::socket::selection::state::TIME_WAIT;
use parshall_evidence::socket::{Group, Kind, Side};

use super::{Invocation, Request, parse};
use parshall_host::error::UserError;
use parshall_sockets::request::{BackendChoice, OnceRequest, SocketFormat, SocketsRequest, StreamRequest};

fn request(line: &str) -> Result<SocketsRequest, UserError> {
    let words = format!("parshall sockets {line}");
    match parse(words.split_whitespace())? {
        Invocation::Do { request, .. } => match *request {
            Request::Sockets(request) => Ok(request),
            other => panic!("{other:?}"),
        },
        Invocation::Print(text) => panic!("{text}"),
    }
}

fn once(line: &str) -> OnceRequest {
    match request(&format!("once {line}")).unwrap() {
        SocketsRequest::Once(request) => request,
        SocketsRequest::Stream(_) => panic!("a stream"),
    }
}

fn stream(line: &str) -> StreamRequest {
    match request(&format!("stream {line}")).unwrap() {
        SocketsRequest::Stream(request) => request,
        SocketsRequest::Once(_) => panic!("not a stream"),
    }
}

#[test]
fn defaults() {
    let once = once("");
    let selection = &once.selection;
    assert!(selection.kinds.has(Kind::Tcp) && !selection.kinds.has(Kind::Udp));
    assert_eq!(
        (selection.states, once.format, once.reading.backend),
        (!(1 << TIME_WAIT), SocketFormat::Text, BackendChoice::Auto)
    );
    assert!(selection.groups.has(Group::Owner) && !selection.groups.has(Group::Memory), "what the table shows");
    let json = self::once("--format json").selection;
    assert!(json.groups.has(Group::Owner) && json.groups.has(Group::Memory));
    let stream = stream("");
    assert!(!stream.selection.groups.has(Group::Owner), "a stream does not scan all descriptors for every dump");
    assert!(stream.rates && stream.closes && stream.selection.states == u32::MAX);
    assert_eq!(format!("{:?}", stream.sinks), "[StdoutRequest(Text)]");
}

#[test]
fn selections() {
    let selection = once(
        "--kind udp,unix --state established,listen --port 80 --remote-port 443 --prefix 10.0.0.0/8 --fields rtt,loss",
    )
    .selection;
    assert!(selection.kinds.has(Kind::Unix) && !selection.kinds.has(Kind::Tcp));
    assert_eq!(selection.states, 1 << 1 | 1 << 10);
    assert_eq!(selection.ports, [(Side::Either, 80), (Side::Remote, 443)]);
    assert_eq!((selection.prefixes[0].side, selection.prefixes[0].length), (Side::Either, 8));
    assert!(
        selection.groups.has(Group::Rtt)
            && !selection.groups.has(Group::Memory)
            && selection.groups.has(Group::Identity)
    );
    assert_eq!(once("--state connected").selection.states & (1 << 10 | 1 << 7), 0);
}

#[test]
fn time_wait_is_there_for_who_asks() {
    for asks in
        ["--all", "-a", "--state all", "--state time-wait", "state time-wait", "( state time-wait or sport = :80 )"]
    {
        assert!(once(asks).selection.states & 1 << TIME_WAIT != 0, "{asks}");
    }
    for silent in ["--port 80", "dst 10.0.0.0/8", "--state established"] {
        assert_eq!(once(silent).selection.states & 1 << TIME_WAIT, 0, "{silent}");
    }
}

#[test]
fn filters_and_processes() {
    let selection = once("--pid 1 --process nginx state established ( dport = :443 or sport = :ssh )").selection;
    assert_eq!((selection.pids.as_slice(), selection.commands.as_slice()), (&[1][..], &["nginx".into()][..]));
    assert_eq!((selection.states, selection.ports.len()), (1 << 1, 2), "the kernel side applies states and ports");
    assert!(selection.groups.has(Group::Owner));
    let stream = stream("--pid 1 --format json").selection;
    assert!(stream.groups.has(Group::Owner) && stream.expression.is_none());
    assert!(!once("").selection.filters_rows());
}

#[test]
fn sort_keys_are_read() {
    let groups = once("--fields rtt --sort owner,pacing-rate --format json").selection.groups;
    assert!(groups.has(Group::Owner) && groups.has(Group::Rate) && !groups.has(Group::Memory));
}

#[test]
fn destinations() {
    let files = stream("--to /tmp/x --format json").sinks;
    assert_eq!(files.iter().map(|sink| sink.kind()).collect::<Vec<_>>(), ["files"]);
    assert_eq!(format!("{:?}", stream("--format json").sinks), "[StdoutRequest(Json)]");
    for (line, format) in [
        ("-o x.parquet", "Parquet"),
        ("--output x.PB.zst", "ProtobufZstd"),
        ("-o x.jsonl", "Json"),
        ("-o x --format protobuf", "Protobuf"),
    ] {
        let sinks = format!("{:?}", stream(line).sinks);
        assert!(sinks.contains("OneFileRequest") && sinks.contains(&format!("format: {format} ")), "{line}: {sinks}");
    }
    assert_eq!(stream("--prometheus 127.0.0.1:9474").sinks[0].kind(), "prometheus");
}

#[test]
fn errors_say_what_to_write_instead() {
    for (line, what, hint) in [
        ("once --fields rttt", "no group of fields `rttt`", "did you mean `rtt`?"),
        ("once --state open", "no state `open`", "established"),
        ("once --kind tcpp", "no kind of socket `tcpp`", "did you mean `tcp`?"),
        ("once --sort size", "no key to sort by `size`", "choose one of rqueue"),
        ("once --prefix 10.0.0.1/8", "has bits set", "10.0.0.0/8"),
        ("once --format json --wide", "--wide is for the table", "leave it out"),
        ("once state estblished", "no state `estblished`", "did you mean `established`?"),
        ("once tcp", "`tcp` is not part of a filter", "--kind tcp"),
        ("once --color never", "`--color` is not an option", "prints no colours"),
        ("once --colour", "`--colour` is not an option", "prints no colours"),
        ("once --procss x", "`--procss` is not an option", "did you mean `--process`?"),
        ("once --pid nginx", "`nginx` is not a process id", "--process nginx"),
        ("once -p", "`-p` is not an option", "the table has owners"),
        ("once -t", "`-t` is not an option", "--kind tcp"),
        ("once -o x", "`-o` is not an option", "> FILE"),
        ("stream -o sockets", "the name sockets says no format", ".parquet"),
        ("stream -o a.json --to b", "cannot be used together", "leave one"),
        ("once --all --state listen", "cannot be used together", "leave one"),
        ("stream --every 1ms", "--every is out of range", "100ms to 1h"),
        ("stream --to /tmp/x --format text", "tables are not written to files", "parquet"),
    ] {
        let error = request(line).expect_err(line);
        assert!(error.what.contains(what), "{line}: {}", error.what);
        assert!(error.hint.contains(hint), "{line}: {}", error.hint);
    }
}

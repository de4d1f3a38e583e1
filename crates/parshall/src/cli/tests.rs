//! What the command line takes, and what it says when it refuses.
use std::time::Duration;

use parshall_evidence::Rung;

use super::*;
use crate::diagnose::subject::Select;

fn request(line: &str) -> Request {
    match parse(line.split_whitespace()).unwrap() {
        Invocation::Do(request) => *request,
        Invocation::Print(text) => panic!("printed {text}"),
    }
}

fn mistake(line: &str) -> (String, String) {
    let error = parse(line.split_whitespace()).unwrap_err();
    assert!(!error.what.contains('\n') && !error.hint.contains('\n'), "{error:?}");
    assert!(!error.what.is_empty() && !error.hint.is_empty(), "{error:?}");
    (error.what, error.hint)
}

fn attach(line: &str) -> AttachConfig {
    match request(line) {
        Request::Attach(config) => config,
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_declaration_is_consistent() {
    command().debug_assert();
}

#[test]
fn every_command_has_help_with_examples() {
    for name in command().get_subcommands().map(|c| c.get_name().to_owned()).collect::<Vec<_>>() {
        match parse(["parshall", &name, "--help"]).unwrap() {
            Invocation::Print(text) => assert!(text.contains("Examples:"), "{name}: {text}"),
            Invocation::Do(request) => panic!("{request:?}"),
        }
    }
    match parse(["parshall", "--version"]).unwrap() {
        Invocation::Print(text) => assert!(text.starts_with("parshall "), "{text}"),
        Invocation::Do(request) => panic!("{request:?}"),
    }
}

#[test]
fn attach_selects() {
    assert_eq!(attach("parshall attach --pid 9 --pid 7 --pid 9").select, Select::Pids(vec![7, 9]));
    assert_eq!(attach("parshall attach --pid 7 --only").select, Select::Only(vec![7]));
    assert_eq!(attach("parshall attach --port 80").select, Select::Port(80));
    assert_eq!(attach("parshall attach --cgroup /a").select, Select::Cgroup("/a".into()));
    assert_eq!(attach("parshall attach --netns blue").select, Select::Netns("blue".into()));
    assert_eq!(attach("parshall attach --all").select, Select::All);
}

#[test]
fn attach_options() {
    let plain = attach("parshall attach --port 80");
    assert_eq!(plain.observe.window, Duration::from_secs(5));
    assert_eq!(plain.observe.rung, None);
    assert_eq!(plain.output.format, Format::Text);
    assert!(plain.save.is_none());
    let full = attach("parshall attach --port 80 --for 500ms --rung procfs --format json --color always --save x.json");
    assert_eq!(full.observe.window, Duration::from_millis(500));
    assert_eq!(full.observe.rung, Some(Rung::Procfs));
    assert_eq!(full.output.format, Format::Json);
    assert!(full.output.style.color);
    assert_eq!(full.save, Some("x.json".into()));
}

#[test]
fn run_takes_all_behind_the_dashes() {
    match request("parshall run --for 2s -- ls --help -- --pid") {
        Request::Run(config) => {
            assert_eq!(config.program, "ls");
            assert_eq!(config.arguments, ["--help", "--", "--pid"]);
            assert_eq!(config.observe.window, Duration::from_secs(2));
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn mistakes_have_a_hint() {
    let cases = [
        ("parshall", "no command is given", "lists the commands"),
        ("parshall atach --pid 1", "`atach` is not a command of `parshall`", "did you mean `attach`?"),
        ("parshall frobnicate", "`frobnicate` is not a command", "lists the commands"),
        ("parshall attach", "whom to observe is not given", "--pid N, --port N"),
        ("parshall attach --prt 80", "`--prt` is not an option of `parshall attach`", "did you mean `--port`?"),
        ("parshall attach --port 80 --only", "`--only` goes with `--pid`", "--pid N --only"),
        ("parshall attach --only", "whom to observe is not given", "--pid N, --port N"),
        ("parshall attach --port 80 --pid 1", "cannot be used together", "leave one of them out"),
        ("parshall attach --port http", "--port: `http` is not a TCP port", "1 to 65535"),
        ("parshall attach --pid nginx", "--pid: `nginx` is not a process id", "pidof nginx"),
        ("parshall attach --port 80 --for 5", "--for: `5` has no unit of time", "write 5s"),
        ("parshall attach --port 80 --for 2h", "--for: `2h` is too long", "from 200ms to 1h"),
        ("parshall attach --port", "--port needs a value", "write --port <PORT>"),
        ("parshall attach --port 80 --format jsn", "`jsn` is not one of its values", "did you mean `json`?"),
        ("parshall attach --port 80 --rung best", "`best` is not one of its values", "btf, tracepoint, procfs"),
        ("parshall run", "the command to run is not given", "behind `--`"),
        ("parshall run ls", "`ls` is not expected by `parshall run`", "behind `--`"),
        ("parshall show", "<CASE> is not given", "parshall show --help"),
        ("parshall doctor now", "`now` is not expected by `parshall doctor`", "parshall doctor --help"),
        ("parshall attach --port 1 --port 2", "given more than once", "leave one"),
    ];
    for (line, what, hint) in cases {
        let (got_what, got_hint) = mistake(line);
        assert!(got_what.contains(what), "{line}: {got_what}");
        assert!(got_hint.contains(hint), "{line}: {got_hint}");
    }
}

//! Arguments that the command line takes, and its errors for others.
#[cfg(feature = "relay")]
mod relay;
#[cfg(feature = "sockets")]
mod sockets;

use std::time::Duration;

use parshall_core::report::Detail;
use parshall_diagnose::report;
use parshall_diagnose::subject::{Select, Within};
use parshall_evidence::Rung;
use parshall_host::netns::{self, Netns};
use parshall_host::output::Destination;

use super::*;

fn request(line: &str) -> Request {
    match parse(line.split_whitespace()).unwrap() {
        Invocation::Do { request, .. } => *request,
        Invocation::Print(text) => panic!("printed {text}"),
    }
}

fn refused(line: &str) -> (String, String) {
    let error = parse(line.split_whitespace()).unwrap_err();
    assert!(!error.what.contains('\n') && !error.hint.contains('\n'), "{error:?}");
    assert!(!error.what.is_empty() && !error.hint.is_empty(), "{error:?}");
    (error.what, error.hint)
}

fn attach(line: &str) -> AttachRequest {
    match request(line) {
        Request::Attach(config) => config,
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_declaration_is_consistent() {
    command().debug_assert();
}

/// The words of every command, such as `["parshall", "lab", "run"]`.
fn all_commands(here: &clap::Command, path: &[String]) -> Vec<Vec<String>> {
    let path = [path, &[here.get_name().to_owned()]].concat();
    let below = here.get_subcommands().filter(|c| !c.is_hide_set()).flat_map(|c| all_commands(c, &path));
    [path.clone()].into_iter().chain(below).collect()
}

#[test]
fn every_command_has_help_with_examples_that_can_be_copied() {
    let examples = |text: &str| -> Vec<String> {
        let lines = text.lines().skip_while(|line| *line != "Examples:").skip(1);
        lines.take_while(|line| !line.is_empty()).map(str::to_owned).collect()
    };
    for words in all_commands(&command(), &[]) {
        let asked = [words.as_slice(), &["--help".to_owned()]].concat();
        let rendered = |width| {
            let command = help::unbroken(command()).term_width(width).max_term_width(width);
            help::rendered(&command.try_get_matches_from(&asked).unwrap_err().render().to_string())
        };
        let wide = examples(&rendered(1000));
        assert!(!wide.is_empty(), "{words:?} has no examples");
        for width in [40, 80] {
            let narrow = rendered(width);
            assert_eq!(examples(&narrow), wide, "{words:?} at {width}");
            let whole = |line: &str| line.matches('`').count().is_multiple_of(2);
            assert!(narrow.lines().all(whole), "{words:?} at {width} breaks a command: {narrow}");
        }
        for line in wide {
            assert!(line.chars().count() <= 80, "{words:?}: {line}");
            assert!(line.starts_with("  ") && !line.contains('\u{a0}'), "{words:?}: {line:?}");
        }
    }
    match parse(["parshall", "--version"]).unwrap() {
        Invocation::Print(text) => assert!(text.starts_with("parshall "), "{text}"),
        Invocation::Do { request, .. } => panic!("{request:?}"),
    }
}

#[test]
fn help_may_be_asked_for_in_words() {
    let printed = |line: &str| match parse(line.split_whitespace()).unwrap() {
        Invocation::Print(text) => text,
        Invocation::Do { request, .. } => panic!("{request:?}"),
    };
    assert_eq!(printed("parshall help"), printed("parshall --help"));
    assert_eq!(printed("parshall"), printed("parshall --help"));
    // The examples of those that matter come before the list of all.
    let screen = printed("parshall");
    let at = |text: &str| screen.find(text).unwrap_or_else(|| panic!("{text}: {screen}"));
    let first = ["attach --port", "run --", "try nodelay", "show slow", "doctor  "]
        .map(|verb| at(&format!("  parshall {verb}")));
    assert!(first.is_sorted() && first[4] < at("Commands:"), "{screen}");
    assert_eq!(printed("parshall help attach"), printed("parshall attach --help"));
    assert_eq!(printed("parshall help lab run"), printed("parshall lab run --help"));
    assert!(refused("parshall help atach").1.contains("did you mean `attach`?"));
}

#[test]
fn the_report_of_run_leaves_stdout_to_the_command() {
    let to = |line: &str| match request(line) {
        Request::Run(config) => config.results.to,
        Request::Attach(config) => config.results.to,
        Request::Show(config) => config.results.to,
        other => panic!("{other:?}"),
    };
    assert_eq!(to("parshall run -- ls"), Destination::Stderr);
    assert_eq!(to("parshall run --format json -- ls"), Destination::Stderr);
    assert_eq!(to("parshall run -o - -- ls -o x"), Destination::Stdout);
    assert_eq!(to("parshall run -o r.txt -- ls"), Destination::File("r.txt".into()));
    assert_eq!(to("parshall attach --all"), Destination::Stdout);
    assert_eq!(to("parshall attach --all --output r.txt"), Destination::File("r.txt".into()));
    assert_eq!(to("parshall show x.json -o /dev/stderr"), Destination::Stderr);
    assert!(refused("parshall run -o x --save x -- ls").0.contains("the same file"));
    assert!(refused("parshall show x -o x").0.contains("the case itself"));
    assert!(refused("parshall show x --html y --perfetto y").0.contains("the same file"));
    assert!(refused("parshall show x --mask --save x").0.contains("--save names the case itself"));
}

#[test]
fn attach_selects() {
    assert_eq!(attach("parshall attach --pid 9 --pid 7 --pid 9").select, Select::Pids(vec![7, 9]));
    assert_eq!(attach("parshall attach --pid 9,7 --pid 8").select, Select::Pids(vec![7, 8, 9]));
    let of_pgrep = parse(["parshall", "attach", "--pid", "12\n7\n9"]).unwrap();
    assert!(format!("{of_pgrep:?}").contains("Pids([7, 9, 12])"));
    let nginx = |only| Select::Named { names: vec!["nginx".to_owned()], only };
    assert_eq!(attach("parshall attach --process nginx").select, nginx(false));
    assert_eq!(attach("parshall attach --process /usr/sbin/nginx --only").select, nginx(true));
    assert_eq!(attach("parshall attach --pid 7 --only").select, Select::Only(vec![7]));
    assert_eq!(attach("parshall attach --port 80").select, Select::Ports(vec![80], Within::Own));
    assert_eq!(attach("parshall attach --port 443,80 --port 80").select, Select::Ports(vec![80, 443], Within::Own));
    let blue = || netns::parse("blue").unwrap();
    assert_eq!(attach("parshall attach --port 80 --netns blue").select, Select::Ports(vec![80], Within::Named(blue())));
    assert_eq!(
        attach("parshall attach --port 80 --netns all").select,
        Select::Ports(vec![80], Within::Named(Netns::All))
    );
    assert_eq!(attach("parshall attach --netns all").select, Select::All);
    assert_eq!(attach("parshall attach --cgroup /a").select, Select::Cgroup("/a".into()));
    assert_eq!(attach("parshall attach --netns blue").select, Select::Netns(blue()));
    assert_eq!(attach("parshall attach --all").select, Select::All);
}

#[test]
fn attach_options() {
    let plain = attach("parshall attach --port 80");
    assert_eq!(plain.observe.window, Duration::from_secs(5));
    assert_eq!(plain.observe.rung, None);
    assert!(plain.observe.peek && !attach("parshall attach --port 80 --no-peek").observe.peek);
    assert!(plain.observe.log.is_none());
    let streams = attach("parshall attach --log --port 80").observe.log;
    assert!(streams.is_some() && streams == attach("parshall attach --port 80 --log -").observe.log);
    assert_ne!(streams, attach("parshall attach --port 80 --log /proc/self/exe --log").observe.log);
    let interpreters = |line| attach(line).observe.interpreters;
    assert!(!interpreters("parshall attach --port 80") && interpreters("parshall attach --port 80 --interpreters"));
    assert_eq!(plain.results.output.format, report::Format::Text);
    assert!(plain.results.save.is_none());
    let full = attach("parshall attach --port 80 --for 500ms --rung procfs --format json --color always --save x.json");
    assert_eq!(full.observe.window, Duration::from_millis(500));
    assert_eq!(full.observe.rung, Some(Rung::Procfs));
    assert_eq!(full.results.output.format, report::Format::Json);
    assert!(full.results.output.style.color);
    assert_eq!(full.results.output.detail, Detail::Short);
    assert_eq!(attach("parshall attach --port 80 --full").results.output.detail, Detail::Full);
    assert_eq!(full.results.save, Some("x.json".into()));
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
fn errors_have_a_hint() {
    let empty = parse(["parshall", "attach", "--port", "80", "--for", ""]).unwrap_err();
    assert_eq!((empty.what.as_str(), empty.hint.contains("500ms")), ("--for: the time is empty", true));
    let cases = [
        ("parshall lab", "no command is given", "lists the commands"),
        ("parshall atach --pid 1", "`atach` is not a command of `parshall`", "did you mean `attach`?"),
        ("parshall frobnicate", "`frobnicate` is not a command", "lists the commands"),
        ("parshall attach", "no subject is given", "--port N, --process NAME"),
        ("parshall attach --prt 80", "`--prt` is not an option of `parshall attach`", "did you mean `--port`?"),
        ("parshall attach --port 80 --only", "`--only` goes with `--pid`", "--pid N --only"),
        ("parshall attach --only", "no subject is given", "--port N, --process NAME"),
        ("parshall attach --port 80 --pid 1", "cannot be used together", "leave one of them out"),
        ("parshall attach --pid 1 --netns blue", "cannot be used together", "leave one of them out"),
        ("parshall attach --netns blue --all", "cannot be used together", "leave one of them out"),
        ("parshall attach --netns ..", "`..` is not the name of a network namespace", "ip netns list"),
        ("parshall attach --port http", "--port: `http` is not a port", "1 to 65535"),
        ("parshall attach --pid nginx", "--pid: `nginx` is not a process id", "--process nginx"),
        ("parshall attach --port 80 --for 5", "--for: `5` has no unit of time", "write 5s"),
        ("parshall attach --port 80 --for 2h", "--for: `2h` is too long", "from 200ms to 1h"),
        ("parshall attach --port", "--port needs a value", "write --port <PORT,...>"),
        ("parshall attach --port 80 --format jsn", "`jsn` is not one of its values", "did you mean `json`?"),
        ("parshall attach --port 80 --rung best", "`best` is not one of its values", "btf, tracepoint, procfs"),
        ("parshall run", "the command to run is not given", "behind `--`"),
        ("parshall run ls", "`ls` is not expected by `parshall run`", "behind `--`"),
        ("parshall show", "<CASE> is not given", "`parshall show slow.json`"),
        ("parshall doctor now", "`now` is not expected by `parshall doctor`", "parshall doctor --help"),
        ("parshall attach --all --for 1s --for 2s", "given more than once", "leave one"),
        ("parshall attach --port 80,x", "--port: `x` is not a port", "1 to 65535"),
        ("parshall attach nginx", "`nginx` is not expected by `parshall attach`", "`parshall attach --process nginx`"),
        ("parshall attach 1234", "`1234` is not expected by `parshall attach`", "`parshall attach --port 1234`"),
        ("parshall attach --process nginx --pid 1", "cannot be used together", "leave one"),
        ("parshall lab run", "no case, fault or control is named", "`parshall lab list`"),
        ("parshall lab run --runs 0 cases", "--runs: `0` is out of range", "from 1 to 1000"),
        ("parshall lab run --runs x cases", "--runs: `x` is not a whole number", "`--runs 10`"),
        ("parshall lab run --for 0s cases", "--for: `0s` is too short", "from 200ms"),
        ("parshall lab run --rung best cases", "`best` is not one of its values", "btf, tracepoint, procfs"),
        ("parshall lab wire --delay-ms x", "--delay-ms: `x` is not a number", "`--delay-ms 2.5`"),
        ("parshall lab wire --for x", "--for: `x` is not a length of time", "as 500ms"),
        ("parshall lab load stream --write-bytes 0", "--write-bytes: `0` is not a number of bytes", "1 to 16777216"),
        ("parshall lab load stream --serve x", "--serve: `x` is not an address and a port", "127.0.0.1:"),
        ("parshall sockets stream --count 0", "--count: `0` is out of range", "of at least 1"),
        ("parshall sockets once --limit x", "--limit: `x` is not a whole number", "`--limit 10`"),
    ];
    for (line, what, hint) in cases {
        let (got_what, got_hint) = refused(line);
        assert!(got_what.contains(what), "{line}: {got_what}");
        assert!(got_hint.contains(hint), "{line}: {got_hint}");
    }
}

//! `run`: the observation of a command from its start to its end, its streams and signals, and exit codes.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::common::{self, PARSHALL, Running, Scratch, begin, begin_window, has, parshall, service_py, verdict};
use parshall_evidence::{CommandEnd, Report, Status};

const CAUSE: &str = "nagle-delayed-ack";

/// A command whose children are server and client and have all of its sockets.
fn forks(rounds: &str) -> Vec<String> {
    ["python3", &service_py(), "fork", "--rounds", rounds].map(str::to_owned).to_vec()
}

fn run(options: &[&str], command: &[String]) -> common::Done {
    let command = command.iter().map(String::as_str);
    let arguments: Vec<&str> =
        ["run"].into_iter().chain(options.iter().copied()).chain(["--"]).chain(command).collect();
    parshall(&arguments)
}

/// As [`run`], with the report in a file.
fn report(options: &[&str], command: &[String]) -> (common::Done, Report) {
    let scratch = Scratch::new();
    let file = scratch.file("report.json");
    let options = [&["--format", "json", "-o", file.to_str().unwrap()], options].concat();
    let done = run(&options, command);
    let report = read_report(&file);
    (done, report)
}

fn read_report(file: &Path) -> Report {
    serde_json::from_slice(&std::fs::read(file).expect("a report was written")).expect("one report")
}

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).expect("it was written").permissions().mode() & 0o777
}

fn sh(script: &str) -> Vec<String> {
    ["sh", "-c", script].map(str::to_owned).to_vec()
}

#[test]
fn stdout_belongs_to_the_command_and_the_report_goes_to_stderr() {
    let what = "run: sockets of children";
    if !has(&["python3"], what) || !common::btf(what) {
        return;
    }
    let done = run(&[], &forks("40"));
    assert_eq!(done.code, Some(0), "{done:?}");
    assert!(done.stdout.ends_with("both children are done\n") && !done.stdout.contains("parshall"), "{done:?}");
    assert!(done.stderr.starts_with("parshall · "), "{}", done.stderr);
    assert!(done.stderr.contains("(nagle-delayed-ack, confidence "), "{}", done.stderr);
}

#[test]
fn with_o_the_file_holds_only_the_report() {
    let what = "run -o FILE --format json";
    if !has(&["python3"], what) || !common::btf(what) {
        return;
    }
    let (done, report) = report(&[], &forks("40"));
    assert!(done.stdout.ends_with("both children are done\n") && done.stderr.is_empty(), "{done:?}");
    assert_eq!(verdict(&report), CAUSE, "{report:#?}");
    // The window is as long as the command ran: 40 requests of 40 ms each, and the start of Python.
    assert!(report.window_s > 1.4 && report.window_s < done.took.as_secs_f64(), "{}", report.window_s);
    // If `python3` is a wrapper script, its children belong to the subject too.
    let pythons = report.subject.comms.iter().filter(|comm| *comm == "python3").count();
    assert_eq!(pythons, 3, "the command and both of its children: {:?}", report.subject);
    assert_eq!((report.subject.comms[0].as_str(), report.subject.ports.len()), ("python3", 1), "{:?}", report.subject);
}

#[test]
fn json_may_go_to_stderr_or_stdout() {
    let done = run(&["--format", "json"], &sh("echo out"));
    assert_eq!(done.stdout, "out\n");
    let from_stderr: Report = serde_json::from_str(&done.stderr).expect("one report");
    assert_eq!(from_stderr.command.expect("run").end, CommandEnd::Exited { exit_status: 0 });
    let done = run(&["--format", "json", "-o", "-"], &sh("echo err >&2"));
    assert_eq!(done.stderr, "err\n");
    done.report();
}

#[test]
fn a_command_that_cannot_be_run_is_an_error() {
    let scratch = Scratch::new();
    let text = scratch.file("no-program");
    std::fs::write(&text, "just text").unwrap();
    for command in ["no-such-command-here", "/no/such/path", "/tmp", text.to_str().unwrap()] {
        for format in ["text", "json"] {
            let done = run(&["--format", format], &[command.to_owned()]);
            let (error, _) = done.error_and_hint();
            assert!(error.contains(command), "{error}");
        }
    }
}

#[test]
fn a_missing_interpreter_is_an_error() {
    let scratch = Scratch::new();
    let script = scratch.file("script");
    // By another process: see Scratch::parshall().
    let write = r##"echo '#!/no/such/interpreter' > "$0" && chmod 755 "$0""##;
    assert!(Command::new("sh").args(["-c", write]).arg(&script).status().unwrap().success());
    let done = run(&["--exit-code"], &[script.to_str().unwrap().to_owned()]);
    let (error, hint) = done.error_and_hint();
    assert_eq!(done.code, Some(1), "{done:?}");
    assert!(error.contains("could not be run: No such file") && hint.contains("interpreter"), "{done:?}");
}

/// The report names the command and how it ended on every rung, also for a very short command.
#[test]
fn a_command_that_ends_at_once() {
    for rung in common::some_of(&["btf", "procfs", "tracepoint"], 1) {
        let exited = |exit_status| CommandEnd::Exited { exit_status };
        let killed = CommandEnd::Killed { signal: 9, signal_name: "SIGKILL".to_owned() };
        for (script, end, code) in [("true", exited(0), 0), ("exit 3", exited(3), 3), ("kill -9 $$", killed, 137)] {
            let (done, report) = report(&["--rung", rung, "--exit-code"], &sh(script));
            assert_eq!(done.orderly().code, Some(code), "{rung}: {done:?}");
            assert_eq!(report.verdict.status, Status::InsufficientEvidence, "{report:#?}");
            let command = report.command.expect("a report of run has its command");
            assert_eq!((command.name.as_str(), &command.end), ("sh", &end), "{rung}");
            assert_eq!((&report.subject.pids, &report.subject.comms), (&vec![command.pid], &vec!["sh".to_owned()]));
        }
    }
    let done = run(&[], &sh("exit 3"));
    assert_eq!(done.code, Some(0), "{done:?}");
    assert!(done.stderr.starts_with("parshall · pid ") && done.stderr.contains(" sh · exit status 3 · "), "{done:?}");
    assert_eq!(run(&["-o", "/dev/null", "--exit-code"], &sh("exit 3")).code, Some(3));
}

#[test]
fn arguments_of_the_command_are_not_written_anywhere() {
    const SECRET: &str = "hunter2";
    let scratch = Scratch::new();
    let (case, out) = (scratch.file("case.json"), scratch.file("report.json"));
    let files = ["--save", case.to_str().unwrap(), "-o", out.to_str().unwrap(), "--format", "json"];
    for rung in common::some_of(&["btf", "procfs", "tracepoint"], 2) {
        for life in ["", "sleep 0.4;"] {
            let done = run(&[&["--rung", rung], &files[..]].concat(), &sh(&format!("{life}: {SECRET}")));
            assert_eq!((done.code, done.stderr.as_str()), (Some(0), ""), "{done:?}");
            for file in [&case, &out] {
                let bytes = std::fs::read(file).expect("it was written");
                let bytes = if file == &case { zstd::decode_all(&bytes[..]).expect("a zstd frame") } else { bytes };
                let text = String::from_utf8(bytes).expect("JSON");
                assert!(!text.contains(SECRET), "{rung}, {life:?}: {text}");
                assert!(!text.contains("__gate"), "{rung}, {life:?}: {text}");
                assert_eq!(mode(file), 0o600, "{}", file.display());
            }
        }
    }
}

#[test]
fn a_case_holds_time_host_and_command_line_of_its_capture() {
    let scratch = Scratch::new();
    let case = scratch.file("case.json");
    let case = case.to_str().unwrap();
    let before = std::time::SystemTime::now();
    let (_, made) = report(&["--rung", "procfs", "--save", case], &sh("sleep 0.3"));
    let origin = made.origin.clone().expect("an origin");
    let uname = |flag| String::from_utf8(Command::new("uname").arg(flag).output().unwrap().stdout).unwrap();
    assert_eq!((origin.host.as_str(), origin.kernel.as_str()), (uname("-n").trim(), uname("-r").trim()));
    assert_eq!(origin.version, env!("CARGO_PKG_VERSION"));
    assert_eq!(origin.command_line.first().map(String::as_str), Some("parshall"));
    assert_eq!(origin.command_line.last().map(String::as_str), Some("--"));
    assert!(origin.command_line.contains(&"--save".to_owned()), "{origin:?}");
    let seconds = |time: &str| -> u64 {
        let done = Command::new("date").args(["-u", "+%s", "-d", time]).output().unwrap();
        String::from_utf8(done.stdout).unwrap().trim().parse().unwrap()
    };
    let began = before.duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
    assert!((began..began + 60).contains(&seconds(&origin.time)), "{origin:?}");
    // `show` prints the same, as the whole report.
    let shown = parshall(&["show", case, "--format", "json"]).report();
    assert_eq!(shown, made);
    let text = parshall(&["show", case, "--full"]).stdout;
    let (day, _) = origin.time.split_once('T').unwrap();
    assert!(
        text.contains(&format!("\n  {day} ")) && text.contains(&format!(" UTC · {} · Linux ", origin.host)),
        "{text}"
    );
    assert!(text.contains("parshall run ") && text.contains("-- …"), "{text}");
}

#[test]
fn the_command_gets_its_arguments_and_stdin_unchanged() {
    let done = run(&[], &["printf", "%s|", "a b", "--for", "", "$HOME", "--"].map(str::to_owned));
    assert!(done.stdout.starts_with("a b|--for||$HOME|--|"), "{done:?}");
    let done = run(&[], &sh("cat; echo end of stdin; echo to stderr >&2"));
    assert!(done.stdout.starts_with("end of stdin\n"), "{done:?}");
    assert!(done.stderr.starts_with("to stderr\n"), "{done:?}");
}

#[test]
fn the_window_may_be_shorter_than_the_command() {
    let run = |seconds: u64| {
        let command = sh(&format!("sleep {seconds}; echo the end; exit 4"));
        let (done, report) = report(&["--for", "500ms", "--exit-code"], &command);
        assert!(report.window_s > 0.4 && report.window_s < done.took.as_secs_f64(), "{}", report.window_s);
        // parshall stays in the foreground until the command has ended.
        assert!(done.took > Duration::from_secs(seconds) && done.stdout.contains("the end"), "{done:?}");
        (done.code, report.command.map(|command| command.end))
    };
    let running = (Some(4), Some(CommandEnd::Running));
    // A window lasts longer where others have the CPUs.
    assert!(run(3) == running || run(30) == running, "the command had ended");
}

#[test]
fn ctrl_c_ends_both_and_the_report_is_written() {
    let what = "run: Ctrl-C";
    if !has(&["python3"], what) || !common::btf(what) {
        return;
    }
    let script = format!("python3 {} fork", service_py());
    // A terminal sends the signal to every process of the foreground group.
    // A background job of a shell without job control ignores SIGINT and its children inherit that, hence --default-signal.
    let mut command = Command::new("env");
    let scratch = Scratch::new();
    let file = scratch.file("report.json");
    let out = file.to_str().unwrap();
    command.args(["--default-signal=INT", PARSHALL, "run", "--format", "json", "-o", out, "--", "sh", "-c", &script]);
    command.process_group(0);
    let running = begin_window(&mut command);
    let group = format!("-{}", running.pid());
    std::thread::sleep(Duration::from_millis(2500));
    assert!(Command::new("kill").args(["-INT", "--", &group]).status().unwrap().success());
    assert_eq!(running.finish().code, Some(0));
    let report = read_report(&file);
    assert_eq!(verdict(&report), CAUSE, "{report:#?}");
    assert!(report.window_s > 1.0, "{}", report.window_s);
}

/// Starts a command under `run` and waits until it has created the file $READY. The report goes to `file`.
fn start_ready(command_line: &[&str], file: &Path) -> Running {
    let out = file.to_str().unwrap();
    let mut command = Command::new("env");
    command.args(["--default-signal=INT,TERM,HUP,USR1", PARSHALL, "run", "--rung", "procfs", "--exit-code"]);
    command.args(["--format", "json", "-o", out, "--"]).args(command_line);
    let ready = file.with_extension("ready");
    let running = begin(command.env("READY", &ready));
    common::until("the script is ready", || ready.exists());
    running
}

#[test]
fn a_signal_sent_to_parshall_reaches_the_command_once() {
    if !has(&["python3"], "run: signals to parshall") {
        return;
    }
    for (signal, number) in common::some_of(&[("TERM", 15), ("INT", 2), ("HUP", 1), ("USR1", 10)], 2) {
        let scratch = Scratch::new();
        let file = scratch.file("report.json");
        let running = start_ready(&["python3", "-c", COUNT, signal], &file);
        running.signal(&format!("-{signal}"));
        let done = running.finish();
        // The command handles the signal and goes on, and so does the observation.
        assert_eq!((done.code, done.stdout.as_str()), (Some(7), "got 1\n"), "{signal}: {done:?}");
        let report = read_report(&file);
        assert_eq!(report.command.expect("run").end, CommandEnd::Exited { exit_status: 7 });
        // A shell keeps ignoring signals that were ignored at its start, such as SIGINT in background jobs of scripts.
        let mut killed = vec!["env".to_owned(), "--default-signal".to_owned()];
        killed.extend(sh(&format!("kill -{number} $$")));
        assert_eq!(run(&["-o", "/dev/null", "--exit-code"], &killed).code, Some(128 + number));
    }
}

/// Counts a signal for almost a second. A shell would count two signals as one: it runs a trap only after its child ends.
const COUNT: &str = r"
import os, signal, sys, time
number, count = signal.Signals['SIG' + sys.argv[1]], 0
def handle(*_):
    global count
    count += 1
signal.signal(number, handle)
open(os.environ['READY'], 'w').close()
end = time.monotonic() + 0.8
while time.monotonic() < end:
    time.sleep(0.1)
print('got', count)
sys.exit(7)
";

#[test]
fn a_signal_sent_to_the_process_group_reaches_the_command_once() {
    if !has(&["python3"], "run: signals to the process group") {
        return;
    }
    for signal in ["TERM", "INT", "HUP", "USR1"] {
        let scratch = Scratch::new();
        let ready = scratch.file("ready");
        let mut command = Command::new("env");
        command.args([&format!("--default-signal={signal}"), PARSHALL, "run", "--rung", "procfs", "--exit-code"]);
        command.args(["-o", "/dev/null", "--", "python3", "-c", COUNT, signal]).env("READY", &ready).process_group(0);
        let running = begin(&mut command);
        common::until("the script is ready", || ready.exists());
        // As timeout(1) does: first to its child, then to the whole group, by one process.
        let pid = running.pid().to_string();
        let both = ["-c", "kill -$0 $1; kill -$0 -$1", signal, &pid];
        assert!(Command::new("sh").args(both).status().unwrap().success());
        let done = running.finish();
        assert_eq!((done.code, done.stdout.as_str()), (Some(7), "got 1\n"), "{signal}: {done:?}");
    }
}

/// Runs its arguments on a new terminal, types Ctrl-C when $READY exists, and prints the output of the terminal.
const TYPE_CTRL_C: &str = r"
import os, pty, sys, time
pid, terminal = pty.fork()
if pid == 0:
    os.execvp(sys.argv[1], sys.argv[1:])
while not os.path.exists(os.environ['READY']):
    time.sleep(0.01)
os.write(terminal, b'\x03')
seen = b''
while True:
    try:
        some = os.read(terminal, 4096)
    except OSError:
        break
    if not some:
        break
    seen += some
print(seen.decode().replace('\r', ''), end='')
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
";

#[test]
fn ctrl_c_at_a_terminal_reaches_the_command_once() {
    if !has(&["python3"], "run: Ctrl-C at a terminal") {
        return;
    }
    let scratch = Scratch::new();
    let (file, ready) = (scratch.file("report.json"), scratch.file("ready"));
    let mut command = Command::new("env");
    command.args(["--default-signal=INT", "python3", "-c", TYPE_CTRL_C, PARSHALL, "run", "--rung", "procfs"]);
    command.args(["--exit-code", "--format", "json", "-o", file.to_str().unwrap(), "--"]);
    command.args(["python3", "-c", COUNT, "INT"]);
    let done = common::finish(command.env("READY", &ready));
    assert_eq!((done.code, done.stdout.as_str()), (Some(7), "^Cgot 1\n"), "{done:?}");
    // The command may handle a Ctrl-C, as a database client does to end a query. The observation goes on.
    assert_eq!(read_report(&file).command.expect("run").end, CommandEnd::Exited { exit_status: 7 });
}

#[test]
fn a_command_that_ignores_sigterm_is_reported_while_it_runs_on() {
    let scratch = Scratch::new();
    let file = scratch.file("report.json");
    let script = "trap : TERM; : >$READY; i=0; while [ $i -lt 25 ]; do sleep 0.1; i=$((i+1)); done";
    let running = start_ready(&["sh", "-c", script], &file);
    running.signal("-TERM");
    common::until("the report", || file.exists());
    assert!(!running.children().is_empty(), "the command was ended");
    assert_eq!(read_report(&file).command.expect("run").end, CommandEnd::Running);
    assert_eq!(running.finish().code, Some(0));
}

#[test]
fn a_failing_observation_does_not_lose_the_work_of_the_command() {
    let scratch = Scratch::new();
    let began = scratch.file("began");
    let save = scratch.file("no-such-directory/case.json");
    let script = format!("touch {}", began.display());
    let done = run(&["--save", save.to_str().unwrap(), "--format", "json"], &sh(&script));
    // Either the error is found before the command is started, or the report is printed all the same.
    assert_eq!(done.code, Some(1), "{done:?}");
    assert!(done.stderr.contains("error: ") && done.stderr.contains("hint: "), "{done:?}");
    assert!(!began.exists() || !done.stdout.is_empty(), "the command ran and its report is lost: {done:?}");
}

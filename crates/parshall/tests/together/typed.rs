//! The command line as people type it: what they guess works, and a wrong command line leads them on.

use std::process::Command;

use crate::common::{Done, PARSHALL, Scratch, begin, finish, has, parshall, root};

/// The version and the help are there before anything is read: no file under /proc or /sys but what the standard library reads of
/// its own process, and few calls.
#[test]
fn the_version_and_the_help_read_nothing() {
    if !has(&["strace"], "system calls before the first line") {
        return;
    }
    for argument in ["--version", "--help"] {
        let scratch = Scratch::new();
        let log = scratch.file("calls");
        let done = finish(Command::new("strace").args(["-f", "-o"]).arg(&log).args([PARSHALL, argument]));
        assert_eq!(done.code, Some(0), "{done:?}");
        let calls = std::fs::read_to_string(&log).expect("strace wrote it");
        let opened: Vec<&str> = calls
            .lines()
            .filter(|line| line.contains("\"/proc/") || line.contains("\"/sys/"))
            .filter(|line| !line.contains("/proc/self/maps") && !line.contains("execve("))
            .collect();
        assert!(opened.is_empty(), "{argument}: {opened:#?}");
        assert!(calls.lines().count() < 300, "{argument}: {} system calls", calls.lines().count());
        assert!(!calls.contains("clone") && !calls.contains("socket("), "{argument}: {calls}");
    }
}

#[test]
fn alone_it_shows_the_help() {
    let done = parshall(&[]);
    assert_eq!((done.code, done.stderr.as_str()), (Some(0), ""));
    assert_eq!(done.stdout, parshall(&["--help"]).stdout);
}

/// In an empty directory.
fn typed(line: &str) -> Done {
    let scratch = Scratch::new();
    let directory = scratch.file("");
    std::fs::write(directory.join("text.txt"), "hello\n").expect("writable");
    std::fs::write(directory.join("report.json"), "{\"schema\":\"parshall.verdict/1\"}\n").expect("writable");
    let mut command = Command::new("sh");
    command.arg("-c").arg(line.replacen("parshall", PARSHALL, 1)).current_dir(&directory);
    finish(&mut command)
}

/// One line that says what is wrong, one that leads on, and an exit code that a script can tell.
#[test]
fn a_wrong_command_line_leads_on() {
    for (line, code, what, hint) in [
        ("parshall atatch --port 80", 2, "`atatch` is not a command", "did you mean `attach`"),
        ("parshall diagnose --port 80", 2, "`diagnose` is not a command", "parshall attach"),
        ("parshall --port 80", 2, "`--port` is not an option of `parshall`", "parshall attach"),
        ("parshall attach", 2, "no subject is given", "--port N"),
        ("parshall attach 1", 2, "`1` is not expected", "--pid 1"),
        ("parshall attach nginx", 2, "`nginx` is not expected", "--process nginx"),
        ("parshall attach -p 1", 2, "`-p` is not an option", "--pid"),
        ("parshall attach --pids 1", 2, "`--pids` is not an option", "--pid"),
        ("parshall attach --name nginx", 2, "`--name` is not an option", "--process"),
        ("parshall attach --port 0", 2, "`0` is not a port", "1 to 65535"),
        ("parshall attach --port 99999", 2, "`99999` is not a port", "1 to 65535"),
        ("parshall attach --port 80 443", 2, "`443` is not expected", "--port 1,2"),
        ("parshall attach --port :80", 2, "`:80` is not a port", "1 to 65535"),
        ("parshall attach --port 1", 1, "nothing listens on", "`ss -"),
        ("parshall attach --pid 4194303", 1, "there is no process 4194303", "ps -e"),
        ("parshall attach --pid ''", 2, "no process id is given", "pgrep"),
        ("parshall attach --pid nginx", 2, "`nginx` is not a process id", "--process nginx"),
        ("parshall attach --process no-such-program", 1, "no process has the name `no-such-program`", "ps -e"),
        ("parshall attach --cgroup /no/such", 1, "there is no control group", "/sys/fs/cgroup"),
        ("parshall attach --netns nowhere-9", 1, "nowhere-9", "/proc/PID/ns/net"),
        ("parshall attach --all --for 10", 2, "has no unit of time", "10s"),
        ("parshall attach --all --duration 10s", 2, "`--duration` is not an option", "--for"),
        ("parshall attach --all --time 10s", 2, "`--time` is not an option", "--for"),
        ("parshall attach --all --json", 2, "`--json` is not an option", "--format json"),
        ("parshall attach --all -o /no/such/file", 1, "cannot be written", "-o"),
        ("parshall attach --all -o .", 1, "it is a directory", "-o"),
        ("parshall run ls", 2, "`ls` is not expected", "behind `--`"),
        ("parshall run", 2, "the command to run is not given", "behind `--`"),
        ("parshall run -- no-such-program", 1, "no-such-program", "PATH"),
        ("parshall run -- ./text.txt", 1, "text.txt", "executable"),
        ("parshall show", 2, "<CASE> is not given", "--save"),
        ("parshall show report.json report.json", 2, "`report.json` is not expected", "one case"),
        ("parshall show nothing.json", 1, "could not be read", "--save"),
        ("parshall show .", 1, "could not be read", "--save"),
        ("parshall show text.txt", 1, "is not a saved case", "--save"),
        ("parshall show report.json", 1, "is a report of --format json", "jq .verdict"),
        ("parshall try nodelay", 2, "no service is given", "--port"),
        ("parshall try --port 80", 2, "what to change is not given", "nodelay"),
        ("parshall try nodlay --port 80 --yes", 2, "nodlay", "nodelay"),
        ("parshall try nodelay 80", 2, "`80` is not expected", "`--port 80`"),
        ("parshall doctor --port 80", 2, "`--port` is not an option", "parshall attach"),
        ("parshall explain nagle-delayed-ack", 2, "`explain` is not a command", "docs/causes.md"),
        ("parshall sockets", 2, "no command is given", "lists the commands"),
        ("parshall sockets list", 2, "`list` is not a command", "parshall sockets once"),
        ("parshall sockets once -tan", 2, "`-t` is not an option", "TCP is the default"),
        ("parshall relay 9000 10.0.0.2:9001", 2, "9000", "127.0.0.1:9000"),
        ("parshall relay 127.0.0.1:9000", 2, "", "parshall relay"),
        ("parshall tunnel up", 2, "is not given", "parshall tunnel up wg0"),
        ("parshall tunnel down", 2, "is not given", "parshall tunnel down wg0"),
        ("parshall tunnel up nowhere-9", 1, "nowhere-9.conf cannot be read", "/etc/wireguard"),
        ("parshall tunnel up ./text.txt", 1, "text.txt, line 1", ""),
        ("parshall tunnel show nowhere-9", 1, "no tunnel nowhere-9 is up", "tunnel show"),
        ("parshall lab run nagle", 1, "nagle", "nagle-stall"),
        ("parshall lab ab", 2, "no experiment is given", "'COMMAND' 'COMMAND'"),
        ("parshall lab ab -- gzip", 2, "1 command behind `--`", "two"),
        ("parshall lab compare nothing.jsonl", 1, "nothing.jsonl cannot be read", "lab ab"),
        ("parshall lab ab nothing.toml", 1, "nothing.toml cannot be read", "file"),
    ] {
        let done = typed(line);
        let (error, hinted) = done.error_and_hint();
        assert!(error.contains(what), "{line}: {error}");
        assert!(hinted.contains(hint), "{line}: {hinted}");
        assert_eq!(done.code, Some(code), "{line}: {done:?}");
        assert_eq!(done.stdout, "", "{line}");
    }
}

#[test]
fn a_user_without_rights_is_led_on_too() {
    if !root("a user without rights") || !has(&["setpriv"], "a user without rights") {
        return;
    }
    // The user may not read the directory of the build.
    let scratch = Scratch::shared();
    let own = scratch.parshall();
    let file = scratch.file("text.conf");
    std::fs::write(&file, "[Interface]\n").expect("writable");
    for (words, what, hint) in [
        (&["tunnel", "up", file.to_str().expect("plain")][..], "", "root"),
        (&["try", "nodelay", "--pid", "1", "--yes"], "", "root"),
    ] {
        let mut command = Command::new("setpriv");
        command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"]).arg(&own).args(words).current_dir("/");
        let done = finish(&mut command);
        let (error, hinted) = done.error_and_hint();
        assert!(error.contains(what) && hinted.contains(hint), "{words:?}: {done:?}");
        assert_eq!(done.code, Some(1), "{words:?}: {done:?}");
    }
}

#[test]
fn two_commands_are_compared_without_a_file() {
    let scratch = Scratch::new();
    let directory = scratch.file("");
    let lab = |words: &[&str]| {
        finish(Command::new(PARSHALL).args(["lab", "ab", "--blocks", "8"]).args(words).current_dir(&directory))
    };
    let checked = lab(&["--check", "--", "true", "sleep 0.2"]);
    assert_eq!(checked.code, Some(0), "{checked:?}");
    assert!(checked.stdout.contains("command: true, sleep 0.2") && checked.stdout.contains("not kept"), "{checked:?}");
    let done = lab(&["--", "true", "sleep 0.2"]);
    // Worse; on a host on which much else runs there may be no answer.
    assert!(matches!(done.code, Some(3 | 4)), "{done:?}");
    assert!(done.stdout.contains("sleep 0.2"), "{done:?}");
    assert_eq!(std::fs::read_dir(&directory).expect("ours").count(), 0, "nothing is left behind");
    let failed = lab(&["--", "true", "exit 7"]);
    assert!(failed.error_and_hint().0.contains("`exit 7` failed: it ended with exit status: 7"), "{failed:?}");
}

#[test]
fn a_stream_goes_to_a_file_and_a_table_ends_with_the_listeners() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("loopback");
    let port = listener.local_addr().expect("bound").port().to_string();
    let _client = std::net::TcpStream::connect(("127.0.0.1", port.parse().expect("a port"))).expect("a connection");
    let table = parshall(&["sockets", "once", "--port", &port]);
    let rows: Vec<&str> = table.stdout.lines().filter(|line| line.contains(&format!(":{port}"))).collect();
    assert_eq!(rows.len(), 3, "{table:?}");
    assert!(rows[2].to_lowercase().contains("listen"), "{table:?}");

    let scratch = Scratch::new();
    let file = scratch.file("sockets.json");
    let stream = ["sockets", "stream", "--port", &port, "--count", "2", "--every", "100ms", "-o"];
    let done = begin(Command::new(PARSHALL).args(stream).arg(&file)).finish();
    assert_eq!((done.code, done.stdout.as_str()), (Some(0), ""), "{done:?}");
    let text = std::fs::read_to_string(&file).expect("written");
    assert!(text.lines().filter(|line| line.contains("\"local_port\"")).count() >= 6, "{text}");
}

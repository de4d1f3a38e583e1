//! Verbs and flags of other tools that people type instead, with the hint that leads on. clap itself finds misspelt ones.

/// Verbs, of `parshall` or of a product, that are not there.
const VERBS: &[(&str, &[&str], &str)] = &[
    (
        "parshall",
        &["diagnose", "trace", "watch", "observe", "profile", "record", "monitor", "why", "analyze", "analyse", "top"],
        "to diagnose what runs: `parshall attach --port PORT` or `--process NAME`",
    ),
    ("parshall", &["exec", "start", "stat"], "to diagnose a command: `parshall run -- CMD`"),
    ("parshall", &["report", "open", "view", "replay"], "`parshall show CASE` shows what `--save` has kept"),
    ("parshall", &["check", "probe", "status", "info", "setup"], "`parshall doctor` says what this host allows"),
    ("parshall", &["explain", "causes"], "docs/causes.md has all causes in words, with their fixes"),
    ("parshall", &["ss", "netstat", "connections"], "`parshall sockets once` is the table of all sockets"),
    ("parshall", &["proxy", "forward"], "`parshall relay LISTEN TARGET` forwards TCP and UDP"),
    ("parshall", &["vpn", "wg", "wireguard"], "`parshall tunnel up NAME` reads /etc/wireguard/NAME.conf"),
    ("parshall", &["bench", "compare", "ab"], "`parshall lab ab -- 'COMMAND' 'COMMAND'` compares two commands"),
    ("parshall", &["version"], "`parshall --version` prints it"),
    (
        "parshall",
        &["upgrade", "update", "install", "uninstall"],
        "parshall is one file: docs/install.md says how to replace it",
    ),
    ("parshall sockets", &["list", "show", "ls", "dump", "all"], "`parshall sockets once` prints all sockets"),
    (
        "parshall sockets",
        &["watch", "top", "follow", "monitor"],
        "`parshall sockets stream --every 1s` repeats the table",
    ),
    ("parshall tunnel", &["start", "connect"], "`parshall tunnel up NAME` sets a tunnel up"),
    ("parshall tunnel", &["stop", "disconnect"], "`parshall tunnel down NAME` ends a tunnel"),
    ("parshall tunnel", &["status", "list", "ls", "dump"], "`parshall tunnel show` lists the tunnels that are up"),
    ("parshall lab", &["show", "ls", "cases"], "`parshall lab list` shows the names"),
    ("parshall lab", &["bench", "hyperfine"], "`parshall lab ab -- 'COMMAND' 'COMMAND'` compares two commands"),
];

/// Flags that are not there. Those of every command come last.
const FLAGS: &[(&str, &[&str], &str)] = &[
    (
        "parshall",
        &["-p", "--port", "--pid", "--process", "--cgroup", "--netns", "--all"],
        "begin with the command: `parshall attach --port 7000`",
    ),
    ("parshall", &["-h4", "-?", "-help", "-version"], "`parshall --help` shows the commands"),
    ("parshall attach", &["-p"], "say --pid PID or --port PORT"),
    ("parshall try", &["-p"], "say --pid PID or --port PORT"),
    (
        "parshall attach",
        &["--name", "--comm", "--command", "--exe", "--program", "-n", "--service", "--unit"],
        "`--process NAME` takes the name of a process, `--cgroup /system.slice/NAME.service` that of a service of systemd",
    ),
    (
        "parshall attach",
        &["--container", "--docker"],
        "name its process, `--process NAME`, or its control group, `--cgroup PATH`",
    ),
    ("parshall attach", &["-a"], "say --all"),
    ("parshall attach", &["--once", "--follow", "-f"], "say how long: `--for 10s`"),
    ("parshall run", &["-p", "--pid", "--port", "--process"], "`parshall attach` diagnoses what runs already"),
    (
        "parshall attach",
        &["--duration", "--time", "-t", "--seconds", "--timeout", "--window", "-d", "-w"],
        "say `--for 10s`",
    ),
    ("parshall run", &["--duration", "--time", "-t", "--seconds", "--timeout", "--window", "-d"], "say `--for 10s`"),
    (
        "parshall try",
        &["--for", "--duration", "--time", "-t"],
        "say how long each window is, `--window 1s`, and how many, `--pairs 8`",
    ),
    (
        "parshall doctor",
        &["--port", "--pid", "--process", "-p"],
        "`parshall attach` diagnoses a service; `doctor` looks at the host",
    ),
    ("", &["--json", "-j"], "say --format json"),
    ("", &["--text", "--plain"], "say --format text"),
    ("", &["--out", "--file", "--output-file"], "say -o FILE, where the command has it, or write `> FILE`"),
    ("", &["--debug", "--trace"], "-v logs more, and -vv more than that"),
    ("", &["--no-color", "--no-colour", "--colour"], "say --color never; NO_COLOR=1 in the environment does the same"),
];

/// The hint for a verb that the command `at` does not have.
pub fn of_verb(at: &str, verb: &str) -> Option<&'static str> {
    found(VERBS, at, verb)
}

/// The hint for a flag that the command `at` does not have.
pub fn of_flag(at: &str, flag: &str) -> Option<&'static str> {
    found(FLAGS, at, flag)
}

fn found(table: &[(&str, &[&str], &'static str)], at: &str, word: &str) -> Option<&'static str> {
    let is = |(of, words, _): &&(&str, &[&str], &str)| (of.is_empty() || *of == at) && words.contains(&word);
    table.iter().find(is).map(|(_, _, hint)| *hint)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// None stands for a verb or a flag that is there.
    #[test]
    fn guesses_are_not_there() {
        let root = crate::cli::command();
        let at = |path: &str| path.split(' ').skip(1).try_fold(&root, |here, verb| here.find_subcommand(verb));
        for (path, words, hint) in VERBS {
            let Some(command) = at(path) else { continue };
            for word in *words {
                assert!(command.find_subcommand(word).is_none(), "{path} {word}");
                assert_eq!(of_verb(path, word), Some(*hint), "{path} {word} has two hints");
            }
        }
        for (path, words, _) in FLAGS.iter().filter(|(path, ..)| !path.is_empty()) {
            let command = at(path).expect("a command");
            for word in *words {
                let is = |arg: &clap::Arg| match word.strip_prefix("--") {
                    Some(long) => arg.get_long() == Some(long),
                    None => arg.get_short().map(|short| format!("-{short}")).as_deref() == Some(word),
                };
                assert!(!command.get_arguments().any(is), "{path} {word}");
            }
        }
    }
}

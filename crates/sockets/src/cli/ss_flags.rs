//! Hints for flags of `ss`, of the other command of `parshall sockets` and of other tools, which a command does not have.

/// The flags that are not there, and what to write instead in `once` and in `stream`.
struct Instead {
    flags: &'static [&'static str],
    once: &'static str,
    stream: &'static str,
}

const fn both(flags: &'static [&'static str], hint: &'static str) -> Instead {
    Instead { flags, once: hint, stream: hint }
}

const INSTEAD: &[Instead] = &[
    both(&["--color", "--colour", "--no-color"], "the table prints no colours; leave it out"),
    both(&["-t", "--tcp"], "leave it out, or say --kind tcp: TCP is the default"),
    both(&["-u", "--udp"], "say --kind udp"),
    both(&["-x", "--unix"], "say --kind unix"),
    both(&["-M", "--mptcp"], "say --kind mptcp"),
    Instead {
        flags: &["-a", "--all"],
        once: "",
        stream: "leave it out: the default is all states; --kind all reads every kind",
    },
    both(&["-l", "--listening"], "say --state listen"),
    both(&["-4", "--ipv4"], "say 'src 0.0.0.0/0'"),
    both(&["-6", "--ipv6"], "say 'src ::/0'"),
    both(&["-n", "--numeric", "-r", "--resolve"], "addresses and ports are always numbers; leave it out"),
    Instead {
        flags: &["-p", "--processes"],
        once: "leave it out: the table has owners; --pid PID and --process NAME select by them",
        stream: "say --fields default,owner; --pid PID and --process NAME select by them",
    },
    Instead {
        flags: &["-i", "--info", "-m", "--memory", "-e", "--extended", "--options"],
        once: "say --wide",
        stream: "say --format json, which has every field",
    },
    both(&["-N", "--net"], "say --netns NAME"),
    both(&["-f", "--family", "-A", "--query"], "say --kind tcp, udp, mptcp, unix or all"),
    Instead { flags: &["-o"], once: "say --wide for timers; for a file, write `> FILE`", stream: "" },
    Instead {
        flags: &["--output"],
        once: "write `> FILE`; --format chooses text, json, protobuf or parquet",
        stream: "",
    },
    Instead {
        flags: &["--for"],
        once: "leave it out, or use `parshall sockets stream`: a dump is read once here",
        stream: "say --every TIME and --count N",
    },
    Instead {
        flags: &[
            "--every",
            "--count",
            "--changed",
            "--no-rates",
            "--no-closes",
            "-c",
            "--config",
            "--listen",
            "--prometheus",
            "--to",
        ],
        once: "use `parshall sockets stream`: a dump is read once here",
        stream: "",
    },
    Instead {
        flags: &["--wide"],
        once: "",
        stream: "say --format json, which has every field; `parshall sockets once` has wide tables",
    },
    Instead {
        flags: &["--sort", "--limit"],
        once: "",
        stream: "leave it out: rows are written as they are read; `parshall sockets once` sorts and cuts",
    },
];

/// The hint for a flag that `parshall sockets COMMAND` does not have.
pub fn hint(command: &str, flag: &str) -> Option<&'static str> {
    let instead = INSTEAD.iter().find(|instead| instead.flags.contains(&flag))?;
    let hint = if command == "stream" { instead.stream } else { instead.once };
    (!hint.is_empty()).then_some(hint)
}

#[cfg(test)]
mod tests {
    use clap::{Args, Command};

    use super::*;
    use crate::cli::SocketsArgs;

    /// A hint names only options that its command has, and stands for no option that it has.
    #[test]
    fn hints_name_options_of_their_command() {
        let sockets = SocketsArgs::augment_args(Command::new("sockets"));
        for command in ["once", "stream"] {
            let known = sockets.find_subcommand(command).expect("it is there");
            let has = |option: &str| {
                known.get_arguments().any(|argument| match option.strip_prefix("--") {
                    Some(long) => {
                        argument.get_long() == Some(long)
                            || argument.get_all_aliases().unwrap_or_default().contains(&long)
                    }
                    None => argument.get_short().map(String::from).as_deref() == option.strip_prefix('-'),
                })
            };
            for instead in INSTEAD {
                for flag in instead.flags {
                    let Some(hint) = hint(command, flag) else {
                        assert!(has(flag), "`{command}` has no hint for {flag}");
                        continue;
                    };
                    assert!(!has(flag), "`{command}` has {flag}");
                    let words = hint.split(|c: char| c.is_whitespace() || ";:,".contains(c));
                    for option in words.filter(|word| word.starts_with("--")) {
                        assert!(has(option), "`{command}` has no {option}: {hint}");
                    }
                }
            }
        }
    }
}

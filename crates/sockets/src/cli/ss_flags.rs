//! Hints for flags of `ss` and of other commands that `parshall sockets` does not have.

const INSTEAD: &[(&[&str], &str)] = &[
    (&["--color", "--colour", "--no-color"], "the table prints no colours; leave it out"),
    (&["-t", "--tcp"], "leave it out, or say --kind tcp: TCP is the default"),
    (&["-u", "--udp"], "say --kind udp"),
    (&["-x", "--unix"], "say --kind unix"),
    (&["-M", "--mptcp"], "say --kind mptcp"),
    (&["-a", "--all"], "leave it out: the default is all states; --kind all reads every kind"),
    (&["-l", "--listening"], "say --state listen"),
    (&["-4", "--ipv4"], "say 'src 0.0.0.0/0'"),
    (&["-6", "--ipv6"], "say 'src ::/0'"),
    (&["-n", "--numeric", "-r", "--resolve"], "addresses and ports are always numbers; leave it out"),
    (&["-p", "--processes"], "leave it out: the table has owners; --pid PID and --process NAME select by them"),
    (&["-i", "--info", "-m", "--memory", "-e", "--extended", "-o", "--options"], "say --wide"),
    (&["-N", "--net"], "say --netns NAME"),
    (&["-f", "--family", "-A", "--query"], "say --kind tcp, udp, mptcp, unix or all"),
    (&["--output"], "say --format text, json, protobuf or parquet"),
    (&["--for"], "say --every TIME and --count N"),
];

/// What to write instead of a flag that `parshall sockets` does not have.
pub fn hint(flag: &str) -> Option<&'static str> {
    INSTEAD.iter().find(|(flags, _)| flags.contains(&flag)).map(|(_, hint)| *hint)
}

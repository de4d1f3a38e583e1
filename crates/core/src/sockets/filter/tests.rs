//! The meaning of filters, the parts of them that the kernel side applies, and the errors in them.
use parshall_evidence::socket::{Selection, Side, SocketRecord};

use super::*;

fn service(name: &str) -> Option<u16> {
    (name == "ssh").then_some(22)
}

fn filter(text: &str) -> Selection {
    let expression = parse(text, &service).unwrap_or_else(|error| panic!("{text}: {error:?}"));
    Selection { expression: Some(expression), ..Selection::default() }
}

fn connection() -> SocketRecord {
    let mut record =
        SocketRecord { family: 2, protocol: 6, state: 1, local_port: 22, remote_port: 50_000, ..Default::default() };
    record.local_address[..4].copy_from_slice(&[10, 0, 0, 1]);
    record.remote_address[..4].copy_from_slice(&[192, 168, 1, 2]);
    record
}

#[test]
fn filters_mean_what_ss_means_by_them() {
    for text in [
        "state established",
        "state connected",
        "state listening state established",
        "exclude listen",
        "src 10.0.0.0/8",
        "src 10.255.0.0/8",
        "dst 192.168.1.2",
        "dst 192.168.1.2:50000",
        "src :ssh",
        "src = 10.0.0.1:22",
        "dst != 10.0.0.0/8",
        "sport = :22",
        "sport=:22",
        "sport 22",
        "sport eq ssh",
        "dport >= :1024",
        "dport gt :49999 and dport lt :50001",
        "( dport = :ssh or sport = :ssh )",
        "(dport = :ssh || sport = :ssh) && state established",
        "! dport = :22",
        "not ( dport = :22 or sport = :23 )",
        "dport = :22 or state established sport = :22",
        "dst *:50000",
        "src 0.0.0.0/0",
        "sport != :80",
    ] {
        assert!(filter(text).expression_holds(&connection(), false), "{text}");
    }
    for text in [
        "state listen",
        "exclude established",
        "src 192.168.0.0/16",
        "dst 192.168.1.2:22",
        "dst [::]/0",
        "sport > :22",
        "dport = :ssh sport = :ssh",
        "( dport = :ssh or sport = :ssh ) and state listen",
        "state established and state listen",
        "not sport = :22",
    ] {
        assert!(!filter(text).expression_holds(&connection(), false), "{text}");
    }
}

#[test]
fn ipv6_needs_brackets_only_before_a_port() {
    let mut record = SocketRecord { family: 10, local_port: 80, ..connection() };
    record.local_address = "2001:db8::1".parse::<std::net::Ipv6Addr>().expect("an address").octets();
    for text in
        ["src 2001:db8::1", "src [2001:db8::1]", "src [2001:db8::1]:80", "src 2001:db8::/32", "src [2001:db8::]/32"]
    {
        assert!(filter(text).expression_holds(&record, false), "{text}");
    }
    assert!(!filter("src [2001:db8::1]:81").expression_holds(&record, false));
    assert!(!filter("src [2001:db8::]/32:81").expression_holds(&record, false));
}

#[test]
fn a_unix_socket_has_neither_address_nor_port() {
    let unix = SocketRecord { family: 1, state: 1, ..Default::default() };
    assert!(filter("state established").expression_holds(&unix, false));
    for text in ["sport = :0", "src 0.0.0.0/0", "src ::/0"] {
        assert!(!filter(text).expression_holds(&unix, false), "{text}");
    }
}

#[test]
fn established_includes_sockets_that_closed_from_it() {
    let ending = SocketRecord { state: 9, ..connection() };
    assert!(filter("state established").expression_holds(&ending, true));
    assert!(!filter("state established").expression_holds(&ending, false));
    assert!(!filter("state syn-sent").expression_holds(&ending, true));
}

#[test]
fn processes_are_selected_by_pid_and_by_the_command_that_the_kernel_stores() {
    let owners = [(7, "nginx"), (8, "a-very-long-com")];
    let holds = |pids: &[u32], commands: &[&str]| {
        let commands = commands.iter().map(|name| (*name).to_owned()).collect();
        Selection { pids: pids.to_vec(), commands, ..Selection::default() }.owners_hold(owners.into_iter())
    };
    assert!(holds(&[7], &[]) && holds(&[1, 8], &[]) && holds(&[], &["nginx"]) && holds(&[7], &["nginx"]));
    assert!(holds(&[], &["a-very-long-command"]), "the kernel stores 15 bytes");
    assert!(!holds(&[9], &[]) && !holds(&[], &["ngin"]) && !holds(&[7], &["sshd"]));
    assert!(!Selection { pids: vec![7], ..Selection::default() }.owners_hold(std::iter::empty()));
}

#[test]
fn the_kernel_side_applies_states_ports_and_networks() {
    let narrowed = |text: &str| {
        let mut selection = filter(text);
        selection.narrow();
        selection
    };
    let both = narrowed("state established ( dport = :ssh or sport = :443 ) dst 10.0.0.0/8");
    assert_eq!(both.states, 1 << 1);
    assert_eq!(both.ports, [(Side::Remote, 22), (Side::Local, 443)]);
    assert_eq!((both.prefixes[0].side, both.prefixes[0].length), (Side::Remote, 8));
    // An alternative that names no port is met by every port.
    for text in ["sport = :1 or state listen", "not sport = :1", "sport > :1", "sport = :1 or dst 10.0.0.1"] {
        assert_eq!(narrowed(text).ports, [], "{text}");
    }
    assert_eq!(narrowed("sport = :1 or state listen").states, u32::MAX);
    assert_eq!(narrowed("exclude listen").states & (1 << 10 | 1 << 13), 0);
    assert_eq!(narrowed("state bound-inactive").states, 1 << 13);
    let mut selection = Selection { states: 1 << 1 | 1 << 10, ..filter("state listen") };
    selection.narrow();
    assert_eq!(selection.states, 1 << 10, "flags and filter must both hold");
}

#[test]
fn a_narrowed_selection_holds_all_that_the_filter_holds() {
    let texts = [
        "state established or sport = :22",
        "( sport = :22 or dport = :22 ) ( src 10.0.0.0/8 or dst 10.0.0.0/8 )",
        "not ( state listen or dport = :80 )",
        "exclude time-wait sport <= :1024",
        "! ! state listen",
    ];
    for text in texts {
        let filter = filter(text);
        let mut selection = filter.clone();
        selection.narrow();
        for state in 1..=STATES.len() as u8 - 1 {
            for (local_port, remote_port) in [(22, 80), (80, 22), (443, 5), (0, 0)] {
                let record = SocketRecord { state, local_port, remote_port, ..connection() };
                let wanted = filter.expression_holds(&record, false);
                assert!(!wanted || selection.holds(&record), "{text}: {state} {local_port} {remote_port}");
            }
        }
    }
}

#[test]
fn errors_say_what_to_write_instead() {
    for (text, what, hint) in [
        ("state estblished", "no state `estblished`", "did you mean `established`?"),
        ("state", "`state` has no name", "established"),
        ("established", "`established` is not part", "state established"),
        ("tcp", "`tcp` is not part", "--kind tcp"),
        ("10.0.0.1", "`10.0.0.1` is not part", "src 10.0.0.1 or dst 10.0.0.1"),
        (":443", "`:443` is not part", "sport = :443"),
        ("sprt = :443", "`sprt` is not part", "did you mean `sport`?"),
        ("sport = :70000", "`70000` is not a port", "0 to 65535"),
        ("sport = :https-alt", "no service is called `https-alt`", "/etc/services"),
        ("sport", "`sport` has no port", "sport = :443"),
        ("dst", "`dst` has no address", "dst 10.0.0.0/8"),
        ("dst example.com", "`example.com` is not an address", "names are not looked up"),
        ("dst 10.0.0.0/33", "its prefix is not 0 to 32", "0 to 32"),
        ("( sport = :1", "does not close", "as for ss"),
        ("sport = :1 )", "is not open", "as for ss"),
        ("sport = :1 or", "ends too early", "as for ss"),
        ("", "ends too early", "as for ss"),
        ("dev eth0", "`dev` is not part", "interface"),
        ("cgroup /x", "`cgroup` is not part", "--cgroup"),
    ] {
        let error = parse(text, &service).expect_err(text);
        assert!(error.what.contains(what) && error.hint.contains(hint), "{text}: {error:?}");
    }
}

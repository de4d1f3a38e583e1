//! Files of testbeds, their errors with lines, and the script that makes the same.
use proptest::prelude::*;

use super::*;

const ROUTER: &str = include_str!("golden/router.toml");

fn read(text: &str) -> Result<Testbed, TestbedError> {
    text.parse()
}

/// The error of the file with one text replaced by another.
fn error(from: &str, to: &str) -> String {
    let text = ROUTER.replacen(from, to, 1);
    assert_ne!(text, ROUTER, "{from} is not in the file");
    match read(&text) {
        Err(TestbedError { line, what, hint }) => format!("{line}: {what} | {hint}"),
        Ok(_) => panic!("no error: {to}"),
    }
}

#[test]
fn a_file_is_read_as_it_is_written() {
    let testbed = read(ROUTER).unwrap();
    let names: Vec<&str> = testbed.namespaces.iter().map(|namespace| namespace.name.as_str()).collect();
    assert_eq!(names, ["client", "router", "server"]);
    assert_eq!(testbed.namespaces[0].congestion_control, None);
    assert_eq!(testbed.namespaces[0].routes[0].to.to_string(), "0.0.0.0/0");
    assert_eq!(testbed.namespaces[1].sysctls, [("net.ipv4.ip_forward".to_owned(), "1".to_owned())]);
    let [west, east] = &testbed.links[..] else { panic!("two links") };
    assert_eq!((west.mtu, east.mtu), (9000, 1500));
    assert_eq!((west.offloads.tso, west.offloads.gso, west.offloads.gro), (Some(false), None, Some(true)));
    assert_eq!(east.ends[0].shaper, Some(Shaper { rate: 12_500_000, burst: 32_768, queue: 262_144 }));
    assert_eq!(testbed.address(2).unwrap().to_string(), "10.2.0.2");
}

/// A text of the example, its replacement, and the begin of the error.
const MISTAKES: &[(&str, &str, &str)] = &[
    (
        "title",
        "titel",
        "1: unknown field `titel`, expected one of `title`, `seed`, `namespace`, `link` | did you mean `title`?",
    ),
    ("device = \"west\"", "devise = \"west\"", "19: unknown field `devise`"),
    ("name = \"router\"", "name = \"client\"", "8: there are two namespaces named `client`"),
    ("name = \"router\"", "name = \"a b\"", "8: `a b` is not a name for a namespace"),
    (
        "namespace = \"server\"",
        "namespace = \"sever\"",
        "25: the link leads to `sever`, which is no namespace | did you mean `server`?",
    ),
    ("namespace = \"server\"", "namespace = \"router\"", "25: both ends are in `router`"),
    ("device = \"east\"", "device = \"west\"", "24: `router` has two devices named `west`"),
    ("device = \"east\"", "device = \"lo\"", "24: `lo` is not a name for a device"),
    ("10.2.0.2/24", "10.1.0.2/24", "25: 10.1.0.2 is there twice"),
    ("10.2.0.2/24", "10.2.0.1/24", "25: 10.2.0.1 is there twice"),
    ("10.2.0.2/24", "10.2.0.0/24", "25: 10.2.0.0 is not an address of a host"),
    ("10.2.0.2/24", "10.3.0.2/24", "25: 10.2.0.1/24 and 10.3.0.2/24 are not in one network"),
    ("10.2.0.2/24", "10.2.0.2/33", "25: `10.2.0.2/33` is not a network"),
    ("10.2.0.2/24", "10.2.0.2", "25: `10.2.0.2` is not an address with a prefix"),
    ("[\"10.2.0.2/24\", \"fd00::2/64\"]", "[]", "25: the end in `server` has 0 addresses"),
    (
        "10.2.0.1/24\", shaper",
        "10.1.0.129/25\", shaper",
        "24: 10.1.0.129/25 and 10.1.0.1/24 are on two devices of `router`",
    ),
    ("mtu = 9000", "mtu = 60", "20: an MTU of 60 is not possible | choose from 68 to 65535"),
    ("gro = true }", "gro = true }\nmtu = 1", "22: duplicate key"),
    ("32KiB", "1KiB", "24: a burst of 1024 bytes is less than a packet"),
    ("100Mbit/s", "100", "24: `100` is not a bandwidth"),
    (
        "10.1.0.0/24 via 10.2.0.1",
        "10.1.0.0/24 via 10.1.0.1",
        "15: the route to 10.1.0.0/24 has no way: 10.1.0.1 is on no link of `server`",
    ),
    (
        "10.1.0.0/24 via 10.2.0.1",
        "10.1.0.0/24 via 10.2.0.9",
        "15: the route to 10.1.0.0/24 has no way: no neighbour of `server` has 10.2.0.9",
    ),
    ("10.1.0.0/24 via 10.2.0.1", "10.1.0.0/24 via 10.2.0.2", "15: the route to 10.1.0.0/24 has no way: no neighbour"),
    ("10.1.0.0/24 via", "10.1.0.0/24 dev", "15: `10.1.0.0/24 dev 10.2.0.1` is not a route"),
    (
        "\"net.ipv4.ip_forward\" = 1",
        "",
        "5: the route to 0.0.0.0/0 has no way: `router` does not forward | write sysctls",
    ),
    ("net.ipv4.tcp_rmem", "kernel.pid_max", "14: `kernel.pid_max` is not a sysctl of a namespace"),
    ("net.ipv4.tcp_rmem", "net.core.rmem_max", "14: net.core.rmem_max cannot be set in a namespace: it is the host's"),
    (
        "net.ipv4.tcp_rmem",
        "net.ipv4.tcp_congestion_control",
        "14: net.ipv4.tcp_congestion_control has a key of its own",
    ),
    ("4096 65536 65536", "1'; reboot", "14: `1'; reboot` is not a value of a sysctl"),
    ("\"reno\"", "\"re no\"", "13: `re no` is not a congestion control"),
];

#[test]
fn a_testbed_that_cannot_be_made_has_the_line_of_the_mistake() {
    let mut wrong = Vec::new();
    for (from, to, expected) in MISTAKES {
        let found = error(from, to);
        if !found.starts_with(expected) || !found.contains(" | ") {
            wrong.push(format!("{to}\nfound    {found}\nexpected {expected}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert_eq!(read("").unwrap_err().what, "the testbed has no namespaces");
}

#[test]
fn the_example_of_the_document_is_the_golden_file() {
    let document = include_str!("../../../../docs/lab.md");
    assert!(document.contains(&format!("```toml\n{ROUTER}```")));
}

#[test]
fn the_script_is_the_golden_one() {
    let script = shell(&read(ROUTER).unwrap());
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/src/testbed/golden/router.sh");
    if std::env::var_os("BLESS").is_some() {
        #[expect(clippy::disallowed_methods, reason = "a test may rewrite its golden file")]
        std::fs::write(path, &script).unwrap();
    }
    assert_eq!(script, include_str!("golden/router.sh"));
}

#[test]
fn the_script_has_the_nearest_that_netem_has() {
    let impair = "impair_a = { delay = \"10ms\", jitter = \"1ms\", loss = \"0.5%\", reorder = \"1%\", rate = \"8Mbit/s\", drop = [3] }";
    let text = ROUTER.replace("offloads = { tso = false, gro = true }", "").replace("mtu = 9000", impair);
    let script = shell(&read(&text).unwrap());
    let seed = direction_seed(1, 0, 0);
    let line = format!(
        "tc -n client qdisc add dev eth0 root netem limit 1000000 delay 10ms 1ms loss 0.5% reorder 1% rate 8000000bit # with iproute2 6.6 or newer also: seed {seed}"
    );
    let lines: Vec<&str> = script.lines().collect();
    let at = lines.iter().position(|found| *found == line).unwrap_or_else(|| panic!("{line}\n{script}"));
    assert_eq!(lines[at + 1], "# netem does not have: drop 3, queue 262144");
    assert!(lines.contains(&"ip netns exec client ethtool -K eth0 tso off"));
}

/// Pieces of a file in random order and with random words, most of them wrong.
fn scraps() -> impl Strategy<Value = String> {
    let line = prop::sample::select(ROUTER.lines().collect::<Vec<_>>());
    prop::collection::vec((line, "[ a-z0-9./\"={}\\[\\]]{0,12}", any::<prop::sample::Index>()), 0..40).prop_map(
        |parts| {
            let mut text = String::new();
            for (line, insert, at) in parts {
                let at = at.index(line.len() + 1);
                // Most lines stay as they are, so that something is left to check.
                if insert.len() % 4 == 0 && line.is_char_boundary(at) {
                    text.extend([&line[..at], &insert, &line[at..], "\n"]);
                } else {
                    text.extend([line, "\n"]);
                }
            }
            text
        },
    )
}

proptest! {
    #[test]
    fn no_text_makes_the_parser_panic(text in scraps()) {
        match read(&text) {
            Ok(testbed) => prop_assert!(shell(&testbed).starts_with("#!/bin/sh")),
            Err(error) => {
                prop_assert!(error.line as usize <= text.lines().count().max(1) + 1);
                prop_assert!(!error.what.is_empty() && !error.hint.is_empty() && !error.what.contains('\n'));
            }
        }
    }
}

/// The one link of a testbed with this impairment of both directions.
fn impaired(impairment: &str) -> Result<Link, TestbedError> {
    let text = format!(
        "[[namespace]]\nname = \"a\"\n[[namespace]]\nname = \"b\"\n[[link]]\n\
         a = {{ namespace = \"a\", device = \"eth0\", address = \"10.0.0.1/24\" }}\n\
         b = {{ namespace = \"b\", device = \"eth0\", address = \"10.0.0.2/24\" }}\n{impairment}\n"
    );
    Ok(read(&text)?.links.remove(0))
}

#[test]
fn impairments_are_made_by_the_least_means() {
    for (text, means, single) in [
        ("", Means::Nothing, false),
        ("impair = { loss = \"1%\" }", Means::Ingress, true),
        ("impair_b = { drop = [3, \"5-9\"] }", Means::Ingress, true),
        ("impair = { delay = \"10ms\" }", Means::DelayLine, false),
        ("impair = { delay = \"10ms\", loss = \"0.05%\" }", Means::DelayLine, true),
        ("impair_a = { rate = \"100Mbit/s\" }", Means::DelayLine, true),
    ] {
        let link = impaired(text).unwrap();
        assert_eq!((link.means(), link.needs_single_segments()), (means, single), "{text}");
        assert_eq!(link.effective_offloads().tso, single.then_some(false), "{text}");
    }
    let link =
        impaired("impair_a = { delay = \"10ms\", jitter = \"2ms\", loss = \"0.05%\", drop = [9, \"1-2\"] }").unwrap();
    assert_eq!((link.impairments[0].delay_ns, link.impairments[0].jitter_ns), (10_000_000, 2_000_000));
    assert_eq!((link.impairments[0].loss_ppm, &link.impairments[0].drop[..]), (500, &[1..=2, 9..=9][..]));
    assert_eq!(link.impairments[1], Impairment::default());
}

#[test]
fn impairments_that_would_lie_are_refused() {
    for (text, expected) in [
        (
            "impair = { loss = \"1%\" }\noffloads = { tso = true }",
            "8: an offload is on, and the impairments are those of single packets",
        ),
        ("impair = { loss = \"1\" }", "8: `1` is not a share of packets"),
        ("impair = { loss = \"101%\" }", "8: `101%` is not a share of packets"),
        ("impair = { delay = \"1ms\", jitter = \"2ms\" }", "8: the jitter is larger than the delay"),
        ("impair = { reorder = \"1%\" }", "8: reordering needs a delay"),
        ("impair = { queue = \"64KiB\" }", "8: a queue without a rate never fills"),
        ("impair = { drop = [0] }", "8: `0` is no packet's number"),
        ("impair = { drop = [\"9-5\"] }", "8: `9-5` is no packet's number"),
        ("impair = { largest_packet = 20 }", "8: largest_packet cannot be 20"),
        ("impair = {}\nimpair_a = { loss = \"1%\" }", "8: the link has impair, and impair_a or impair_b"),
        ("impair = { delay = \"11s\" }", "8: `11s` is too long"),
        ("impair = { rate = \"0Mbit/s\" }", "8: `0Mbit/s` lets nothing pass"),
    ] {
        let error = impaired(text).expect_err(text);
        assert!(error.to_string().starts_with(expected), "{text}\nfound {error}");
    }
}

#[test]
fn chances_are_as_often_as_asked_and_repeat_with_the_seed() {
    const PACKETS: u64 = 200_000;
    let wanted = Impairment { loss_ppm: 10_000, drop: vec![2..=4], ..Impairment::default() };
    let lost = |seed: u64| (1..=PACKETS).filter(|&number| is_lost(&wanted, seed, number)).collect::<Vec<_>>();
    let seeds: Vec<u64> = (0..4).map(|link| direction_seed(7, link / 2, link % 2)).collect();
    for &seed in &seeds {
        let share = lost(seed).len() as f64 / PACKETS as f64;
        assert!((share - 0.01).abs() < 0.001, "{share}");
        assert!([2, 3, 4].iter().all(|number| lost(seed).contains(number)));
        assert_eq!(lost(seed), lost(seed));
    }
    assert_ne!(lost(seeds[0]), lost(seeds[1]));
    let all = Impairment { loss_ppm: MILLION, ..Impairment::default() };
    assert!((1..1000).all(|number| is_lost(&all, 1, number)));
}

#[test]
fn a_line_delays_orders_copies_and_limits() {
    const MS: u64 = 1_000_000;
    let base = Impairment { delay_ns: 10 * MS, queue: 262_144, ..Impairment::default() };
    let mut plain = Direction::new(base.clone(), 1);
    assert_eq!(plain.pass(5 * MS, &[0; 100]), Fate::Leaves(15 * MS));
    let mut jitter = Direction::new(Impairment { jitter_ns: 2 * MS, ..base.clone() }, 1);
    let delays: Vec<u64> = (0..10_000)
        .map(|_| match jitter.pass(0, &[0; 100]) {
            Fate::Leaves(at) => at,
            other => panic!("{other:?}"),
        })
        .collect();
    assert!(delays.iter().all(|delay| (8 * MS..=12 * MS).contains(delay)));
    let mean = delays.iter().sum::<u64>() as f64 / delays.len() as f64;
    assert!((mean - 1e7).abs() < 1e5, "{mean}");
    let mut early = Direction::new(Impairment { reorder_ppm: MILLION, ..base.clone() }, 1);
    assert_eq!((early.pass(5, &[0; 100]), early.counts.reordered), (Fate::Leaves(5), 1));
    let mut twice = Direction::new(Impairment { duplicate_ppm: MILLION, ..base.clone() }, 1);
    assert_eq!(twice.pass(5, &[0; 100]), Fate::LeavesTwice(10 * MS + 5));
    // 1250 bytes at 10 Mbit/s take a millisecond, and 262144 bytes may wait.
    let mut slow = Direction::new(Impairment { rate: Some(1_250_000), ..base.clone() }, 1);
    let left = (0..400).filter(|_| slow.pass(0, &[0; 1250]) != Fate::Lost).count();
    assert!((209..=212).contains(&left), "{left}");
    assert_eq!(slow.counts.queue_full, 400 - left as u64);
    slow.restart();
    assert_eq!(slow.pass(0, &[0; 1250]), Fate::Leaves(11 * MS));
    let mut small = Direction::new(Impairment { largest_packet: Some(1000), ..base.clone() }, 1);
    assert_eq!((small.pass(0, &[0; 1001]), small.pass(0, &[0; 1000])), (Fate::Lost, Fate::Leaves(10 * MS)));
    let segment = |protocol: u8, flags: u8| {
        let mut packet = vec![0; 40];
        (packet[0], packet[9], packet[33]) = (0x45, protocol, flags);
        packet
    };
    let mut syns = Direction::new(Impairment { syn_loss_ppm: MILLION, ..base }, 1);
    for (packet, lost) in [
        (segment(6, 0x02), true),
        (segment(6, 0x12), true),
        (segment(6, 0x10), false),
        (segment(17, 0x02), false),
        (vec![], false),
    ] {
        assert_eq!(syns.pass(0, &packet) == Fate::Lost, lost);
    }
}

//! SYNs that a packet filter drops, in a network namespace of a child.
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::time::{Duration, Instant};

use parshall_bpf::diagnose::{Config, Probes, features};
use parshall_testkit::skip;

use super::probed::{Talker, alone, end_with_parent, ready};

const FILTERED: u16 = 7000;
const OPEN: u16 = 7001;
const RULES: &str = "add table inet test; add chain inet test input { type filter hook input priority 0; }; \
                     add rule inet test input tcp dport 7000 tcp flags & (syn | ack) == syn drop";

#[test]
#[ignore = "the child of the other tests"]
fn knocks() {
    end_with_parent();
    let listen = |port| TcpListener::bind((Ipv4Addr::LOCALHOST, port)).unwrap();
    let _listeners = [listen(FILTERED), listen(OPEN)];
    println!("talking");
    loop {
        for port in [FILTERED, OPEN] {
            // It is shorter than the time after which a SYN is repeated.
            let _ =
                TcpStream::connect_timeout(&SocketAddr::from((Ipv4Addr::LOCALHOST, port)), Duration::from_millis(50));
        }
    }
}

#[test]
fn syns_that_a_filter_drops_are_counted_by_port() {
    let what = "SYNs that a filter drops";
    if !ready(what) {
        return;
    }
    let shell = format!("ip link set lo up && nft '{RULES}' && exec \"$0\" \"$@\"");
    let in_namespace = |rest: &[&str]| {
        let mut command = Command::new("unshare");
        command.args(["-n", "sh", "-c", &shell]).args(rest);
        command
    };
    let has = Command::new("sh").args(["-c", "command -v unshare && command -v ip && command -v nft"]).output();
    if !has.is_ok_and(|output| output.status.success()) {
        return skip(what, "unshare, ip or nft is missing here");
    }
    let _alone = alone();
    let mut probes = Probes::load(&Config { ports: vec![FILTERED, OPEN], max_flows: 64, ..Config::default() }).unwrap();
    if probes.lost().iter().any(|lost| lost.refused.iter().any(|one| one.program == features::ON_DROP)) {
        return skip(what, "this kernel gives no reason for drops (before 5.17)");
    }
    probes.attach_always().unwrap();
    let _child = Talker::start_in(in_namespace, "drops::knocks");
    let until = Instant::now() + Duration::from_secs(60);
    let filtered =
        || probes.net_counts().into_iter().filter(|(_, counted)| counted.filtered_syns > 0).collect::<Vec<_>>();
    while filtered().iter().map(|(_, counted)| counted.filtered_syns).sum::<u64>() < 5 {
        assert!(Instant::now() < until, "{:?}", probes.net_counts());
        std::thread::sleep(Duration::from_millis(20));
    }
    for (key, _) in filtered() {
        assert_eq!((key.tgid, key.port, key.followed), (0, FILTERED, 0));
        assert!(key.netns != 0);
    }
}

//! The object on a real kernel: it loads, attaches, detaches, takes slices in a row and keeps to its limits. Needs root.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

use crate::probed::{Talker, alone, end_with_parent, lost_beside_map_iterators, ready};
use libbpf_rs::MapType;
use libbpf_rs::query::{LinkInfoIter, MapInfoIter, ProgInfoIter, ProgInfoQueryOptions};
use parshall_bpf::diagnose::classic::Classic;
use parshall_bpf::diagnose::{Config, Event, Probes};
use parshall_evidence::FlowState;
use parshall_testkit::skip;

#[test]
#[ignore = "not a test: the body of the child process"]
fn talk() {
    let Some(connections) = std::env::var("TALK").ok().and_then(|n| n.parse().ok()) else { return };
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut pairs: Vec<(TcpStream, TcpStream)> = (0..connections)
        .map(|_| (TcpStream::connect(listener.local_addr().unwrap()).unwrap(), listener.accept().unwrap().0))
        .collect();
    end_with_parent();
    println!("talking");
    loop {
        for (client, server) in &mut pairs {
            client.write_all(&[1; 100]).unwrap();
            server.read_exact(&mut [0; 100]).unwrap();
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}

/// How long [`pause`] sleeps before each read.
const PAUSE: std::time::Duration = std::time::Duration::from_millis(20);

/// One thread writes without end; the other sleeps and reads less than the window holds.
#[test]
#[ignore = "not a test: the body of the child process"]
fn pause() {
    if std::env::var_os("TALK").is_none() {
        return;
    }
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let mut server = listener.accept().unwrap().0;
    std::thread::spawn(move || while client.write_all(&[1; 65_536]).is_ok() {});
    end_with_parent();
    let mut chunk = vec![0; 65_536];
    for round in 0.. {
        std::thread::sleep(PAUSE);
        let _ = server.read(&mut chunk).unwrap();
        if round == 10 {
            println!("talking");
        }
    }
}

/// Starts one process after the other.
#[test]
#[ignore = "not a test: the body of the child process"]
fn forks() {
    if std::env::var_os("TALK").is_none() {
        return;
    }
    end_with_parent();
    println!("talking");
    while std::process::Command::new("true").status().is_ok() {}
}

/// Numbers of the programs and links that this process holds.
fn held() -> (Vec<u32>, Vec<u32>) {
    let (mut programs, mut links) = (Vec::new(), Vec::new());
    for entry in std::fs::read_dir("/proc/self/fdinfo").unwrap().flatten() {
        let text = std::fs::read_to_string(entry.path()).unwrap_or_default();
        let number = |key: &str| text.lines().find_map(|line| line.strip_prefix(key)?.trim().parse().ok());
        match (number("link_id:"), number("prog_id:")) {
            (Some(id), _) => links.push(id),
            (None, Some(id)) => programs.push(id),
            _ => {}
        }
    }
    (programs, links)
}

/// How many of them the kernel still knows.
fn known((programs, links): &(Vec<u32>, Vec<u32>)) -> usize {
    ProgInfoIter::default().filter(|info| programs.contains(&info.id)).count()
        + LinkInfoIter::default().filter(|info| links.contains(&info.id)).count()
}

/// The verifier cannot be preempted on hosts without preemption, so a service waits while it follows a program: 1 ms for some 1,000
/// instructions.
#[test]
fn the_verifier_follows_few_instructions() {
    const MAX: u32 = 10_000;
    const MAX_OF_ALL: u32 = 50_000;
    if !ready("loading the probes") {
        return;
    }
    let _alone = alone();
    let talker = Talker::talk(1);
    let probes = Probes::load(&talker.config(64)).unwrap();
    let (own, _) = held();
    let followed: Vec<(String, u32)> = ProgInfoIter::default()
        .filter(|info| own.contains(&info.id))
        .map(|info| (info.name.to_string_lossy().into_owned(), info.verified_insns))
        .collect();
    drop(probes);
    if !followed.iter().any(|(name, _)| name == "on_recv") {
        return skip("the instructions that the verifier follows", "this kernel takes other programs");
    }
    assert!(followed.iter().all(|(_, n)| *n < MAX), "{followed:?}");
    let of_all: u32 = followed.iter().map(|(_, n)| n).sum();
    assert!(of_all < MAX_OF_ALL, "{of_all}: {followed:?}");
}

#[test]
fn what_is_attached_goes_with_its_owner() {
    if !ready("loading the probes") {
        return;
    }
    let _alone = alone();
    let talker = Talker::talk(1);
    let before = held();
    assert_eq!(before, (vec![], vec![]));
    let mut probes = Probes::load(&talker.config(64)).unwrap();
    let loaded = held();
    assert!(loaded.0.len() > 10 && loaded.1.is_empty(), "loaded and not attached: {loaded:?}");
    probes.attach_always().unwrap();
    let always = held();
    assert!(always.1.len() >= 6, "{always:?}");
    probes.begin_slice().unwrap();
    let slice = held();
    assert!(slice.1.len() >= always.1.len() + 6, "{slice:?}");
    assert_eq!(known(&slice), slice.0.len() + slice.1.len());
    probes.end_slice();
    assert_eq!(held(), always, "per-event probes are attached in slices only");
    drop(probes);
    assert_eq!(held(), (vec![], vec![]));
    let give_up = std::time::Instant::now() + std::time::Duration::from_secs(5);
    while known(&slice) > 0 {
        assert!(std::time::Instant::now() < give_up, "{} programs and links are left", known(&slice));
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
}

#[test]
fn a_tracepoint_that_the_kernel_lacks_costs_what_only_it_shows() {
    if !ready("probes without a tracepoint") {
        return;
    }
    let _alone = alone();
    let talker = Talker::talk(1);
    let config = Config { without_types: vec!["btf_trace_timer_expire_entry"], ..talker.config(64) };
    let mut probes = Probes::load(&config).unwrap();
    probes.attach_always().unwrap();
    probes.begin_slice().unwrap();
    let lost = lost_beside_map_iterators(&probes);
    assert_eq!(lost.len(), 1, "{lost:?}");
    assert_eq!(lost[0].refused[0].reason, "this kernel has no tracepoint timer_expire_entry");
    assert!(lost[0].causes.contains(&"retransmission-timeout"));
}

#[test]
fn sends_are_seen_at_another_place_or_the_rung_falls_with_a_reason() {
    if !ready("sends without a tracepoint") {
        return;
    }
    let _alone = alone();
    let talker = Talker::talk(1);
    let mut config = Config { without_types: vec!["btf_trace_sock_send_length"], ..talker.config(64) };
    let mut probes = Probes::load(&config).unwrap();
    probes.begin_slice().unwrap();
    std::thread::sleep(std::time::Duration::from_millis(100));
    probes.end_slice();
    drop(probes);
    config.without_types.push("btf_trace_sys_exit");
    config.without_functions = true;
    let reason = Probes::load(&config).err().map(|error| error.to_string()).unwrap_or_default();
    let why = "the kernel refused what the rung needs: sends are not seen (on_send_end: this kernel has no tracepoint \
               sock_send_length; on_inet_sendmsg: a test; on_call_sends: this kernel has no tracepoint sys_exit)";
    assert_eq!(reason, why);
}

#[test]
fn processes_that_have_ended_leave_the_table() {
    if !ready("children that come and go") {
        return;
    }
    const ENOUGH: usize = 40;
    let _alone = alone();
    let forks = Talker::start_as("load::forks", "1");
    let mut probes = Probes::load(&forks.config(64)).unwrap();
    probes.attach_always().unwrap();
    let (mut ended, mut events) = (std::collections::HashSet::new(), Vec::new());
    let give_up = std::time::Instant::now() + std::time::Duration::from_secs(60);
    // Those that have ended and are still in the table. The kernel frees a process some time after it was reaped.
    let mut left = std::collections::HashSet::new();
    while ended.len() < ENOUGH || !left.is_empty() {
        assert!(
            std::time::Instant::now() < give_up,
            "{} ended, {left:?} are left: {:?}",
            ended.len(),
            probes.counters()
        );
        std::thread::sleep(std::time::Duration::from_millis(10));
        while probes.drain(&mut events) {}
        let known = ended.len();
        ended.extend(events.drain(..).filter_map(|event| match event {
            Event::ThreadEnd(dump) => Some(dump.tgid),
            _ => None,
        }));
        let tgids: std::collections::HashSet<u32> = probes.tgids().into_iter().collect();
        if known < ENOUGH {
            left = ended.intersection(&tgids).copied().collect();
        } else {
            left.retain(|tgid| tgids.contains(tgid));
        }
    }
    assert!(!ended.contains(&forks.pid()) && probes.tgids().contains(&forks.pid()));
    assert_eq!(probes.counters().untracked, 0);
}

#[test]
fn what_the_scheduler_calls_allocates_nothing() {
    if !ready("maps of the scheduler's probes") {
        return;
    }
    const NO_PREALLOC: u32 = 1;
    let _alone = alone();
    let talker = Talker::talk(1);
    let _probes = Probes::load(&talker.config(64)).unwrap();
    let _classic = Classic::load(true).unwrap();
    let (own, _) = held();
    let programs = ProgInfoIter::with_query_opts(ProgInfoQueryOptions::default().include_map_ids(true));
    let scheduled: Vec<_> = programs
        .filter(|info| own.contains(&info.id) && (info.name == "on_switch" || info.name == "on_waking"))
        .collect();
    assert_eq!(scheduled.len(), 4, "{scheduled:?}");
    // They look up what is in the storage of tasks and sockets, and insert into hash tables.
    let allocates = MapInfoIter::default().filter(|map| {
        let used = scheduled.iter().any(|program| program.map_ids.contains(&map.id));
        used && map.ty == MapType::Hash && map.map_flags & NO_PREALLOC != 0
    });
    assert_eq!(allocates.map(|map| map.name).collect::<Vec<_>>(), Vec::<std::ffi::OsString>::new());
}

#[test]
fn twenty_slices_in_a_row_account_for_their_own_time_only() {
    if !ready("slices in a row") {
        return;
    }
    let _alone = alone();
    let talker = Talker::talk(2);
    let mut probes = Probes::load(&talker.config(64)).unwrap();
    probes.attach_always().unwrap();
    probes.owners().unwrap();
    let (mut observed, mut events) = (0, Vec::new());
    for _ in 0..20 {
        let begin = probes.begin_slice().unwrap();
        std::thread::sleep(std::time::Duration::from_millis(20));
        observed += probes.end_slice() - begin;
        // These dumps close the open intervals.
        let (flows, threads) = (probes.flows().unwrap(), probes.threads().unwrap());
        assert!(flows.len() >= 4 && !threads.is_empty(), "{} {}", flows.len(), threads.len());
        // Time between two slices belongs to neither.
        std::thread::sleep(std::time::Duration::from_millis(5));
        while probes.drain(&mut events) {}
    }
    let connections: Vec<_> = probes.flows().unwrap().into_iter().filter(|dump| dump.key.dport != 0).collect();
    assert_eq!(connections.len(), 4, "two connections have four ends");
    for dump in &connections {
        let cells: u64 = dump.cells().iter().map(|cell| cell.ns).sum();
        let share = cells as f64 / observed as f64;
        assert!((0.98..=1.0).contains(&share), "{share} of the slices");
        assert!(dump.calls().sends + dump.calls().recvs > 20, "{:?}", dump.calls());
    }
    assert!(probes.counters().events > 100, "{:?}", probes.counters());
    assert_eq!((probes.counters().lost, probes.counters().untracked), (0, 0));
    assert!(events.iter().all(|event| !matches!(event, Event::FlowEnd(_))), "nothing ended");
}

/// The read that empties the buffer opens the window, and what the peer then sends arrives before the read is reported.
#[test]
fn data_is_unread_until_the_read_that_takes_it() {
    if !ready("a reader that pauses") {
        return;
    }
    let _alone = alone();
    let talker = Talker::start_as("load::pause", "1");
    let mut probes = Probes::load(&talker.config(64)).unwrap();
    probes.attach_always().unwrap();
    probes.owners().unwrap();
    probes.begin_slice().unwrap();
    std::thread::sleep(PAUSE * 50);
    probes.end_slice();
    let reader = probes.flows().unwrap().into_iter().find(|dump| dump.calls().recvs > 0).expect("it reads");
    let sum = |state: Option<FlowState>| -> u64 {
        reader.cells().iter().filter(|cell| state.is_none_or(|state| cell.state == state)).map(|cell| cell.ns).sum()
    };
    let share = sum(Some(FlowState::RxWaiting)) as f64 / sum(None) as f64;
    // The first interval's begin was not seen, and the second may be cut short by it.
    assert!(share > 0.9, "{share}: {:?}", reader.cells());
}

#[test]
fn more_flows_than_the_limit_are_counted() {
    if !ready("the limit of flows") {
        return;
    }
    let _alone = alone();
    let talker = Talker::talk(20);
    let mut probes = Probes::load(&talker.config(8)).unwrap();
    probes.attach_always().unwrap();
    probes.owners().unwrap();
    probes.begin_slice().unwrap();
    std::thread::sleep(std::time::Duration::from_millis(50));
    probes.end_slice();
    let tracked = probes.flows().unwrap().len();
    let untracked = probes.counters().untracked;
    assert!((1..=8).contains(&tracked), "{tracked} of 41 sockets, limit 8");
    assert!(untracked > 0, "the rest is counted");
}

#[test]
fn idle_connections_beyond_the_first_are_tracked_once_they_are_used() {
    if !ready("many connections") {
        return;
    }
    let _alone = alone();
    let talker = Talker::talk(20);
    let mut probes = Probes::load(&Config { eager_flows: 8, ..talker.config(64) }).unwrap();
    probes.attach_always().unwrap();
    probes.owners().unwrap();
    let eager = probes.flows().unwrap().len();
    assert!((1..=8).contains(&eager), "{eager} of 40 connections");
    probes.begin_slice().unwrap();
    std::thread::sleep(std::time::Duration::from_millis(100));
    probes.end_slice();
    let flows = probes.flows().unwrap();
    assert_eq!((flows.len(), probes.counters().untracked), (40, 0));
    assert_eq!(flows.iter().filter(|dump| dump.flow.late != 0).count(), 40 - eager);
    for dump in flows {
        let calls = dump.calls();
        assert!(calls.sends + calls.recvs > 0, "{calls:?}");
    }
}

#[test]
fn connections_beyond_the_first_that_carried_data_lately_are_tracked_at_once() {
    if !ready("connections that were active") {
        return;
    }
    let _alone = alone();
    let talker = Talker::talk(20);
    std::thread::sleep(std::time::Duration::from_millis(100));
    let config = Config { eager_flows: 0, recent_jiffies: u32::MAX, ..talker.config(64) };
    let mut probes = Probes::load(&config).unwrap();
    probes.attach_always().unwrap();
    probes.owners().unwrap();
    assert_eq!(probes.flows().unwrap().len(), 40);
}

#[test]
fn two_observers_do_not_disturb_each_other() {
    if !ready("two observers at once") {
        return;
    }
    let _alone = alone();
    let talker = Talker::talk(1);
    let mut both: Vec<Probes> = (0..2).map(|_| Probes::load(&talker.config(64)).unwrap()).collect();
    for probes in &mut both {
        probes.attach_always().unwrap();
        probes.owners().unwrap();
        probes.begin_slice().unwrap();
    }
    std::thread::sleep(std::time::Duration::from_millis(100));
    let first = both.remove(0);
    drop(first);
    std::thread::sleep(std::time::Duration::from_millis(100));
    let mut left = both.remove(0);
    left.end_slice();
    let sends: u64 = left.flows().unwrap().iter().map(|dump| dump.calls().sends).sum();
    assert!(sends > 50, "{sends} sends in 200 ms");
}

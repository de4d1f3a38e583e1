//! Windows of the same probes, one after the other: each has its own ledgers, and what is between two is in none.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use parshall_bpf::diagnose::lifecycle::FlowDump;
use parshall_bpf::diagnose::thread::ThreadDump;
use parshall_bpf::diagnose::{Config, Event, Probes};

use crate::probed::{Talker, alone, end_with_parent, ready};

const WINDOW: Duration = Duration::from_millis(120);

/// Two ends that talk all the time, and connections that are opened and closed meanwhile by threads that end.
#[test]
#[ignore = "not a test: the body of the child process"]
fn comes_and_goes() {
    if std::env::var_os("TALK").is_none() {
        return;
    }
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let pair = || (TcpStream::connect(listener.local_addr().unwrap()).unwrap(), listener.accept().unwrap().0);
    let exchange = |(client, server): &mut (TcpStream, TcpStream)| {
        client.write_all(&[1; 100]).unwrap();
        server.read_exact(&mut [0; 100]).unwrap();
    };
    let mut stays = pair();
    end_with_parent();
    println!("talking");
    loop {
        exchange(&mut stays);
        std::thread::scope(|scope| drop(scope.spawn(|| exchange(&mut pair()))));
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The ledgers of the connections that talk all the time.
fn lasting(flows: Vec<FlowDump>) -> Vec<FlowDump> {
    flows.into_iter().filter(|dump| dump.calls().sends + dump.calls().recvs > 2).collect()
}

fn events(probes: &Probes) -> Vec<Event> {
    let mut events = Vec::new();
    while probes.drain(&mut events) {}
    events
}

/// Sleeps for a window, and until the thread has run since its account was read.
fn until_it_ran(pid: u32, thread: &ThreadDump) {
    let file = format!("/proc/{pid}/task/{}/schedstat", thread.tid);
    let cpu_ns = || -> u64 {
        let text = std::fs::read_to_string(&file).unwrap();
        text.split_whitespace().next().unwrap().parse().unwrap()
    };
    std::thread::sleep(WINDOW);
    let give_up = Instant::now() + Duration::from_secs(60);
    while cpu_ns() <= thread.cpu_ns {
        assert!(Instant::now() < give_up, "{thread:?} does not run");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn ends(events: &[Event]) -> usize {
    events.iter().filter(|event| matches!(event, Event::FlowEnd(_) | Event::ThreadEnd(_))).count()
}

#[test]
fn each_window_has_its_own_ledgers() {
    if !ready("two windows") {
        return;
    }
    let _alone = alone();
    for as_older in [false, true] {
        // Where a CPU is taken away in the middle of an event, that of the other end is taken for one of the past, and the ledger has a hole.
        let whole = (0..10).map(|_| two_windows(as_older)).find(|least| *least >= 0.75);
        assert!(whole.is_some(), "older {as_older}: no two windows are whole");
    }
}

/// The least share of a window that the ledger of a connection accounts for.
fn two_windows(as_older: bool) -> f64 {
    let talker = Talker::start_as("windows::comes_and_goes", "1");
    let mut probes = Probes::load(&Config { as_older, ..talker.config(64) }).unwrap();
    probes.attach_always().unwrap();
    probes.owners().unwrap();
    let mut before = Vec::new();
    probes.renew(|dump| before.push(dump)).unwrap();
    assert!(before.iter().all(|dump| dump.cells().is_empty()), "nothing was measured yet");
    let (mut observed, mut least) = (Vec::new(), f64::INFINITY);
    for _ in 0..2 {
        assert_eq!(probes.attach_samples(std::iter::once(0)), 0);
        let began = probes.begin_slice().unwrap();
        std::thread::sleep(WINDOW);
        let mut seen = events(&probes);
        let give_up = Instant::now() + Duration::from_secs(60);
        while ends(&seen) <= 10 {
            assert!(Instant::now() < give_up, "connections and threads end all the time: {}", ends(&seen));
            std::thread::sleep(Duration::from_millis(10));
            seen.extend(events(&probes));
        }
        let length = probes.end_slice() - began;
        let (flows, threads) = (lasting(probes.flows().unwrap()), probes.threads().unwrap());
        probes.rest();
        events(&probes);
        assert_eq!(flows.len(), 2, "{flows:?}");
        for dump in &flows {
            let ns: u64 = dump.cells().iter().map(|cell| cell.ns).sum();
            let share = ns as f64 / length as f64;
            assert!(share <= 1.05, "older {as_older}: {share} of the window");
            least = least.min(share);
        }
        let (off, calls) = (probes.off_cells(), probes.sys_cells());
        let called = |tid: u32| calls.get(&tid).into_iter().flatten().map(|(_, value)| value.count).sum::<u64>();
        let talks = threads.iter().max_by_key(|dump| called(dump.tid)).expect("it has threads");
        let off_ns: u64 = off[&talks.tid].iter().map(|(_, value)| value.ns).sum();
        let share = (talks.on_ns + off_ns) as f64 / length as f64;
        assert!((0.95..=1.05).contains(&share), "older {as_older}: {share} of the window");
        let called = called(talks.tid);
        observed.push((flows.iter().map(|dump| dump.calls().sends).sum::<u64>(), called, length));

        // Events from here on are in no window.
        until_it_ran(talker.pid(), talks);
        assert_eq!(ends(&events(&probes)), 0, "what ends between two windows is not reported");
        let mut old = Vec::new();
        let threads = probes.renew(|dump| old.push(dump)).unwrap();
        assert!(threads.iter().any(|dump| dump.tid == talks.tid && dump.cpu_ns > talks.cpu_ns));
        assert!(lasting(old).len() == 2, "the connections are known still");
        assert!(probes.off_cells().is_empty() && probes.sys_cells().is_empty());
        let renewed = probes.flows().unwrap();
        assert!(renewed.iter().all(|dump| dump.cells().is_empty() && dump.calls().sends == 0), "{renewed:?}");
        let renewed = probes.threads().unwrap();
        assert!(renewed.iter().all(|dump| (dump.on_ns, dump.runq_ns, dump.copy_recvs) == (0, 0, 0)), "{renewed:?}");
    }
    // A round takes a millisecond at least: with those of the first window, or of the time between the two, there would be more.
    for (sends, called, length) in observed {
        let rounds_max = length / 1_000_000 * 3 / 2;
        assert!((1..=rounds_max).contains(&sends) && called > sends, "{sends} sends, {called} calls in {length} ns");
    }
    least
}

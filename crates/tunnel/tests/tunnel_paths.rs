//! Data of programs arrive unaltered over every kind of path: with a small MTU near or far, with an inner MTU above the
//! outer one, and where GSO batches are refused.
#![allow(clippy::unwrap_used)] // A test fails by a panic.

mod support;

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Command, Stdio};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use parshall_core::tunnel::DropCause;
use parshall_sys::udp_batch::DatagramBatch;
use parshall_tunnel::counts::Count;
use parshall_tunnel::engine::Engine;
use parshall_tunnel::uring::Tunables;
use rustix::io::Errno;
use rustix::net::sockopt::{self, Ipv4PathMtuDiscovery};
use support::{
    Host, Layout, PORT, STREAM_BYTES, at_once_with_all_engines, connected_udp_pair, echo, inside, ip, stream, udp_pair,
    with_all_engines, with_tunnels,
};

#[test]
fn streams_and_datagrams_pass_unaltered() {
    with_all_engines(Layout::default(), |hosts| {
        echo(hosts, 7000, &[0, 1, 64, 1200, 1392, 4000, 60_000]);
        let [a, b] = hosts;
        // Superframes stay whole: of the streams, messages have several datagrams, and frames several packets. How many depends
        // on how late each side reads, so where the host kept it from that, another pair of streams follows.
        let whole = |n: u16| {
            let pairs = [
                (a, Count::DatagramsSent, Count::MessagesSent),
                (a, Count::DatagramsSent, Count::SendCalls),
                (b, Count::DatagramsReceived, Count::ReceiveCalls),
                (b, Count::PacketsWritten, Count::FramesWritten),
            ];
            let counted = || pairs.map(|(host, packets, calls)| [packets, calls].map(|count| host.count(count)));
            let before = counted();
            stream(hosts, 0, 5001 + 2 * n, STREAM_BYTES);
            stream(hosts, 1, 5002 + 2 * n, STREAM_BYTES);
            let rose =
                std::iter::zip(before, counted()).map(|(before, now)| [0, 1].map(|at| (now[at] - before[at]) as f64));
            rose.into_iter().all(|[packets, calls]| packets / calls > 1.5)
        };
        assert!((0..5).any(whole), "{:?} {:?}", a.counts, b.counts);
        assert_eq!((a.count(Count::GsoBatchesRefused), a.drops(DropCause::SendFailed)), (0, 0));
        assert_eq!(a.socket.local_addr().unwrap().port(), PORT);
    });
}

/// Sends datagrams that must not be cut until the kernel of the sender knows the path's MTU, and returns that.
fn learned_mtu(hosts: &[Host; 2], from: usize, len: usize) -> u32 {
    let pair = udp_pair(hosts, 7100);
    let (here, to) = (&pair[from], inside(2 - from as u8, 7100));
    sockopt::set_ip_mtu_discover(here, Ipv4PathMtuDiscovery::DO).unwrap();
    here.connect(to).unwrap();
    let until = Instant::now() + Duration::from_secs(10);
    while Instant::now() < until {
        match here.send(&vec![0; len]) {
            Err(error) if error.raw_os_error() == Some(Errno::MSGSIZE.raw_os_error()) => {
                return sockopt::ip_mtu(here).unwrap();
            }
            sent => assert_eq!(sent.unwrap(), len),
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    panic!("no message came: {:?}", hosts[from].counts);
}

#[test]
fn a_small_mtu_of_the_own_link_is_known_before_anything_is_lost() {
    let layout = Layout { near_mtu: 1280, far_mtu: 1280, ..Layout::default() };
    with_all_engines(layout, |hosts| {
        stream(hosts, 0, 5001, STREAM_BYTES);
        stream(hosts, 1, 5002, STREAM_BYTES);
        echo(hosts, 7000, &[64, 1100, 1192, 1392, 60_000]);
        assert_eq!([0, 1].map(|from| learned_mtu(hosts, from, 1392)), [1220; 2]);
        let [a, _] = hosts;
        assert_eq!(a.link.path().mtu(), Some(1280));
        assert!(a.drops(DropCause::TooBig) > 0, "{:?}", a.counts);
        assert_eq!(a.count(Count::GsoBatchesRefused), 0, "{:?}", a.counts);
        assert!(
            2 * a.count(Count::DatagramsSent) > 3 * a.count(Count::MessagesSent),
            "still GSO batches: {:?}",
            a.counts
        );
    });
}

#[test]
fn a_small_mtu_behind_a_router_is_learned_from_its_messages() {
    with_all_engines(Layout { far_mtu: 1280, ..Layout::default() }, |hosts| {
        assert_eq!(learned_mtu(hosts, 0, 1392), 1220, "one datagram at a time");
        stream(hosts, 0, 5001, STREAM_BYTES);
        stream(hosts, 1, 5002, STREAM_BYTES);
        echo(hosts, 7000, &[64, 1192, 1392, 60_000]);
        assert_eq!(hosts[0].link.path().mtu(), Some(1280));
    });
}

#[test]
fn a_stream_survives_that_the_mtu_shrinks_and_grows() {
    with_all_engines(Layout::default(), |hosts| {
        stream(hosts, 0, 5001, STREAM_BYTES);
        let set = |mtu| hosts[0].ns.run(|| ip(&format!("link set eth0 mtu {mtu}"))).unwrap();
        set(1280);
        stream(hosts, 0, 5002, STREAM_BYTES);
        assert_eq!(hosts[0].link.path().mtu(), Some(1280));
        set(1500);
        std::thread::sleep(Duration::from_millis(1100));
        // TCP of other connections remembers the smaller MTU for ten minutes; datagrams that may be cut do not.
        echo(hosts, 7000, &[1392]);
        assert_eq!(hosts[0].link.path().mtu(), Some(1500));
        stream(hosts, 0, 5003, STREAM_BYTES);
    });
}

#[test]
fn an_inner_mtu_above_the_outer_one_works() {
    for inner_mtu in [9000, 65_535] {
        with_all_engines(Layout { inner_mtu, ..Layout::default() }, |hosts| {
            stream(hosts, 0, 5001, STREAM_BYTES);
            stream(hosts, 1, 5002, STREAM_BYTES);
            echo(hosts, 7000, &[64, 1412, 8972, 65_507]);
            assert_eq!(learned_mtu(hosts, 0, 8972), 1440);
        });
    }
}

#[test]
fn jumbo_packets_pass_where_the_path_takes_them() {
    let layout = Layout { near_mtu: 9100, far_mtu: 9100, inner_mtu: 9000, ..Layout::default() };
    with_all_engines(layout, |hosts| {
        stream(hosts, 0, 5001, STREAM_BYTES);
        stream(hosts, 1, 5002, STREAM_BYTES);
        echo(hosts, 7000, &[1412, 8972, 65_507]);
        let [a, _] = hosts;
        assert_eq!((a.drops(DropCause::TooBig), a.count(Count::Fragmented)), (0, 0), "{:?}", a.counts);
    });
}

#[test]
fn a_clamped_mss_needs_no_messages() {
    let layout = Layout { near_mtu: 1280, far_mtu: 1280, clamp_mss: true, ..Layout::default() };
    with_all_engines(layout, |hosts| {
        stream(hosts, 0, 5001, STREAM_BYTES);
        stream(hosts, 1, 5002, STREAM_BYTES);
        assert_eq!(hosts.each_ref().map(|host| host.drops(DropCause::TooBig)), [0; 2]);
    });
}

/// SO_NO_CHECK: a socket without checksums, which sends no GSO batches (EINVAL).
fn set_no_check(host: &Host, on: bool) -> io::Result<()> {
    let script = format!("import socket; socket.socket(fileno=0).setsockopt(socket.SOL_SOCKET, 11, {})", u8::from(on));
    let socket = OwnedFd::from(host.socket.try_clone()?);
    let status = Command::new("python3").args(["-c", &script]).stdin(Stdio::from(socket)).status()?;
    if status.success() { Ok(()) } else { Err(io::Error::other(status.to_string())) }
}

#[test]
fn a_path_without_gso_batches_gets_datagrams_and_later_gso_batches_again() {
    // Most of the time is a wait: the loops wait at once.
    at_once_with_all_engines(Layout::default(), |hosts| {
        stream(hosts, 0, 5001, STREAM_BYTES);
        let [a, _] = hosts;
        if let Err(error) = set_no_check(a, true) {
            return parshall_testkit::skip("a socket that sends no GSO batches", &error.to_string());
        }
        stream(hosts, 0, 5002, STREAM_BYTES);
        let refused = a.count(Count::GsoBatchesRefused);
        assert!((1..=32).contains(&refused), "refused {refused} times: {:?}", a.counts);
        assert_eq!((a.drops(DropCause::SendFailed), a.drops(DropCause::SendBufferFull)), (0, 0), "{:?}", a.counts);
        set_no_check(a, false).unwrap();
        std::thread::sleep(Duration::from_millis(10_500));
        let before = [Count::DatagramsSent, Count::MessagesSent].map(|count| a.count(count));
        stream(hosts, 0, 5003, STREAM_BYTES);
        let [datagrams, messages] = [Count::DatagramsSent, Count::MessagesSent].map(|count| a.count(count));
        let (datagrams, messages) = (datagrams - before[0], messages - before[1]);
        assert!(2 * datagrams > 3 * messages, "GSO batches again: {datagrams} in {messages}, {:?}", a.counts);
        assert_eq!(a.count(Count::GsoBatchesRefused), refused);
    });
}

#[test]
fn the_ring_works_however_it_is_tuned() {
    let least = Tunables { entries: 1, tun_slots: 1, send_slots: 1, ..Tunables::default() };
    let tuned = [
        least,
        Tunables { zero_copy: true, ..Tunables::default() },
        Tunables { blocking_tun: true, tun_slots: 2, ..Tunables::default() },
        Tunables { sqpoll: true, ..Tunables::default() },
        Tunables { sqpoll: true, zero_copy: true, blocking_tun: true, ..least },
    ];
    for tunables in tuned {
        eprintln!("with {tunables:?}");
        with_tunnels(Layout { engine: Engine::Uring(tunables), ..Layout::default() }, |hosts| {
            stream(hosts, 0, 5001, STREAM_BYTES / 4);
            stream(hosts, 1, 5002, STREAM_BYTES / 4);
            echo(hosts, 7000, &[0, 1392, 60_000]);
        });
    }
}

/// Datagrams that a program hands over at once stay together: in the TUN device, in the GSO batch and in the other device.
#[test]
fn superframes_of_udp_stay_whole() {
    with_all_engines(Layout::default(), |hosts| {
        let [here, there] = connected_udp_pair(hosts, 7000);
        // A packet is counted after it was passed on, how long after is the scheduler's affair.
        let counts = || hosts.each_ref().map(|host| host.counts.read());
        let read = || {
            let (mut last, mut same) = (counts(), 0);
            while same < 5 {
                std::thread::sleep(Duration::from_millis(100));
                let now = counts();
                same = if now == last { same + 1 } else { 0 };
                last = now;
            }
            last
        };
        let before = read();
        let mut batch = DatagramBatch::new(1);
        let slot = batch.take_slot().unwrap();
        batch.payload_mut(slot)[..40 * 1000].fill(7);
        batch.begin(None, None, 0);
        batch.attach(slot, 40 * 1000);
        batch.end(1000);
        assert_eq!(batch.transmit(here.as_fd(), 0).unwrap(), 1);
        for _ in 0..40 {
            assert_eq!(support::received(&there, &mut [0; 2000]), 1000);
        }
        let [a, b] = read();
        let packets = (a.packets_read - before[0].packets_read, b.packets_written - before[1].packets_written);
        assert_eq!(packets, (40, 40));
        if a.frames_read - before[0].frames_read == 40 {
            return parshall_testkit::skip("superframes of UDP", "the TUN device has none before kernel 6.2");
        }
        assert_eq!(a.frames_read - before[0].frames_read, 1);
        assert_eq!(a.messages_sent - before[0].messages_sent, 1);
        assert!(b.frames_written - before[1].frames_written <= 2, "{b:?}");
    });
}

/// A device that is not read ahead of what is sealed drops by itself, whatever flow comes last.
#[test]
fn bulk_that_is_too_fast_waits_in_the_fair_queue() {
    with_all_engines(Layout::default(), |hosts| {
        let [here, _there] = connected_udp_pair(hosts, 7000);
        let mut sender = DatagramBatch::new(16);
        for _ in 0..16 {
            let slot = sender.take_slot().unwrap();
            sender.begin(None, None, 0);
            sender.attach(slot, 50 * 1200);
            sender.end(1200);
        }
        let until = Instant::now() + Duration::from_secs(20);
        while hosts[0].drops(DropCause::QueueFull) == 0 {
            sender.transmit(here.as_fd(), 0).unwrap();
            assert!(Instant::now() < until, "{:?}", hosts[0].counts);
        }
    });
}

/// A counter of a host's network: its file in /proc/net, its group and its name.
fn network_counter(host: &Host, file: &str, group: &str, name: &str) -> u64 {
    let text = host.ns.run(|| std::fs::read_to_string(format!("/proc/thread-self/net/{file}"))).unwrap();
    let mut lines = text.lines().filter_map(|line| line.strip_prefix(group)?.strip_prefix(": "));
    let (names, values) = (lines.next().unwrap(), lines.next().unwrap());
    let at = names.split(' ').position(|other| other == name).unwrap();
    values.split(' ').nth(at).unwrap().parse().unwrap()
}

#[test]
fn threads_keep_the_order() {
    let layout = Layout { engine: Engine::Syscall(4), ..Layout::default() };
    with_tunnels(layout, |hosts| {
        stream(hosts, 0, 5001, 4 * STREAM_BYTES);
        stream(hosts, 1, 5002, 4 * STREAM_BYTES);
        // Segments behind a lost one are out of order too.
        let lost: u64 = hosts.iter().map(|host| network_counter(host, "snmp", "Tcp", "RetransSegs")).sum();
        let late: u64 = hosts.iter().map(|host| network_counter(host, "netstat", "TcpExt", "TCPOFOQueue")).sum();
        assert!(late == 0 || lost > 0, "{late} segments overtook others");
        let [here, there] = udp_pair(hosts, 7000);
        here.connect(inside(2, 7000)).unwrap();
        let all_came = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                // A host that is full may lose any of them, the last ones too: it goes on until enough have come.
                for n in (0..1_000_000_u32).take_while(|_| !all_came.load(Relaxed)) {
                    here.send(&n.to_be_bytes()).unwrap();
                    if n % 64 == 0 {
                        std::thread::sleep(Duration::from_micros(200));
                    }
                }
            });
            let (mut last, mut number) = (None, [0; 4]);
            while last < Some(19_000) {
                support::received(&there, &mut number);
                let n = u32::from_be_bytes(number);
                assert!(last < Some(n), "{n} came after {last:?}");
                last = Some(n);
            }
            all_came.store(true, Relaxed);
        });
    });
}

//! Events of the kernel by name: who calls them, with which value and stack.
use std::net::{Ipv4Addr, UdpSocket};

use parshall_bpf::diagnose::event::{Cell, Events, find};
use parshall_testkit::{root, skip};

use super::probed::alone;

fn cpus() -> Vec<u32> {
    (0..std::thread::available_parallelism().map_or(1, |n| n.get() as u32)).collect()
}

/// The cells of an event that threads of this process had.
fn own(cells: &[Cell]) -> Vec<&Cell> {
    cells.iter().filter(|cell| cell.tgid == std::process::id()).collect()
}

/// Datagrams that nobody receives.
fn send_into_the_void(times: usize) {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let unused = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap();
    for _ in 0..times {
        // The refusal of one is reported by the next.
        let _ = socket.send_to(b"nobody", unused);
    }
}

#[test]
fn drops_have_their_reason_and_their_path() {
    if !root("drops by reason") {
        return;
    }
    let _alone = alone();
    let mut events = Events::load(vec![find("skb:kfree_skb").unwrap()]).unwrap();
    events.begin(&cpus()).unwrap();
    send_into_the_void(40);
    events.stop();
    send_into_the_void(40);
    let (counted, took_ns) = events.end();
    let drops: Vec<&Cell> = own(&counted[0].cells).into_iter().filter(|cell| cell.value == "NO_SOCKET").collect();
    if drops.is_empty() && own(&counted[0].cells).iter().all(|cell| cell.value.is_empty()) {
        return skip("reasons of drops", "this kernel has none (before 5.17)");
    }
    assert_eq!(drops.iter().map(|cell| cell.count).sum::<u64>(), 40, "{:?}", counted[0]);
    let has_room = counted[0].without_stack == 0;
    assert!(drops.iter().all(|cell| (cell.kernel.len() > 5 || !has_room) && !cell.comm.is_empty()), "{drops:?}");
    assert_eq!(counted[0].lost, 0);
    assert!(took_ns > 0);
}

#[test]
fn windows_count_apart_and_software_events_as_well() {
    if !root("events in two windows") {
        return;
    }
    let _alone = alone();
    let names = ["page-faults", "raw_syscalls:sys_enter", "context-switches"];
    let mut events = Events::load(names.iter().map(|name| find(name).unwrap()).collect()).unwrap();
    let count = |cells: &[Cell]| own(cells).iter().map(|cell| cell.count).sum::<u64>();
    // So much is not taken from what was freed, whose pages are there already (M_MMAP_THRESHOLD is 32 MiB at most).
    for pages in [10_000, 0] {
        let mut memory: Vec<u8> = vec![0; pages * 4096];
        events.begin(&cpus()).unwrap();
        memory.iter_mut().step_by(4096).for_each(|byte| *byte = 1);
        std::hint::black_box(&memory);
        for _ in 0..50 {
            std::thread::sleep(std::time::Duration::from_micros(100));
        }
        events.stop();
        let (counted, _) = events.end();
        let faults = count(&counted[0].cells);
        // Large pages take fewer faults.
        assert!(if pages == 0 { faults < 500 } else { faults >= 6 }, "{faults} faults of {pages} pages");
        assert!(count(&counted[1].cells) >= 50, "{:?}", counted[1].cells.len());
        assert!(count(&counted[2].cells) >= 40, "{:?}", counted[2].cells.len());
        // On a host that makes many calls there may be no room for the stacks of these.
        let with_user_stack = own(&counted[1].cells).into_iter().filter(|cell| !cell.user.is_empty());
        assert!(counted[1].without_stack > 0 || with_user_stack.count() > 0, "calls come from a program");
    }
}

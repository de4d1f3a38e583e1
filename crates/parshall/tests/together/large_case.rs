//! A saved case may come from somebody else: what `show` does with it takes time in proportion to its size.
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;
use std::time::Duration;

use crate::common;
use parshall_core::judge::judge;
use parshall_evidence::Capture;
use parshall_evidence::timeline::{self, OffCpu, SocketCall, Waker};

/// Far more than it takes on a busy host. An account of each pair of records would take hours.
const LIMIT: Duration = Duration::from_secs(600);

/// The fields that copies of a record have in common with it.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Common {
    /// Everything: they are the same flow, thread and service again.
    All,
    /// Addresses and processes.
    Addresses,
    /// Nothing.
    Nothing,
}

fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/recordings")
}

fn recording(name: &str) -> Capture {
    let bytes = std::fs::read(directory().join(name).with_extension("json")).expect("a recording");
    serde_json::from_slice(&bytes).expect("a capture")
}

/// Repeats what a capture holds until it has about `entries` of all kinds together.
fn grown(capture: &Capture, entries: usize, common: Common) -> Capture {
    let services = &capture.services;
    let has = capture.flows.len()
        + capture.threads.len()
        + services.iter().map(|service| 1 + service.path.len()).sum::<usize>()
        + capture.flow_stalls.len()
        + capture.thread_stalls.len()
        + capture.samples.len();
    let mut grown = capture.clone();
    for copy in 1..u32::try_from(entries / has).expect("a small number") {
        add_copy(&mut grown, capture, copy, common);
    }
    grown
}

fn add_copy(grown: &mut Capture, capture: &Capture, copy: u32, common: Common) {
    let id = |id: u64| if common == Common::All { id } else { id + (u64::from(copy) << 40) };
    let tid = |tid: u32| if common == Common::All || tid == 0 { tid } else { tid + (copy << 8) };
    let pid = |pid: u32| if common == Common::Nothing { tid(pid) } else { pid };
    let ip = |ip: IpAddr| match common {
        Common::Nothing => IpAddr::V4(Ipv4Addr::from_bits(0x0a00_0000 + copy)),
        _ => ip,
    };
    for mut flow in capture.flows.iter().cloned() {
        (flow.id, flow.pid, flow.last_tid) = (id(flow.id), pid(flow.pid), tid(flow.last_tid));
        flow.local.set_ip(ip(flow.local.ip()));
        flow.remote.set_ip(ip(flow.remote.ip()));
        flow.netns = id(flow.netns);
        grown.flows.push(flow);
    }
    for mut stall in capture.flow_stalls.iter().cloned() {
        (stall.flow, stall.tid) = (id(stall.flow), tid(stall.tid));
        grown.flow_stalls.push(stall);
    }
    for mut thread in capture.threads.iter().cloned() {
        (thread.tid, thread.pid) = (tid(thread.tid), pid(thread.pid));
        grown.threads.push(thread);
    }
    for mut stall in capture.thread_stalls.iter().cloned() {
        stall.tid = tid(stall.tid);
        grown.thread_stalls.push(stall);
    }
    for mut sample in capture.samples.iter().cloned() {
        sample.tid = tid(sample.tid);
        grown.samples.push(sample);
    }
    for mut service in capture.services.iter().cloned() {
        service.address.set_ip(ip(service.address.ip()));
        service.pids.iter_mut().for_each(|own| *own = pid(*own));
        let hops = service.path.iter_mut().flat_map(|part| &mut part.hops);
        hops.for_each(|hop| (hop.pid, hop.tid) = (pid(hop.pid), tid(hop.tid)));
        grown.services.push(service);
    }
    let (Some(all), Some(own)) = (&mut grown.counters, &capture.counters) else { return };
    all.sockets.extend(own.sockets.iter().cloned().map(|mut figures| {
        figures.flow = id(figures.flow);
        figures
    }));
    all.namespaces.extend(own.namespaces.iter().cloned().map(|mut space| {
        space.netns = id(space.netns);
        space
    }));
    all.listeners.extend(own.listeners.iter().cloned());
    all.memory.extend(own.memory.iter().cloned());
    grown.subject.pids.extend(capture.subject.pids.iter().map(|own| pid(*own)));
    grown.subject.comms.extend(capture.subject.comms.iter().cloned());
}

/// Fails unless a capture is judged within the limit.
fn judge_in_time(capture: Capture, name: &str, common: Common) {
    let (judged, done) = channel();
    // Detached: what takes hours ends with the test.
    std::thread::spawn(move || judged.send(judge(&capture).findings.len()));
    assert!(done.recv_timeout(LIMIT).is_ok(), "{name} with {common:?} in common is not judged within {LIMIT:?}");
}

/// Judges the recording when it has been repeated to `entries`, in each way.
fn judge_grown(name: &str, entries: usize) {
    for common in [Common::All, Common::Addresses, Common::Nothing] {
        judge_in_time(grown(&recording(name), entries, common), name, common);
    }
}

/// Repeats a timeline under other numbers until it has about `entries` events. `Common::Addresses` leaves addresses and
/// processes as they are.
fn grown_timeline(capture: &Capture, entries: usize, common: Common) -> Capture {
    let timeline = capture.timeline.as_ref().expect("a timeline");
    let mut all = timeline.clone();
    for copy in 1..u32::try_from(entries / timeline.events().max(1)).expect("a small number") {
        let id = |id: u64| id + (u64::from(copy) << 40);
        let tid = |tid: u32| if tid == 0 { 0 } else { tid + copy * 1_000_000 };
        let pid = |pid: u32| if common == Common::Addresses { pid } else { tid(pid) };
        let waker = |waker| if let Waker::Thread(by) = waker { Waker::Thread(tid(by)) } else { waker };
        for (own, offs) in &timeline.off_cpu {
            let of =
                |off: &OffCpu| OffCpu { tid: tid(off.tid), waker: waker(off.waker), target: id(off.target), ..*off };
            all.off_cpu.insert(tid(*own), offs.iter().map(of).collect());
        }
        for (own, calls) in &timeline.calls {
            let of = |call: &SocketCall| SocketCall { socket: id(call.socket), tid: tid(call.tid), ..*call };
            all.calls.insert(id(*own), calls.iter().map(of).collect());
        }
        for (own, socket) in &timeline.sockets {
            let other_end = socket.other_end.map(id);
            all.sockets.insert(id(*own), timeline::Socket { pid: pid(socket.pid), other_end, ..*socket });
        }
        for (own, names) in &timeline.names {
            all.names.insert(tid(*own), timeline::Names { pid: pid(names.pid), ..names.clone() });
        }
        all.observed_pids.extend(timeline.observed_pids.iter().map(|(own, since)| (pid(*own), *since)));
        all.asked_pids.extend(timeline.asked_pids.iter().map(|own| pid(*own)));
    }
    Capture { timeline: Some(all), ..capture.clone() }
}

/// A recording with three processes between the client and a disk.
const LONG_CHAIN: &str = "chain-nginx-gunicorn-postgres-disk";

/// Judges timelines of chains that have been repeated.
fn judge_grown_timelines(is_wanted: impl Fn(&str) -> bool) {
    for (name, file) in super::docket::files().filter(|(name, _)| is_wanted(name)) {
        let capture = common::capture(&file);
        for common in [Common::Addresses, Common::Nothing] {
            judge_in_time(grown_timeline(&capture, 100_000, common), &name, common);
        }
    }
}

#[test]
fn a_large_timeline_is_judged() {
    judge_grown_timelines(|name| name == LONG_CHAIN);
}

#[test]
#[ignore = "make test-all"]
fn the_large_timeline_of_each_chain_is_judged() {
    judge_grown_timelines(|name| name.starts_with("chain-"));
}

#[test]
fn a_large_case_is_judged() {
    for name in ["slow-reader-own-sender", "handshake-per-request", "timer-wait"] {
        judge_grown(name, 50_000);
    }
}

#[test]
#[ignore = "make test-all"]
fn each_recording_is_judged_when_it_is_large() {
    let files = std::fs::read_dir(directory()).expect("recordings").flatten().map(|file| file.file_name());
    let names = files.filter_map(|file| Some(file.to_str()?.strip_suffix(".json")?.to_owned()));
    names.for_each(|name| judge_grown(&name, 100_000));
}

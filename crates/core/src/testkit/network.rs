//! Flows that a window or a buffer holds back, and counters of the kernel.
use std::collections::BTreeMap;

use parshall_evidence::{
    Counters, DescriptorUse, FlowState, ListenerCounters, NamespaceCounters, NetSettings, Release, Role, TcpSnapshot,
};

use super::{FlowBuilder, MS, WINDOW_NS};

/// Round trip of the flows made here.
const RTT_MS: u64 = 20;
/// Bytes that their window or buffer lets through in a round trip.
const WINDOW: u64 = 16_384;

fn far(id: u64, role: Role) -> FlowBuilder {
    let mut flow = FlowBuilder::new(id, role).remote_host();
    for snapshot in [&mut flow.record.first, &mut flow.record.last] {
        *snapshot = TcpSnapshot {
            min_rtt_us: 1000 * RTT_MS as u32,
            srtt_us: 1000 * RTT_MS as u32 + 300,
            snd_wnd: WINDOW as u32,
            rcv_wnd: WINDOW as u32,
            rcvbuf: 32_768,
            sndbuf: 16_384,
            ..*snapshot
        };
    }
    flow
}

/// A sender and the receiver whose window of 16 KiB it fills in each round trip.
pub fn bound_by_window() -> (FlowBuilder, FlowBuilder) {
    let bytes = WINDOW * 50;
    let mut sender = far(1, Role::Client)
        .every(RTT_MS * MS, 0, (RTT_MS - 1) * MS, FlowState::PeerWindow, Release::RxAck)
        .streams(50, WINDOW);
    sender.stalls.iter_mut().for_each(|stall| stall.snd_wnd = WINDOW as u32);
    let mut receiver = far(2, Role::Server)
        .to(&sender)
        .owner(200, 201)
        .cell(FlowState::IdleAfterRecv, Release::RxData, WINDOW_NS - 10 * MS, 500)
        .drains(500, bytes / 500);
    receiver.record.last.segs_in += 500;
    (sender, receiver)
}

/// A sender whose send buffer of 16 KiB is full in each round trip.
pub fn bound_by_send_buffer() -> FlowBuilder {
    far(1, Role::Server).cell(FlowState::Sndbuf, Release::RxAck, 950 * MS, 300).streams(50, WINDOW)
}

/// Counters in which these rose, of the namespace of all flows made here.
pub fn rose(counters: &[(&str, u64)]) -> Counters {
    let rose: BTreeMap<String, u64> = counters.iter().map(|(name, n)| ((*name).to_string(), *n)).collect();
    let settings = NetSettings {
        tcp_rmem: [4096, 131_072, 6_291_456],
        tcp_wmem: [4096, 16_384, 4_194_304],
        rmem_max: 212_992,
        wmem_max: 212_992,
        local_ports: (32_768, 60_999),
        somaxconn: 4096,
        window_scaling: true,
        slow_start_after_idle: true,
        mtu_probing: 0,
        tw_reuse: 2,
    };
    let namespace = NamespaceCounters { netns: 1, rose, settings: Some(settings), ..NamespaceCounters::default() };
    let descriptors = vec![DescriptorUse { pid: 100, open: 10, limit: 1024 }];
    Counters { elapsed_ns: WINDOW_NS, namespaces: vec![namespace], descriptors, ..Counters::default() }
}

/// Counters that stood still, and the usual settings, changed.
pub fn settings(change: impl FnOnce(&mut NetSettings)) -> Counters {
    let mut counters = rose(&[]);
    if let Some(settings) = &mut counters.namespaces[0].settings {
        change(settings);
    }
    counters
}

/// A listener of process 100 on this port, which dropped some connection requests.
pub fn listener(port: u16, drops: u64) -> ListenerCounters {
    let local = std::net::SocketAddr::from(([0, 0, 0, 0], port));
    ListenerCounters { local, netns: 1, pid: 100, drops, queued: (0, 0), limit: 1 }
}

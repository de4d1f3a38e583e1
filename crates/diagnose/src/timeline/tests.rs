//! Events that are kept, and the timeline that they make.

use std::net::Ipv4Addr;

use parshall_bpf::diagnose::record_head::RecordHead;
use parshall_bpf::diagnose::timeline::OP_SEND;
use parshall_evidence::{FdKind, FlowCalls, TcpSnapshot};

use super::*;

const BEGIN: u64 = 1_000_000;
const SERVER: u32 = 50;
const CLIENT: u32 = 60;

fn off(tid: u32, begin: u64, wake: u64, end: u64) -> OffCpuWire {
    OffCpuWire {
        head: RecordHead { kind: 7, tid, at: BEGIN + end },
        begin: BEGIN + begin,
        wake: BEGIN + wake,
        target: 9,
        nr: 0,
        fd_number: 5,
        tgid: SERVER,
        waker_tid: 61,
        prev_tid: 62,
        fd: 3,
        why: 0,
        waker_context: 1,
        pad: 0,
    }
}

fn call(cookie: u64, op: u8, since: u64, at: u64) -> CallWire {
    let head = RecordHead { kind: 8, tid: 51, at: BEGIN + at };
    CallWire {
        head,
        cookie,
        since: BEGIN + since,
        tgid: SERVER,
        bytes: 100,
        op,
        protocol: 0,
        kind: 0,
        flags: 0,
        length: 0,
        stream: 0,
        second: 0,
    }
}

fn datagram(cookie: u64, op: u8, (local, remote): (u16, u16), local_ip: u8, bound: u8) -> UdpCallWire {
    let mut saddr = [0; 16];
    let mut daddr = [0; 16];
    saddr[..4].copy_from_slice(&[local_ip, 0, 0, local_ip.min(1)]);
    if remote > 0 {
        daddr[..4].copy_from_slice(&[127, 0, 0, 1]);
    }
    let call = CallWire { tgid: if remote > 0 { CLIENT } else { SERVER }, ..call(cookie, op, 10, 20) };
    UdpCallWire { call, saddr, daddr, sport: local, dport: remote, family: 2, bound, pad: 0, netns: 1, pad2: 0 }
}

fn at(port: u16) -> SocketAddr {
    SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port)
}

fn flow(id: FlowId, local: u16, remote: u16, role: Role, begin_ns: u64) -> FlowRecord {
    FlowRecord {
        id,
        local: at(local),
        remote: at(remote),
        netns: 1,
        pid: if role == Role::Server { SERVER } else { CLIENT },
        last_tid: 0,
        role,
        begin_ns,
        end_ns: 1_000,
        observed_ns: 0,
        cells: Vec::new(),
        calls: FlowCalls::default(),
        first: TcpSnapshot::default(),
        last: TcpSnapshot::default(),
        merged: None,
    }
}

fn finish(events: Events, flows: &[FlowRecord], stalls: &[ThreadStall]) -> Timeline {
    events.finish(Parts {
        window: (BEGIN, BEGIN + 1_000),
        slices: &[(BEGIN, BEGIN + 400), (BEGIN + 600, BEGIN + 1_000)],
        flows,
        threads: &[],
        listeners: &HashSet::new(),
        stalls,
        observed: &HashSet::from([SERVER, CLIENT]),
        asked_pids: [SERVER].into(),
        asked_ports: vec![80],
    })
}

#[test]
fn what_was_sent_before_receives_by_splice_were_seen_is_left_out() {
    let sockets = [
        (1, Role::Server, &[OP_SEND, OP_SEND][..], false),
        (2, Role::Client, &[OP_SEND, OP_SEND], false),
        (3, Role::Client, &[OP_SEND], true),
        (4, Role::Server, &[OP_RECEIVE, OP_SEND], true),
        (5, Role::Server, &[OP_ACCEPT], true),
    ];
    let mut events = Events::default();
    events.know_served([1, 4]);
    for (id, _, ops, _) in sockets {
        ops.iter().for_each(|op| events.take_call(&call(id, *op, 10, 20)));
    }
    events.take_datagram(&datagram(6, OP_SEND, (5000, 53), 127, 0));
    events.forget_unread();
    let flows = sockets.map(|(id, role, ..)| flow(id, 80 + id as u16, 5000 + id as u16, role, 0));
    let timeline = finish(events, &flows, &[]);
    for (id, _, ops, stays) in sockets {
        let calls = timeline.calls.get(&id).map_or(0, Vec::len);
        assert_eq!(calls, if stays { ops.len() } else { 0 }, "socket {id}");
    }
    assert_eq!(timeline.calls[&6].len(), 1, "a datagram");
}

#[test]
fn times_off_the_cpu_are_in_order_and_have_their_stacks() {
    let mut events = Events::default();
    events.take_off_cpu(&off(51, 200, 250, 260));
    events.take_off_cpu(&off(51, 100, 150, 210));
    let stall = ThreadStall {
        tid: 51,
        begin_ns: 100,
        ns: 50,
        why: StallKind::Blocked,
        syscall: 0,
        syscall_name: "read".into(),
        fd: FdKind::Tcp,
        waker_tid: 61,
        waker_comm: String::new(),
        waker_in_irq: false,
        stack: Some(4),
        waker_stack: None,
    };
    let timeline = finish(events, &[], &[stall]);
    let offs = &timeline.off_cpu[&51];
    let times: Vec<_> = offs.iter().map(|off| (off.begin_ns, off.wake_ns, off.end_ns, off.stack)).collect();
    assert_eq!(times, [(100, 150, 200, Some(4)), (200, 250, 260, None)]);
    assert_eq!((offs[0].waker, offs[0].ran_instead_tid), (Waker::Thread(61), 62));
    assert_eq!((offs[0].fd, offs[0].fd_number, offs[0].target), (FdKind::Tcp, 5, 9));
    assert_eq!(timeline.slices, [(0, 400), (600, 1_000)]);
    assert_eq!(timeline.names[&51].pid, SERVER);
    assert_eq!(timeline.syscalls[&0], "read");
}

#[test]
fn an_accept_knows_since_when_its_connection_was_established() {
    let mut events = Events::default();
    events.take_call(&CallWire { since: 0, ..call(7, OP_ACCEPT, 0, 90) });
    events.take_call(&call(7, OP_RECEIVE, 60, 100));
    events.take_call(&call(8, OP_SEND, 60, 100));
    let timeline = finish(events, &[flow(7, 80, 4000, Role::Server, 30)], &[]);
    let calls: Vec<_> = timeline.calls[&7].iter().map(|call| (call.op, call.since_ns, call.at_ns)).collect();
    assert_eq!(calls, [(Op::Accept, 30, 90), (Op::Receive, 60, 100)]);
    assert!(!timeline.calls.contains_key(&8), "of a socket that is not the subject's");
    assert!(timeline.sockets[&7].opened && timeline.sockets[&7].serves);
}

#[test]
fn a_connection_that_closes_after_the_window_is_open_at_its_end() {
    let server = flow(7, 80, 4000, Role::Server, 30);
    let closed_ns = |at| {
        let mut events = Events::default();
        events.take_call(&call(7, OP_RECEIVE, 60, 100));
        events.closed.insert(7, End { closed: Some(BEGIN + at), ..end_of_flow(&server) });
        finish(events, std::slice::from_ref(&server), &[]).sockets[&7].closed_ns
    };
    assert_eq!([900, 1_000, 1_001].map(closed_ns), [Some(900), None, None]);
}

#[test]
fn a_connection_without_calls_closes_when_its_account_ends() {
    // Its client gave up before it was established.
    let mut attempt = flow(8, 4000, 80, Role::Client, 30);
    (attempt.last.state, attempt.end_ns) = (CLOSE, 700);
    let closed_ns =
        |flow: &FlowRecord| finish(Events::default(), std::slice::from_ref(flow), &[]).sockets[&8].closed_ns;
    assert_eq!(closed_ns(&attempt), Some(700));
    attempt.end_ns = 1_000;
    assert_eq!(closed_ns(&attempt), None);
    (attempt.last.state, attempt.end_ns) = (1, 700);
    assert_eq!(closed_ns(&attempt), None);
}

#[test]
fn a_port_that_a_client_uses_again_leads_to_the_connection_of_that_time() {
    let open = |id, local, remote, role, (from, to)| FlowRecord { end_ns: to, ..flow(id, local, remote, role, from) };
    let (client, server) = (Role::Client, Role::Server);
    let (early, late) = ((10, 300), (700, 1_000));
    let ends = [
        open(7, 80, 4000, server, early),
        open(8, 4000, 80, client, early),
        open(9, 80, 4000, server, late),
        open(10, 4000, 80, client, late),
    ];
    let timeline = finish(Events::default(), &ends, &[]);
    assert_eq!([7, 8, 9, 10].map(|id| timeline.sockets[&id].other_end), [Some(8), Some(7), Some(10), Some(9)]);
    // Of the second one the client was not seen, and of the first one the end.
    let mut events = Events::default();
    events.closed.insert(8, End { begin: BEGIN + 10, closed: Some(BEGIN + 300), ..end_of_flow(&ends[1]) });
    let timeline = finish(events, &ends[2..3], &[]);
    assert_eq!((timeline.sockets[&8].other_end, timeline.sockets[&9].other_end), (None, None));
}

#[test]
fn both_ends_of_a_connection_find_each_other() {
    let ends =
        [flow(7, 80, 4000, Role::Server, 0), flow(8, 4000, 80, Role::Client, 0), flow(9, 81, 4000, Role::Server, 0)];
    let timeline = finish(Events::default(), &ends, &[]);
    let other = |id: u64| timeline.sockets[&id].other_end;
    assert_eq!((other(7), other(8), other(9)), (Some(8), Some(7), None));
    // The same addresses in two other network namespaces: which of them is meant is not known.
    let mut ends = ends.to_vec();
    ends[1].netns = 2;
    ends.push(FlowRecord { id: 10, netns: 3, ..ends[1].clone() });
    assert_eq!(finish(Events::default(), &ends, &[]).sockets[&7].other_end, None);
}

#[test]
fn a_udp_server_is_bound_and_its_clients_are_connected() {
    for server_ip in [0, 127] {
        let mut events = Events::default();
        events.take_datagram(&datagram(7, OP_RECEIVE, (53, 0), server_ip, 1));
        events.take_datagram(&datagram(8, OP_SEND, (4000, 53), 127, 0));
        events.take_datagram(&datagram(9, OP_SEND, (5000, 0), 0, 0));
        let timeline = finish(events, &[], &[]);
        let socket = |id: u64| timeline.sockets[&id];
        assert_eq!(
            [7, 8, 9].map(|id| (socket(id).serves, socket(id).udp)),
            [(true, true), (false, true), (false, true)]
        );
        assert_eq!([7, 8, 9].map(|id| socket(id).other_end), [None, Some(7), None]);
        assert_eq!(timeline.calls[&7][0].peer, 0, "the peer of an unconnected socket is not seen");
        assert_ne!(timeline.calls[&8][0].peer, 0);
    }
}

#[test]
fn who_sends_questions_of_dns_asks_name_servers() {
    let socket = |calls: [(u8, u8); 3]| {
        let mut events = Events::default();
        for (op, kind) in calls {
            let mut wire = datagram(7, op, (5000, 0), 0, 0);
            (wire.call.protocol, wire.call.kind) =
                (Protocol::ALL.iter().position(|p| *p == Protocol::Dns).unwrap() as u8 + 1, kind);
            events.take_datagram(&wire);
        }
        finish(events, &[], &[]).sockets[&7]
    };
    // The answer to a question of before the window comes first.
    let asks = socket([(OP_RECEIVE, 1), (OP_SEND, 0), (OP_RECEIVE, 1)]);
    assert_eq!((asks.serves, asks.remote.port()), (false, 53));
    let serves = socket([(OP_RECEIVE, 0), (OP_SEND, 1), (OP_RECEIVE, 0)]);
    assert_eq!((serves.serves, serves.remote.port()), (true, 0));
    // A forwarder that does both on one socket.
    assert!(socket([(OP_RECEIVE, 0), (OP_SEND, 0), (OP_RECEIVE, 1)]).serves);
}

#[test]
fn a_udp_server_on_a_port_that_the_kernel_chose_may_reply_first() {
    let mut events = Events::default();
    events.take_datagram(&datagram(7, OP_SEND, (80, 0), 127, 0));
    events.take_datagram(&datagram(8, OP_SEND, (5000, 0), 127, 0));
    let timeline = finish(events, &[], &[]);
    assert!(timeline.sockets[&7].serves, "its port was asked for");
    assert!(!timeline.sockets[&8].serves);
}

#[test]
fn a_full_timeline_ends_and_says_so() {
    let mut events = Events { limit: 3, ..Events::default() };
    for n in 0..10 {
        events.take_call(&call(7, OP_SEND, n * 100, n * 100 + 10));
    }
    // They began before the end, after it, and the first one lasted over it.
    events.take_off_cpu(&off(51, 150, 180, 500));
    events.take_off_cpu(&off(51, 500, 580, 600));
    assert_eq!(events.arrived, 12);
    let slices = [(BEGIN, BEGIN + 400_000_000)];
    let blind = events.blind(&slices).expect("it is not whole");
    assert!(blind.contains("in the first 0 of 400 ms only"), "{blind}");
    let timeline = finish(events, &[flow(7, 80, 4000, Role::Server, 0)], &[]);
    assert_eq!(timeline.slices, [(0, 210)]);
    assert_eq!(timeline.calls[&7].len(), 3);
    let offs: Vec<_> = timeline.off_cpu[&51].iter().map(|off| (off.begin_ns, off.wake_ns, off.end_ns)).collect();
    assert_eq!(offs, [(150, 180, 210)]);
}

#[test]
fn a_saved_case_keeps_the_form_of_messages() {
    let mut events = Events::default();
    let kafka = |op, flags| CallWire {
        protocol: 7,
        kind: 3,
        flags,
        length: 64,
        stream: 196_619,
        second: 300,
        ..call(7, op, 60, 100)
    };
    events.take_call(&CallWire { since: 0, ..call(7, OP_ACCEPT, 0, 50) });
    events.take_call(&kafka(OP_RECEIVE, 1));
    events.take_call(&call(7, OP_RECEIVE, 60, 110));
    events.take_call(&kafka(OP_SEND, 0));
    let timeline = finish(events, &[flow(7, 80, 4000, Role::Server, 30)], &[]);
    let frames = |timeline: &Timeline| -> Vec<_> {
        timeline.calls[&7].iter().map(|call| (call.at_ns, call.frame.map(|f| (f.protocol, f.kind, f.stream)))).collect()
    };
    let protocol = parshall_evidence::timeline::Protocol::Kafka;
    let expected = [(50, None), (100, Some((protocol, 3, 300))), (100, Some((protocol, 0, 196_619))), (110, None)];
    assert_eq!(frames(&timeline), expected, "of a request the number is behind its function");
    let mut saved = serde_json::to_value(&timeline).unwrap();
    assert_eq!(serde_json::from_value::<Timeline>(saved.clone()).unwrap(), timeline);
    let columns = saved["calls"].as_object_mut().unwrap();
    assert_eq!(columns["protocols"], "-kk-");
    // A case from before has no such columns, and one of a later version may know more protocols.
    columns["protocols"] = "-?k-".into();
    let later: Timeline = serde_json::from_value(saved.clone()).unwrap();
    assert_eq!(frames(&later).iter().filter(|(_, frame)| frame.is_some()).count(), 1);
    saved["calls"]["protocols"] = "-kk".into();
    assert!(serde_json::from_value::<Timeline>(saved.clone()).is_err(), "one letter is missing");
    let columns = saved["calls"].as_object_mut().unwrap();
    assert!(columns.remove("protocols").is_some() && columns.remove("frames").is_some());
    let earlier: Timeline = serde_json::from_value(saved).unwrap();
    assert!(frames(&earlier).iter().all(|(_, frame)| frame.is_none()));
}

//! Messages that are owed no answer, and that their server passes on: a broker has served one when it begins to send it to a subscriber, so
//! its time goes from its arrival to that. Messages that nobody has subscribed to are left out.
use std::collections::{BTreeMap, HashMap};

use parshall_evidence::FlowId;
use parshall_evidence::timeline::{Op, Protocol, SocketCall, Timeline};

use super::connection::{Request, begun, replied};
use super::messages;
use crate::sorting::StableSort as _;

/// MQTT: a message, and what its flags have if it is answered.
const PUBLISH: u8 = 3;
const QUALITY: u8 = 6;

/// Adds the messages that arrived at served sockets to their requests. `by_thread` are the calls of each thread, in order.
pub fn add(found: &mut BTreeMap<FlowId, Vec<Request>>, by_thread: &HashMap<u32, Vec<SocketCall>>, timeline: &Timeline) {
    for (id, requests) in found {
        let Some(calls) = timeline.calls.get(id).filter(|calls| is_mqtt(calls)) else { continue };
        let before = requests.len();
        let messages = (0..calls.len()).filter(|n| is_message(&calls[*n]));
        requests.extend(messages.filter_map(|n| passed_on(*id, calls, n, by_thread, timeline)));
        if requests.len() > before {
            requests.stable_sort_by_key(|request| request.arrived_ns);
        }
    }
}

fn is_mqtt(calls: &[SocketCall]) -> bool {
    let mut frames = calls.iter().filter_map(|call| call.frame).peekable();
    frames.peek().is_some() && frames.all(|frame| frame.protocol == Protocol::Mqtt)
}

fn is_message(call: &SocketCall) -> bool {
    call.op == Op::Receive && call.frame.is_some_and(|frame| frame.kind == PUBLISH && frame.flags & QUALITY == 0)
}

/// The message with the `n`-th call, if what its reader does next is to send to somebody else.
fn passed_on(
    id: FlowId,
    calls: &[SocketCall],
    n: usize,
    by_thread: &HashMap<u32, Vec<SocketCall>>,
    timeline: &Timeline,
) -> Option<Request> {
    let last = &calls[n];
    let own = by_thread.get(&last.tid)?;
    let next = own.get(own.partition_point(|call| call.at_ns <= last.at_ns))?;
    let slice = timeline.slices.iter().find(|slice| slice.0 <= last.at_ns && next.at_ns <= slice.1)?;
    let first = &calls[messages::begin_of(calls, n)];
    let request = Request { cut: first.since_ns < slice.0, ..begun(id, first, slice.0) };
    (next.op == Op::Send && next.socket != id).then(|| replied(request, next))
}

#[cfg(test)]
mod tests {
    use parshall_evidence::timeline::{Frame, Waker};
    use parshall_evidence::{HopKind, Service};

    use super::*;
    use crate::critical_path::services;
    use crate::testkit::timeline::{Script, served_socket};

    const MS: u64 = 1_000_000;
    const FSYNC: i32 = 74;

    /// 101 is a broker. A message of socket 1 comes at 10 ms, is read at `read_ms` and passed on to socket 2, whose device answers it with
    /// a message of its own 40 ms later.
    fn broker(read_ms: u64, flags: u8) -> Script {
        let at = read_ms * MS;
        let mut script = Script::new()
            .socket(1, served_socket(1883), 101)
            .socket(2, served_socket(1883), 101)
            .receives(101, 1, 10 * MS, at)
            .receives(101, 1, 10 * MS, at + 1_000)
            .receives(101, 1, 10 * MS, at + 2_000)
            .sends(101, 2, at + 500_000)
            .receives(101, 2, at + 40 * MS, at + 40 * MS + 1_000)
            .sends(101, 1, at + 40 * MS + 400_000);
        script.timeline.slices = vec![(0, 400 * MS)];
        let frame = |length, flags| Some(Frame { protocol: Protocol::Mqtt, kind: PUBLISH, flags, length, stream: 0 });
        for (socket, n, bytes, length, flags) in [
            (1, 0, 1, 0, 0),
            (1, 1, 1, 0, 0),
            (1, 2, 21, 23, flags),
            (1, 3, 35, 35, 0),
            (2, 0, 23, 23, 0),
            (2, 1, 35, 35, 0),
        ] {
            let call = &mut script.timeline.calls.get_mut(&socket).unwrap()[n];
            (call.bytes, call.frame) = (bytes, if length > 0 { frame(length, flags) } else { None });
        }
        script
    }

    fn service(script: &Script) -> Service {
        services(&script.timeline).into_iter().next().expect("a service")
    }

    #[test]
    fn a_message_takes_until_it_is_passed_on() {
        let service = service(&broker(11, 0));
        // That of the controller, and that of the device, which nobody asked the broker for.
        assert_eq!((service.requests, service.connections), (2, 2));
        assert!(service.p99_ns.is_none_or(|ns| ns < 5 * MS), "{service:?}");
        assert!(service.path.iter().all(|part| part.hops.last().unwrap().kind != HopKind::OtherRequest));
    }

    #[test]
    fn a_broker_that_syncs_a_file_lets_messages_wait() {
        let script = broker(100, 0).sleeps(101, 5 * MS, 99 * MS, FSYNC, Waker::HardIrq);
        let service = service(&script);
        let parts = service.path.iter().filter(|part| part.hops.last().unwrap().kind == HopKind::Disk);
        assert!(parts.map(|part| part.ns).sum::<u64>() >= 88 * MS, "{service:?}");
    }

    #[test]
    fn a_message_that_is_answered_is_a_request_of_its_own() {
        // Of quality 1, without its acknowledgement yet: only the device's message was passed on.
        let service = service(&broker(11, 2));
        assert_eq!(service.requests, 1, "{service:?}");
    }
}

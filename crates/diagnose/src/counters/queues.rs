//! Queueing disciplines of a namespace's devices, from rtnetlink (RTM_GETQDISC, linux/gen_stats.h).
use std::collections::HashMap;

use parshall_core::sock_diag::bytes::Bytes;
use parshall_evidence::DeviceQueue;
use parshall_sys::link;
use parshall_sys::netlink::Route;

// linux/rtnetlink.h and linux/gen_stats.h.
const TCA_KIND: u16 = 1;
const TCA_STATS2: u16 = 7;
const TCA_STATS_BASIC: u16 = 1;
const TCA_STATS_QUEUE: u16 = 3;
/// `struct tcmsg`.
const TCMSG_BYTES: usize = 20;

/// A queueing discipline at one moment; its counters are those since it was made.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Queue {
    /// Its device.
    pub device: String,
    index: u32,
    handle: u32,
    parent: u32,
    /// `tbf`, `fq_codel`, ...
    pub kind: String,
    bytes: u64,
    backlog: u32,
    drops: u32,
    overlimits: u32,
}

/// All of the calling thread's namespace.
pub fn read() -> Vec<Queue> {
    let answers = Route::open().and_then(|mut route| route.dump(libc::RTM_GETQDISC, &[0; TCMSG_BYTES]));
    let mut queues: Vec<Queue> = answers.unwrap_or_default().iter().filter_map(|answer| parse(answer)).collect();
    let mut names: HashMap<u32, String> = HashMap::new();
    for queue in &mut queues {
        let name = names.entry(queue.index).or_insert_with(|| link::name(queue.index).unwrap_or_default());
        queue.device.clone_from(name);
    }
    queues
}

/// One answer without its netlink header.
fn parse(answer: &[u8]) -> Option<Queue> {
    let attributes = answer.get(TCMSG_BYTES..)?;
    let head = Bytes(answer);
    let mut queue = Queue { index: head.u32(4), handle: head.u32(8), parent: head.u32(12), ..Queue::default() };
    for (kind, value) in Bytes(attributes).attributes() {
        match kind {
            TCA_KIND => queue.kind = String::from_utf8_lossy(value.0).trim_end_matches('\0').to_owned(),
            TCA_STATS2 => value.attributes().for_each(|(kind, value)| queue.count(kind, value)),
            _ => {}
        }
    }
    Some(queue)
}

impl Queue {
    fn count(&mut self, kind: u16, value: Bytes<'_>) {
        match kind {
            TCA_STATS_BASIC => self.bytes = value.u64(0),
            // qlen, backlog, drops, requeues, overlimits.
            TCA_STATS_QUEUE => {
                (self.backlog, self.drops, self.overlimits) = (value.u32(4), value.u32(8), value.u32(16))
            }
            _ => {}
        }
    }
}

/// The differences between two readings; queues without traffic are left out.
pub fn difference(first: &[Queue], last: &[Queue]) -> Vec<DeviceQueue> {
    let then = |now: &Queue| {
        let same =
            |q: &&Queue| (q.index, q.handle, q.parent, &q.kind) == (now.index, now.handle, now.parent, &now.kind);
        first.iter().find(same).cloned().unwrap_or_default()
    };
    let moved = |now: &Queue| {
        let then = then(now);
        DeviceQueue {
            device: now.device.clone(),
            kind: now.kind.clone(),
            sent_bytes: now.bytes.saturating_sub(then.bytes),
            drops: now.drops.wrapping_sub(then.drops).into(),
            overlimits: now.overlimits.wrapping_sub(then.overlimits).into(),
            backlog_bytes: now.backlog.into(),
        }
    };
    last.iter().map(moved).filter(|q| q.sent_bytes > 0 || q.drops > 0 || q.backlog_bytes > 0).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
        let mut bytes = ((4 + value.len()) as u16).to_ne_bytes().to_vec();
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(value);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    fn answer(bytes: u64, drops: u32, overlimits: u32) -> Vec<u8> {
        let mut answer = vec![0; TCMSG_BYTES];
        answer[4] = 3;
        answer.extend(attribute(TCA_KIND, b"tbf\0"));
        let queue: Vec<u8> = [2, 3000, drops, 0, overlimits].iter().flat_map(|n: &u32| n.to_ne_bytes()).collect();
        let basic = attribute(TCA_STATS_BASIC, &[&bytes.to_ne_bytes()[..], &[0; 8]].concat());
        answer.extend(attribute(TCA_STATS2 | 0x8000, &[basic, attribute(TCA_STATS_QUEUE, &queue)].concat()));
        answer
    }

    #[test]
    fn reads_the_statistics_of_a_queue() {
        let first = parse(&answer(1000, 1, 5)).expect("whole");
        let last = parse(&answer(9000, 4, 50)).expect("whole");
        let wanted = DeviceQueue {
            device: String::new(),
            kind: "tbf".to_owned(),
            sent_bytes: 8000,
            drops: 3,
            overlimits: 45,
            backlog_bytes: 3000,
        };
        assert_eq!(difference(&[first], std::slice::from_ref(&last)), [wanted]);
        let idle = Queue { backlog: 0, ..last };
        assert!(difference(std::slice::from_ref(&idle), std::slice::from_ref(&idle)).is_empty());
    }

    #[test]
    fn truncated_attributes_are_read_as_far_as_possible() {
        let whole = answer(1000, 1, 5);
        for end in 0..whole.len() {
            let queue = parse(&whole[..end]);
            assert_eq!(queue.is_some(), end >= TCMSG_BYTES, "{end}");
        }
        assert_eq!(Bytes(&[3, 0, 1, 0, 9]).attributes().count(), 0, "a length shorter than its own header");
    }
}

//! Signs of life: a byte or two that each end of a connection sends at intervals of its own, such as the heart-beats of STOMP.
//!
//! They look like a request that a timer answers. A thread that reads a request and answers it is one and the same, or hands over
//! more than two bytes; a sign of life is read by one thread, and the next one is written by another one, which a timer wakes.
use parshall_evidence::timeline::{Op, SocketCall};

use super::messages::{Messages, Part};

/// A sign of life has room for no number and no content.
const BYTES_MAX: u32 = 2;
/// They are sent less often than requests of a byte by a loop.
const APART_NS: u64 = 100_000_000;

/// Marks the signs of life among the calls of a connection as no part of requests, where nothing else tells its messages. `asks` moves
/// requests.
pub fn mark(calls: &[SocketCall], asks: Op, messages: &mut Messages) {
    if messages.protocol.is_some() {
        return;
    }
    let mut found = false;
    let (mut open, mut last_at): (Option<&SocketCall>, Option<u64>) = (None, None);
    for call in calls.iter().filter(|call| call.op != Op::Accept) {
        if call.op == asks {
            // More than one message, or one that is longer, is something else.
            let is_one = open.is_none() && call.bytes <= BYTES_MAX;
            if is_one && last_at.is_some_and(|at| call.at_ns.saturating_sub(at) < APART_NS) {
                return;
            }
            open = is_one.then_some(call);
            last_at = if is_one { Some(call.at_ns) } else { last_at };
        } else if let Some(asked) = open.take() {
            found |= call.tid != asked.tid && call.bytes <= BYTES_MAX;
        }
    }
    // Not each of them is followed by one of the other end, nor seen where nothing is looked at.
    for (part, call) in messages.parts.iter_mut().zip(calls).filter(|(_, call)| found && call.op != Op::Accept) {
        if call.bytes <= BYTES_MAX {
            *part = Part::Control;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn call(op: Op, tid: u32, at_ms: u64, bytes: u32) -> SocketCall {
        SocketCall { socket: 1, tid, op, since_ns: at_ms * MS, at_ns: at_ms * MS, bytes, peer: 0, frame: None }
    }

    fn marked(calls: &[SocketCall]) -> Vec<usize> {
        let mut messages = Messages::of_data(calls.len());
        mark(calls, Op::Receive, &mut messages);
        messages.parts.iter().enumerate().filter(|(_, part)| **part == Part::Control).map(|(n, _)| n).collect()
    }

    #[test]
    fn bytes_of_two_timers_are_no_requests() {
        let beats = |reads: u32, writes: u32, bytes: u32, every_ms: u64| {
            let beat = move |n: u64| {
                let at = n * every_ms;
                [call(Op::Receive, reads, at, bytes), call(Op::Send, writes, at + every_ms / 3, bytes)]
            };
            (0..3).flat_map(beat).collect::<Vec<_>>()
        };
        assert_eq!(marked(&beats(7, 8, 1, 1000)), [0, 1, 2, 3, 4, 5]);
        // A request of one byte that its reader answers, however late.
        assert!(marked(&beats(7, 7, 1, 1000)).is_empty());
        // One that is handed to another thread and has content.
        assert!(marked(&beats(7, 8, 3, 1000)).is_empty());
        // A loop that asks again and again.
        assert!(marked(&beats(7, 8, 1, 20)).is_empty());
    }

    #[test]
    fn messages_between_them_stay() {
        let calls = [
            call(Op::Receive, 7, 0, 1),
            call(Op::Send, 8, 300, 1),
            call(Op::Receive, 7, 400, 80),
            call(Op::Send, 8, 500, 40),
            call(Op::Receive, 7, 1000, 1),
            call(Op::Receive, 7, 1400, 80),
            call(Op::Receive, 7, 2000, 1),
        ];
        assert_eq!(marked(&calls), [0, 1, 4, 6]);
    }
}

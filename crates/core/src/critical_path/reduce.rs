//! The part of a timeline that is enough to find the same services in: what a saved case keeps of a large one.
use std::collections::HashSet;

use parshall_evidence::timeline::{OffCpu, Waker, Why};
use parshall_evidence::{FlowId, Timeline};

use super::index::Index;
use super::{attempts, clients, service};

/// The timeline without the times off the CPU that no conclusion about a request rests on. [`super::services`] are the same.
pub fn reduced(mut timeline: Timeline) -> Timeline {
    let index = Index::noting(&timeline);
    service::found(&index);
    clients::found(&index);
    let (used, usual_wakers) = index.into_noted();
    timeline.usual_wakers = usual_wakers;
    let mut left_out = 0;
    timeline.off_cpu.retain(|_, offs| {
        let had = offs.len();
        // Whether a process was out of quota says something of all of its threads.
        offs.retain(|off| off.why == Why::Throttled || used.contains(&(off.tid, off.begin_ns)));
        left_out += (had - offs.len()) as u64;
        !offs.is_empty()
    });
    timeline.has_tails |= timeline.left_out == 0;
    timeline.has_pieces |= timeline.left_out == 0;
    timeline.left_out = timeline.left_out.saturating_add(left_out);
    drop_unused(&mut timeline);
    timeline
}

/// Drops sockets and names that no event refers to.
fn drop_unused(timeline: &mut Timeline) {
    let sockets = &timeline.sockets;
    let offs = || timeline.off_cpu.values().flatten();
    let with_calls: Vec<FlowId> = timeline.calls.keys().copied().collect();
    let other_ends = with_calls.iter().filter_map(|id| sockets.get(id)?.other_end);
    let attempts = attempts::attempts(timeline).into_values().flatten().map(|attempt| attempt.socket);
    let used: HashSet<FlowId> =
        with_calls.iter().copied().chain(other_ends).chain(offs().map(|off| off.target)).chain(attempts).collect();
    let named = |off: &OffCpu| match off.waker {
        Waker::Thread(tid) | Waker::KernelThread(tid) => [off.tid, off.ran_instead_tid, tid],
        _ => [off.tid, off.ran_instead_tid, off.tid],
    };
    let holders = sockets.iter().filter(|(id, _)| used.contains(id)).map(|(_, socket)| socket.pid);
    let mut tids: HashSet<u32> = offs().flat_map(named).chain(holders).collect();
    tids.extend(timeline.calls.values().flatten().map(|call| call.tid));
    for owners in [&timeline.mutex_owners, &timeline.lock_holders, &timeline.usual_wakers] {
        tids.extend(owners.iter().flat_map(|(tid, owner)| [*tid, *owner]));
    }
    // Of a process all threads stay named: how many it has tells something, too.
    let of_tid = |tid: &u32| timeline.names.get(tid).map(|names| names.pid);
    let pids: HashSet<u32> = tids.iter().filter_map(of_tid).collect();
    timeline.names.retain(|tid, names| tids.contains(tid) || pids.contains(&names.pid));
    timeline.sockets.retain(|id, _| used.contains(id));
    timeline.unobserved_ends.retain(|id, _| used.contains(id));
}

/// The timeline up to a time, as if it had reached its limit then: a slice that goes on is cut, and so is what was under way.
pub fn clipped(mut timeline: Timeline, until_ns: u64) -> Timeline {
    timeline.slices.retain(|slice| slice.0 < until_ns);
    timeline.slices.iter_mut().for_each(|slice| slice.1 = slice.1.min(until_ns));
    timeline.off_cpu.retain(|_, offs| {
        offs.retain(|off| off.begin_ns < until_ns);
        for off in offs.iter_mut().filter(|off| off.end_ns > until_ns) {
            (off.wake_ns, off.end_ns) = (off.wake_ns.min(until_ns), until_ns);
        }
        !offs.is_empty()
    });
    timeline.calls.retain(|_, calls| {
        calls.retain(|call| call.at_ns <= until_ns);
        !calls.is_empty()
    });
    timeline
}

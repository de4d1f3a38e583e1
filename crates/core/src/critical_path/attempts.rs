//! Connections that were given up before anything was sent on them.
use std::collections::HashMap;

use parshall_evidence::FlowId;
use parshall_evidence::timeline::Timeline;

/// A connection that its client tried to open, and closed before anything was sent or received on it.
#[derive(Debug, Clone, Copy)]
pub struct Attempt {
    /// Its socket.
    pub socket: FlowId,
    /// When its client began to connect.
    pub opened_ns: u64,
    /// When it gave up.
    pub closed_ns: u64,
}

/// Such connections by process, in the order of their begin.
pub fn attempts(timeline: &Timeline) -> HashMap<u32, Vec<Attempt>> {
    let mut found: HashMap<u32, Vec<Attempt>> = HashMap::new();
    for (id, socket) in
        timeline.sockets.iter().filter(|(id, socket)| !socket.serves && !timeline.calls.contains_key(id))
    {
        if let (Some(opened_ns), Some(closed_ns)) = (socket.opened_ns, socket.closed_ns) {
            found.entry(socket.pid).or_default().push(Attempt { socket: *id, opened_ns, closed_ns });
        }
    }
    found
        .values_mut()
        .for_each(|attempts| attempts.sort_unstable_by_key(|attempt| (attempt.opened_ns, attempt.socket)));
    found
}

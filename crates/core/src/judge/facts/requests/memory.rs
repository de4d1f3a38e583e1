//! Control groups whose files have no room in memory.
use parshall_evidence::{Capture, MemoryGroup};

/// The group of a process whose files have no room in memory: most of what its processes read from a disk had been there before.
pub fn thrashing(capture: &Capture, pid: u32) -> Option<&MemoryGroup> {
    let mut groups = capture.counters.iter().flat_map(|c| &c.memory);
    groups.find(|group| is_thrashing(group) && group.pids.contains(&pid))
}

/// Whether most of what a group reads from a disk had been in memory before.
pub fn is_thrashing(group: &MemoryGroup) -> bool {
    group.read_bytes > 0 && group.refaulted_bytes.saturating_mul(2) >= group.read_bytes
}

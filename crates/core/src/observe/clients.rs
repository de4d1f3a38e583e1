//! Threads that have to do with a port that the user asked for, among those of its clients. A client may be a large program that asks many
//! services, and what its other threads wait for is none of this one's.
use std::collections::{HashMap, HashSet};

use parshall_evidence::FlowRecord;

/// Threads (process, thread) of processes that are only clients of the port, without those that used its connections in the window.
/// Where it is not known who used one that moved data, any thread of its process may have.
pub fn uninvolved(threads: impl IntoIterator<Item = (u32, u32)>, flows: &[FlowRecord]) -> HashSet<u32> {
    let mut users: HashMap<u32, HashSet<u32>> = HashMap::new();
    let mut unknown: HashSet<u32> = HashSet::new();
    for flow in flows {
        if flow.last_tid != 0 {
            users.entry(flow.pid).or_default().insert(flow.last_tid);
        } else if flow.acked_bytes() + flow.received_bytes() > 0 {
            unknown.insert(flow.pid);
        }
    }
    let used = |pid: u32, tid: u32| unknown.contains(&pid) || users.get(&pid).is_some_and(|tids| tids.contains(&tid));
    threads.into_iter().filter(|&(pid, tid)| !used(pid, tid)).map(|(_, tid)| tid).collect()
}

#[cfg(test)]
mod tests {
    use parshall_evidence::Role;

    use super::*;
    use crate::testkit::FlowBuilder;

    #[test]
    fn only_threads_that_use_the_port_belong_to_it() {
        let used = FlowBuilder::new(1, Role::Client).owner(300, 301).talks(10, 100).fill().record;
        let idle = FlowBuilder::new(2, Role::Client).owner(400, 0).fill().record;
        let unknown = FlowBuilder::new(3, Role::Client).owner(500, 0).talks(10, 100).fill().record;
        let threads = [(300, 300), (300, 301), (400, 400), (500, 500), (500, 501), (600, 600)];
        assert_eq!(uninvolved(threads, &[used, idle, unknown]), HashSet::from([300, 400, 600]));
    }
}

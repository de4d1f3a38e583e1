//! Names of network namespaces, by their inode, and of control groups, by their id.
//!
//! A dump [`begins`](Names::begin); the namespaces and control groups of each batch are [`looked up`](Names::learn); then rows
//! borrow the names. Unknown ones cost at most one scan of the host per dump.
pub mod cgroup;
mod mix;
pub mod netns;

pub(crate) use mix::Mixed;
use parshall_evidence::socket::SocketRecord;

#[derive(Debug, Default)]
pub struct Names {
    pub netns: netns::NetnsNames,
    pub cgroups: cgroup::CgroupNames,
}

impl Names {
    /// Begins a dump.
    pub fn begin(&mut self) {
        self.netns.begin();
        self.cgroups.begin();
    }

    /// Looks up the names for these records.
    pub fn learn(&mut self, records: &[SocketRecord]) {
        let (mut netns, mut cgroup) = (0, 0);
        for record in records {
            // Consecutive records mostly have the same.
            if record.netns != netns {
                netns = record.netns;
                self.netns.learn(netns);
            }
            if record.cgroup_id != cgroup {
                cgroup = record.cgroup_id;
                self.cgroups.learn(cgroup);
            }
        }
    }
}

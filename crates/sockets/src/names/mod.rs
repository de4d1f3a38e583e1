//! Names of network namespaces, by their inode, and of control groups, by their id.
//!
//! A dump [`begins`](Names::begin); the namespaces and control groups of each batch are [`looked up`](Names::learn); then rows
//! borrow the names. Unknown ones cost at most one scan of the host per dump.
pub mod cgroup;
pub mod netns;

use std::hash::{BuildHasherDefault, Hasher};

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

/// Hashes a number of the kernel. Not resistant to chosen inputs.
#[derive(Debug, Default)]
pub(crate) struct Mix(u64);

impl Hasher for Mix {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(u64::from(*byte)));
    }

    fn write_u32(&mut self, value: u32) {
        self.write_u64(value.into());
    }

    fn write_u64(&mut self, value: u64) {
        self.0 = (self.0.rotate_left(5) ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}

pub(crate) type Mixed = BuildHasherDefault<Mix>;

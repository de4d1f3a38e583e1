//! Names for the numbers in a record: network namespaces by their inode, control groups by their id.
//!
//! Both work in the same steps: a dump [`begins`](Names::begin), what a batch mentions is learnt, and then the names are
//! there to be borrowed by as many rows as need be. What is not known costs at most one search per dump.
pub mod cgroup;
pub mod netns;

use std::hash::{BuildHasherDefault, Hasher};

use parshall_evidence::socket::SocketRecord;

/// Names of both kinds.
#[derive(Debug, Default)]
pub struct Names {
    /// Network namespaces.
    pub netns: netns::NetnsNames,
    /// Control groups.
    pub cgroups: cgroup::CgroupNames,
}

impl Names {
    /// A dump begins.
    pub fn begin(&mut self) {
        self.netns.begin();
        self.cgroups.begin();
    }

    /// Learns what these records mention.
    pub fn learn(&mut self, records: &[SocketRecord]) {
        let (mut netns, mut cgroup) = (0, 0);
        for record in records {
            // Neighbours have mostly the same.
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

/// Hashes a number that the kernel gave: mixed, not defended.
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

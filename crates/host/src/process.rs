//! CPU time, memory and descriptors of this process, read from /proc.
use parshall_sys::clock::{page_bytes, process_cpu_ns};
use serde::{Deserialize, Serialize};

/// Resources of the process. A figure that cannot be read is 0.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Process {
    #[allow(missing_docs)]
    pub pid: u32,
    /// CPU time of all threads, in the kernel and outside, in s.
    pub cpu_s: f64,
    /// Resident memory in bytes.
    pub rss_bytes: u64,
    /// Open descriptors.
    pub fds: u64,
    /// The limit of open descriptors (RLIMIT_NOFILE).
    pub fds_max: u64,
    #[allow(missing_docs)]
    pub threads: u64,
}

impl Process {
    /// Reads them now.
    pub fn now() -> Self {
        let read = |name: &str| crate::bounded_file::text(format!("/proc/self/{name}")).unwrap_or_default();
        let count = |name: &str| std::fs::read_dir(format!("/proc/self/{name}")).map_or(0, |d| d.count() as u64);
        let pages = read("statm").split(' ').nth(1).and_then(|n| n.parse::<u64>().ok()).unwrap_or(0);
        Self {
            pid: std::process::id(),
            cpu_s: process_cpu_ns() as f64 / 1e9,
            rss_bytes: pages * page_bytes(),
            // Listing the directory opens a descriptor itself.
            fds: count("fd").saturating_sub(1),
            fds_max: parshall_sys::limits::descriptors(),
            threads: count("task"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_can_be_read_here() {
        let now = Process::now();
        assert!(now.rss_bytes > 0 && now.threads > 0 && now.fds >= 3 && now.fds_max >= now.fds && now.cpu_s > 0.0);
    }
}

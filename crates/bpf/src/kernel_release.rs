//! The version of the running kernel, for what cannot be asked in another way.
use std::fs;

/// Kernels from this version on charge the memory of BPF to the control group, older ones count it against RLIMIT_MEMLOCK, which is
/// 64 KiB by default.
const CHARGES_CGROUP: (u32, u32) = (5, 11);

/// Major and minor version of the running kernel.
pub fn running() -> Option<(u32, u32)> {
    version(&fs::read_to_string("/proc/sys/kernel/osrelease").ok()?)
}

/// Major and minor version of a kernel's release.
pub fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

/// Whether a kernel counts the memory of BPF maps against RLIMIT_MEMLOCK.
pub fn counts_locked_memory(version: Option<(u32, u32)>) -> bool {
    version.is_some_and(|version| version < CHARGES_CGROUP)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_kernels_count_locked_memory() {
        let counts = ["5.10.0-46-cloud-amd64", "4.19.0", "5.11", "6.1.0-56-amd64", "", "strange"]
            .map(|release| counts_locked_memory(version(release)));
        assert_eq!(counts, [true, true, false, false, false, false]);
    }

    #[test]
    fn the_running_kernel_has_a_version() {
        assert!(running().is_some());
    }
}

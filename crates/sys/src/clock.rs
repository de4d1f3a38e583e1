//! Clocks that the standard library does not offer: CPU time, CLOCK_MONOTONIC as a number that BPF shares, and CLOCK_BOOTTIME.
use rustix::time::ClockId;

fn read(clock: ClockId) -> u64 {
    let now = rustix::time::clock_gettime(clock);
    (now.tv_sec as u64).saturating_mul(1_000_000_000).saturating_add(now.tv_nsec as u64)
}

/// CLOCK_MONOTONIC in nanoseconds: the clock of `bpf_ktime_get_ns`.
pub fn monotonic_ns() -> u64 {
    read(ClockId::Monotonic)
}

/// CLOCK_BOOTTIME in nanoseconds: as CLOCK_MONOTONIC, but it goes on while the host sleeps.
pub fn boottime_ns() -> u64 {
    read(ClockId::Boottime)
}

/// CPU time of the calling thread in nanoseconds, time in the kernel included.
pub fn thread_cpu_ns() -> u64 {
    read(ClockId::ThreadCPUTime)
}

/// CPU time of this process in nanoseconds.
pub fn process_cpu_ns() -> u64 {
    read(ClockId::ProcessCPUTime)
}

/// Ticks per second of the times in /proc/PID/stat and /proc/stat (USER_HZ; 100 on all common architectures).
pub fn ticks_per_second() -> u64 {
    rustix::param::clock_ticks_per_second()
}

/// Bytes per page.
pub fn page_bytes() -> u64 {
    rustix::param::page_size() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clocks_move_forward() {
        let (mono, cpu) = (monotonic_ns(), thread_cpu_ns());
        let mut sum = 0_u64;
        while thread_cpu_ns() < cpu + 1_000_000 {
            sum = sum.wrapping_add(1);
        }
        assert!(sum > 0);
        assert!(monotonic_ns() > mono);
        assert!(boottime_ns() >= mono, "it counts the time asleep too");
        assert!(process_cpu_ns() > 0);
    }
}

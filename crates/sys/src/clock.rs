//! Clocks that the standard library does not offer: CPU time, and CLOCK_MONOTONIC as a number that BPF shares.

fn read(clock: libc::clockid_t) -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `now` is a valid timespec for the kernel to fill.
    if unsafe { libc::clock_gettime(clock, &mut now) } != 0 {
        return 0;
    }
    (now.tv_sec as u64).saturating_mul(1_000_000_000).saturating_add(now.tv_nsec as u64)
}

/// CLOCK_MONOTONIC in nanoseconds: the clock of `bpf_ktime_get_ns`.
pub fn monotonic_ns() -> u64 {
    read(libc::CLOCK_MONOTONIC)
}

/// CPU time of the calling thread in nanoseconds, time in the kernel included.
pub fn thread_cpu_ns() -> u64 {
    read(libc::CLOCK_THREAD_CPUTIME_ID)
}

/// CPU time of this process in nanoseconds.
pub fn process_cpu_ns() -> u64 {
    read(libc::CLOCK_PROCESS_CPUTIME_ID)
}

/// Ticks per second of the times in /proc/PID/stat and /proc/stat (USER_HZ; 100 on all common architectures).
pub fn ticks_per_second() -> u64 {
    // SAFETY: sysconf reads a constant and touches no memory of ours.
    let ticks = unsafe { libc::sysconf(libc::_SC_CLK_TCK) };
    u64::try_from(ticks).ok().filter(|&ticks| ticks > 0).unwrap_or(100)
}

/// Bytes per page.
pub fn page_bytes() -> u64 {
    // SAFETY: sysconf reads a constant and touches no memory of ours.
    let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    u64::try_from(bytes).ok().filter(|&bytes| bytes > 0).unwrap_or(4096)
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
        assert!(process_cpu_ns() > 0);
    }
}

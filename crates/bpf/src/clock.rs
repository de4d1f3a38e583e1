//! The clocks that BPF programs read.

/// CLOCK_MONOTONIC, the clock of bpf_ktime_get_ns.
pub fn monotonic_ns() -> u64 {
    clock_ns(libc::CLOCK_MONOTONIC, false)
}

/// The kernel's tick rate (CONFIG_HZ), from the resolution of the coarse clock.
pub fn tick_hz() -> u64 {
    match clock_ns(libc::CLOCK_MONOTONIC_COARSE, true) {
        0 => 250,
        ns => (1_000_000_000 + ns / 2) / ns,
    }
}

fn clock_ns(clock: libc::clockid_t, resolution: bool) -> u64 {
    let mut ts = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `ts` is valid for writes.
    let ret =
        unsafe { if resolution { libc::clock_getres(clock, &mut ts) } else { libc::clock_gettime(clock, &mut ts) } };
    if ret == 0 { ts.tv_sec as u64 * 1_000_000_000 + ts.tv_nsec as u64 } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tick_rate_is_one_that_kernels_are_built_with() {
        assert!((100..=1000).contains(&tick_hz()), "{}", tick_hz());
    }
}

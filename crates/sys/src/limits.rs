//! Limits of the process.

/// RLIMIT_NOFILE: how many descriptors may be open at once.
pub fn descriptors() -> u64 {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the kernel writes one rlimit.
    if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) } == 0 { limit.rlim_cur } else { 1024 }
}

#[cfg(test)]
mod tests {
    #[test]
    fn some_descriptors_may_be_open() {
        assert!(super::descriptors() >= 16);
    }
}

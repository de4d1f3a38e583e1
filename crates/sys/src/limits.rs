//! Limits of the process.
use std::io;

/// RLIMIT_NOFILE: how many descriptors may be open at once; the largest number where there is no limit.
pub fn descriptors() -> u64 {
    rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// Whether an error means that descriptors or memory for them have run out. A retry with another address would fail too.
pub fn exhausted(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM))
}

#[cfg(test)]
mod tests {
    #[test]
    fn exhaustion_is_distinguished_from_a_refusal() {
        let error = std::io::Error::from_raw_os_error;
        assert!(super::exhausted(&error(libc::EMFILE)) && !super::exhausted(&error(libc::ECONNREFUSED)));
    }

    #[test]
    fn some_descriptors_may_be_open() {
        assert!(super::descriptors() >= 16);
    }
}

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

/// Whether an error of connecting to an IP address has its cause on this host: no descriptors or memory, no free local port
/// (`EADDRINUSE` or `EAGAIN` for UDP, `EADDRNOTAVAIL` for TCP), or no local address. It says nothing about the destination.
///
/// A Unix socket is different: there `EAGAIN` means that the accept queue of the destination is full.
pub fn is_local(error: &io::Error) -> bool {
    exhausted(error) || matches!(error.raw_os_error(), Some(libc::EADDRINUSE | libc::EADDRNOTAVAIL | libc::EAGAIN))
}

#[cfg(test)]
mod tests {
    #[test]
    fn exhaustion_is_distinguished_from_a_refusal() {
        let error = std::io::Error::from_raw_os_error;
        assert!(super::exhausted(&error(libc::EMFILE)) && !super::exhausted(&error(libc::ECONNREFUSED)));
        let local = [libc::EADDRINUSE, libc::EADDRNOTAVAIL, libc::EAGAIN, libc::EMFILE, libc::ENFILE, libc::ENOMEM];
        assert!(local.into_iter().all(|code| super::is_local(&error(code))));
        let remote = [libc::ECONNREFUSED, libc::EHOSTUNREACH, libc::ENETUNREACH, libc::ETIMEDOUT];
        assert!(!remote.into_iter().any(|code| super::is_local(&error(code))));
    }

    #[test]
    fn some_descriptors_may_be_open() {
        assert!(super::descriptors() >= 16);
    }
}

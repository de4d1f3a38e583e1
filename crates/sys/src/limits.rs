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

/// Raises the soft limit on locked memory (RLIMIT_MEMLOCK) as far as this process may. Kernels before 5.11 count the memory of BPF
/// maps against it.
pub fn raise_locked_memory() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = Rlimit { current: None, maximum: None };
    if setrlimit(Resource::Memlock, limit).is_err() {
        // Without CAP_SYS_RESOURCE the hard limit is the most.
        let hard = getrlimit(Resource::Memlock).maximum;
        let _ = setrlimit(Resource::Memlock, Rlimit { current: hard, maximum: hard });
    }
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

//! Running code inside another network namespace.
//!
//! setns() changes the calling thread only, and a thread that changed cannot be trusted to come back (returning needs the
//! same privilege again). So the work runs on a thread of its own that ends afterwards. Descriptors opened there, such as
//! netlink sockets, stay bound to the namespace and may be carried out.
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::thread;

/// Runs `work` on a new thread inside the network namespace that `netns` refers to (an open /proc/PID/ns/net or a file of
/// /run/netns), and returns its result. Needs CAP_SYS_ADMIN: EPERM otherwise.
pub fn in_netns<T: Send>(netns: BorrowedFd<'_>, work: impl FnOnce() -> T + Send) -> io::Result<T> {
    thread::scope(|scope| {
        let handle = thread::Builder::new().name("netns".into()).spawn_scoped(scope, move || {
            // SAFETY: setns takes an open descriptor and changes only the calling thread, which ends with this closure.
            if unsafe { libc::setns(netns.as_raw_fd(), libc::CLONE_NEWNET) } != 0 {
                return Err(io::Error::last_os_error());
            }
            Ok(work())
        })?;
        handle.join().unwrap_or_else(|_| Err(io::Error::other("the thread inside the namespace panicked")))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::fd::AsFd;

    #[test]
    fn the_own_namespace_can_be_entered_or_is_refused_cleanly() {
        let netns = File::open("/proc/self/ns/net").expect("every process has a network namespace");
        match in_netns(netns.as_fd(), || 42) {
            Ok(answer) => assert_eq!(answer, 42),
            Err(error) => assert_eq!(error.raw_os_error(), Some(libc::EPERM)),
        }
    }

    #[test]
    fn a_file_that_is_no_namespace_is_an_error() {
        let file = File::open("/dev/null").expect("/dev/null opens");
        assert!(in_netns(file.as_fd(), || ()).is_err());
    }
}

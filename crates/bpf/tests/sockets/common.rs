//! Helpers for the suites of the socket programs: skipping where programs cannot be loaded, and a thread without privileges.

use std::net::TcpStream;
use std::os::fd::AsRawFd;

use parshall_testkit::root;
pub use parshall_testkit::skip;

/// Whether programs can be loaded here; if not, prints why.
pub fn ready(what: &str) -> bool {
    let btf = std::path::Path::new("/sys/kernel/btf/vmlinux").exists();
    if !btf {
        skip(what, "this kernel has no BTF");
    }
    btf && root(what)
}

/// Runs `work` without any capability.
pub fn unprivileged<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    // The raw system call changes this thread only, which ends with the closure.
    let thread = std::thread::spawn(|| {
        // SAFETY: three integers; the kernel drops the capabilities of the calling thread with its user id.
        let changed = unsafe { libc::syscall(libc::SYS_setresuid, 65_534, 65_534, 65_534) };
        assert_eq!(changed, 0);
        work()
    });
    thread.join().unwrap()
}

/// Makes close(2) reset the connection.
pub fn reset_on_close(stream: &TcpStream) {
    let linger = libc::linger { l_onoff: 1, l_linger: 0 };
    let size = size_of::<libc::linger>() as libc::socklen_t;
    // SAFETY: the kernel reads as many bytes of `linger` as the given size.
    let done = unsafe {
        libc::setsockopt(stream.as_raw_fd(), libc::SOL_SOCKET, libc::SO_LINGER, (&raw const linger).cast(), size)
    };
    assert_eq!(done, 0);
}

/// The network namespace of this thread.
pub fn own_namespace() -> u32 {
    std::os::unix::fs::MetadataExt::ino(&std::fs::metadata("/proc/thread-self/ns/net").unwrap()) as u32
}

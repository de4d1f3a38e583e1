//! Helpers for the suites of the socket programs: skipping where programs cannot be loaded, and a thread without privileges.
#![allow(dead_code, unused_imports, clippy::unwrap_used)] // Each suite uses its part; a panic in a test is its report.

use parshall_testkit::root;
pub use parshall_testkit::skip;

pub mod unused_port;

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

//! What the suites of the socket programs share: polite skips, and a thread without rights. No test belongs here.
#![allow(dead_code, clippy::unwrap_used)] // Each suite uses its part; a panic in a test is its report.

use std::io::Write;

pub mod apart;

/// Whether programs can be loaded here; if not, says so.
pub fn ready(what: &str) -> bool {
    let root = std::fs::read_to_string("/proc/self/status").is_ok_and(|status| status.contains("\nUid:\t0\t0\t"));
    let why = match (root, std::path::Path::new("/sys/kernel/btf/vmlinux").exists()) {
        (true, true) => return true,
        (false, _) => "needs root",
        (true, false) => "this kernel has no BTF",
    };
    skip(what, why);
    false
}

/// Says what was not tested and why, on stderr and in $PARSHALL_SKIPS.
pub fn skip(what: &str, why: &str) {
    eprintln!("skipped: {what}: {why}");
    if let Some(path) = std::env::var_os("PARSHALL_SKIPS") {
        let file = std::fs::OpenOptions::new().append(true).create(true).open(path);
        let _ = file.and_then(|mut file| writeln!(file, "{what}: {why}"));
    }
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

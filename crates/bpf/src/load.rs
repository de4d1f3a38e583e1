//! Loading programs: what libbpf does differently from what is wanted here.
use std::io;

/// Runs `load` with this thread's signals blocked: they reach another thread, or this one afterwards.
///
/// The verifier gives up with EAGAIN as soon as a signal is pending (kernel/bpf/verifier.c, `do_check`), and libbpf tries
/// five times only. A process that starts others, resizes a terminal or takes a CPU profile has more of them.
pub(crate) fn unsignalled<T>(load: impl FnOnce() -> T) -> T {
    let _blocked = Blocked::all();
    load()
}

/// All signals of this thread are blocked until it is dropped; what was blocked before stays so.
struct Blocked(libc::sigset_t);

impl Blocked {
    fn all() -> Self {
        // SAFETY: both sets are ours, and plain data for which zeroes are valid; the call only fails for a wrong `how`.
        unsafe {
            let mut all: libc::sigset_t = std::mem::zeroed();
            let mut before: libc::sigset_t = std::mem::zeroed();
            libc::sigfillset(&raw mut all);
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
            Self(before)
        }
    }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        // SAFETY: the set is the one that this thread had.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.0, std::ptr::null_mut()) };
    }
}

/// What loading or attaching failed with, so that a missing right can be told from a missing feature.
pub(crate) fn refused(error: libbpf_rs::Error) -> io::Error {
    match error.kind() {
        libbpf_rs::ErrorKind::PermissionDenied => io::ErrorKind::PermissionDenied.into(),
        _ => io::Error::other(error),
    }
}

/// Silences libbpf in this process: what a refused load means to a user, its callers say.
pub fn quiet_libbpf() {
    libbpf_rs::set_print(None::<(libbpf_rs::PrintLevel, libbpf_rs::PrintCallback)>);
}

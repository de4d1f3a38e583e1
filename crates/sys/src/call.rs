//! What most system calls answer: a negative number, and why in errno.
use std::io;

/// Whether a call has succeeded. Asked right behind it, before another sets errno. Allocates nothing.
pub fn check(result: impl Into<libc::c_long>) -> io::Result<()> {
    if result.into() < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

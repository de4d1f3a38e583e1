//! The convention of most system calls: a negative result, and the error in errno.
use std::io;

/// The error of a call that has failed. Must follow the call directly, before another sets errno. Allocates nothing.
pub fn check(result: impl Into<libc::c_long>) -> io::Result<()> {
    if result.into() < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

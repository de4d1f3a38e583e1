//! Errors of places. Those of the kind `NotFound` say that the place is gone.
use std::io;

/// A process, connection or thread that is gone.
pub fn gone(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, format!("{what} is gone"))
}

/// A value that a place of this kind cannot have.
pub fn malformed(value: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("`{value}` is not a value of this place"))
}

/// Turns errors that mean that a process, thread or device has gone, and that have no `ErrorKind`, into `NotFound`.
pub fn ended(error: io::Error, what: &str) -> io::Error {
    match error.raw_os_error() {
        Some(libc::ESRCH | libc::EBADF | libc::ENODEV) => gone(what),
        _ => error,
    }
}

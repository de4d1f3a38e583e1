//! Keys of a terminal as they are pressed.
use std::io;
use std::os::fd::RawFd;
use std::time::Duration;

/// A terminal that gives keys at once and does not show them, until this is dropped.
#[derive(Debug)]
pub struct Raw {
    fd: RawFd,
    before: libc::termios,
}

impl Raw {
    /// Switches a terminal over. Signals by keys (Ctrl-C) are keys as well.
    pub fn enter(fd: RawFd) -> io::Result<Self> {
        // SAFETY: all-zero bytes are a valid termios: integers.
        let mut before: libc::termios = unsafe { std::mem::zeroed() };
        // SAFETY: the kernel writes one termios.
        if unsafe { libc::tcgetattr(fd, &raw mut before) } < 0 {
            return Err(io::Error::last_os_error());
        }
        let mut raw = before;
        raw.c_lflag &= !(libc::ICANON | libc::ECHO | libc::ISIG);
        // SAFETY: the kernel reads one termios.
        if unsafe { libc::tcsetattr(fd, libc::TCSANOW, &raw const raw) } < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Self { fd, before })
    }

    /// The next byte, or None when none came in time, or a signal did.
    pub fn key(&self, timeout: Duration) -> io::Result<Option<u8>> {
        let mut poll = libc::pollfd { fd: self.fd, events: libc::POLLIN, revents: 0 };
        let ms = timeout.as_millis().min(i32::MAX as u128) as libc::c_int;
        // SAFETY: one valid pollfd.
        match unsafe { libc::poll(&raw mut poll, 1, ms) } {
            0 => return Ok(None),
            n if n < 0 => return interrupted(io::Error::last_os_error()),
            _ => {}
        }
        let mut byte = 0_u8;
        // SAFETY: the kernel writes one byte.
        match unsafe { libc::read(self.fd, (&raw mut byte).cast(), 1) } {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            n if n < 0 => interrupted(io::Error::last_os_error()),
            _ => Ok(Some(byte)),
        }
    }
}

fn interrupted(error: io::Error) -> io::Result<Option<u8>> {
    if error.kind() == io::ErrorKind::Interrupted { Ok(None) } else { Err(error) }
}

impl Drop for Raw {
    fn drop(&mut self) {
        // SAFETY: the kernel reads one termios. A terminal that is gone needs no restoring.
        let _gone = unsafe { libc::tcsetattr(self.fd, libc::TCSANOW, &raw const self.before) };
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

    use super::*;

    #[test]
    fn keys_come_at_once_and_the_terminal_is_restored() {
        let (mut ours, mut theirs) = (0, 0);
        let null = std::ptr::null_mut();
        // SAFETY: two ints are written; the rest may be null.
        assert_eq!(unsafe { libc::openpty(&raw mut ours, &raw mut theirs, null, null.cast(), null.cast()) }, 0);
        // SAFETY: both are new.
        let (ours, theirs) = unsafe { (OwnedFd::from_raw_fd(ours), OwnedFd::from_raw_fd(theirs)) };
        let flags = || {
            // SAFETY: all-zero bytes are a valid termios, and the kernel writes one.
            unsafe {
                let mut now: libc::termios = std::mem::zeroed();
                libc::tcgetattr(theirs.as_raw_fd(), &raw mut now);
                now.c_lflag
            }
        };
        let before = flags();
        let raw = Raw::enter(theirs.as_raw_fd()).expect("a terminal");
        assert_ne!(flags(), before);
        assert_eq!(raw.key(Duration::ZERO).expect("nothing yet"), None);
        // SAFETY: one byte is read.
        assert_eq!(unsafe { libc::write(ours.as_raw_fd(), b"q".as_ptr().cast(), 1) }, 1);
        assert_eq!(raw.key(Duration::from_secs(5)).expect("a key"), Some(b'q'));
        drop(raw);
        assert_eq!(flags(), before);
    }

    #[test]
    fn what_is_no_terminal_is_refused() {
        let pipe = crate::eventfd::new().expect("a descriptor");
        assert!(Raw::enter(pipe.as_raw_fd()).is_err());
    }
}

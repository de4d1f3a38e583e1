//! Reads single keys of a terminal.
use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};

/// A terminal without line buffering and echo, restored on drop.
#[derive(Debug)]
pub struct Raw<F: AsFd> {
    fd: F,
    before: Termios,
}

impl<F: AsFd> Raw<F> {
    /// Changes the mode of a terminal. Ctrl-C and the like become keys too, and raise no signal.
    pub fn enter(fd: F) -> io::Result<Self> {
        let before = tcgetattr(&fd)?;
        let mut raw = before.clone();
        raw.local_modes.remove(LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG);
        tcsetattr(&fd, OptionalActions::Now, &raw)?;
        Ok(Self { fd, before })
    }

    /// The next byte. None if none came in time, or if a signal interrupted the wait.
    pub fn key(&self, timeout: Duration) -> io::Result<Option<u8>> {
        let timeout = Timespec { tv_sec: timeout.as_secs() as _, tv_nsec: timeout.subsec_nanos().into() };
        match poll(&mut [PollFd::new(&self.fd, PollFlags::IN)], Some(&timeout)) {
            Ok(0) | Err(Errno::INTR) => return Ok(None),
            Ok(_) => {}
            Err(error) => return Err(error.into()),
        }
        let mut byte = [0];
        match rustix::io::read(&self.fd, &mut byte) {
            Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(_) => Ok(Some(byte[0])),
            Err(Errno::INTR) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}

impl<F: AsFd> Drop for Raw<F> {
    fn drop(&mut self) {
        // A terminal that is gone needs no restoring.
        tcsetattr(&self.fd, OptionalActions::Now, &self.before).ok();
    }
}

#[cfg(test)]
mod tests {
    use rustix::fs::{Mode, OFlags};
    use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

    use super::*;

    #[test]
    fn keys_come_at_once_and_the_terminal_is_restored() {
        let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("a pseudo-terminal");
        grantpt(&ours).expect("ours");
        unlockpt(&ours).expect("ours");
        let name = ptsname(&ours, Vec::new()).expect("its name");
        let theirs = rustix::fs::open(name, OFlags::RDWR | OFlags::NOCTTY, Mode::empty()).expect("its other end");
        let flags = || tcgetattr(&theirs).expect("a terminal").local_modes;
        let before = flags();
        let raw = Raw::enter(theirs.as_fd()).expect("a terminal");
        assert_ne!(flags(), before);
        assert_eq!(raw.key(Duration::ZERO).expect("nothing yet"), None);
        assert_eq!(rustix::io::write(&ours, b"q"), Ok(1));
        assert_eq!(raw.key(Duration::from_secs(5)).expect("a key"), Some(b'q'));
        drop(raw);
        assert_eq!(flags(), before);
    }

    #[test]
    fn a_file_that_is_no_terminal_is_refused() {
        let pipe = crate::eventfd::new().expect("a descriptor");
        assert!(Raw::enter(pipe.as_fd()).is_err());
    }
}

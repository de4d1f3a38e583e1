//! A child that waits, stopped, before its first instruction of interest until its parent lets it go.
//!
//! The child is a program of ours (the gate) that stops itself and then becomes another program. A pipe says whether
//! that worked: exec closes the child's end, and a gate that could not exec writes the error number into it.
use std::io::{self, PipeReader, PipeWriter, Read};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use crate::call::check;

/// The parent's side of a gate. Dropping it ends a gate that has not become its program.
#[derive(Debug)]
pub struct Gate {
    child: Child,
    outcome: PipeReader,
    opened: bool,
}

/// The number under which a gate finds its end of the pipe, to be passed in its arguments.
#[derive(Debug)]
pub struct GateEnds {
    reader: PipeReader,
    writer: PipeWriter,
}

impl GateEnds {
    /// Makes the pipe.
    pub fn new() -> io::Result<Self> {
        let (reader, writer) = io::pipe()?;
        Ok(Self { reader, writer })
    }

    /// The descriptor that the gate inherits.
    pub fn number(&self) -> RawFd {
        self.writer.as_raw_fd()
    }

    /// Starts the gate. `command` runs a program that calls [`stop_self`] and [`become_program`].
    pub fn spawn(self, command: &mut Command) -> io::Result<Gate> {
        let writer = self.writer.as_raw_fd();
        // SAFETY: the closure runs between fork and exec and makes one async-signal-safe system call on a number that it
        // owns; the descriptor is open in the parent, and so in the child, until spawn returns.
        unsafe { command.pre_exec(move || set_inherited(writer, true)) };
        Ok(Gate { child: command.spawn()?, outcome: self.reader, opened: false })
    }
}

impl Gate {
    /// Waits until the gate has stopped itself; false when it exited instead or `within` has passed.
    pub fn wait_stopped(&self, within: Duration) -> io::Result<bool> {
        let deadline = Instant::now() + within;
        loop {
            // SAFETY: an all-zero siginfo_t is valid, and waitid only writes to it.
            let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
            let flags = libc::WSTOPPED | libc::WEXITED | libc::WNOWAIT | libc::WNOHANG;
            // SAFETY: `info` is valid for writes; WNOWAIT leaves the child's status to its owner.
            check(unsafe { libc::waitid(libc::P_PID, self.child.id(), &mut info, flags) })?;
            match info.si_code {
                libc::CLD_STOPPED => return Ok(true),
                libc::CLD_EXITED | libc::CLD_KILLED | libc::CLD_DUMPED => return Ok(false),
                _ if Instant::now() >= deadline => return Ok(false),
                _ => std::thread::sleep(Duration::from_millis(1)),
            }
        }
    }

    /// Lets the gate go on, and waits until it has become the program or has ended. The inner error says why it could not.
    pub fn open(&mut self) -> io::Result<io::Result<()>> {
        let pid = libc::pid_t::try_from(self.child.id()).map_err(io::Error::other)?;
        // SAFETY: kill takes plain numbers; the pid is that of a child we have not waited for, so it cannot be another's.
        check(unsafe { libc::kill(pid, libc::SIGCONT) })?;
        let mut number = [0; 4];
        match self.outcome.read_exact(&mut number) {
            Ok(()) => Ok(Err(io::Error::from_raw_os_error(i32::from_ne_bytes(number)))),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                self.opened = true;
                Ok(Ok(()))
            }
            Err(error) => Err(error),
        }
    }

    /// Whether the gate has become the program.
    pub fn has_opened(&self) -> bool {
        self.opened
    }

    /// The child behind the gate.
    pub fn child(&mut self) -> &mut Child {
        &mut self.child
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        if !self.opened {
            // It is stopped, or has ended by itself.
            self.child.kill().ok();
            self.child.wait().ok();
        }
    }
}

/// Stops the calling process until somebody sends it SIGCONT.
pub fn stop_self() {
    // SAFETY: raise takes a plain number; SIGSTOP has no handler and changes no memory of ours.
    unsafe { libc::raise(libc::SIGSTOP) };
}

/// Turns the gate into another program and returns only if that fails; the parent then learns why. `number` is
/// [`GateEnds::number`].
pub fn become_program(program: &mut Command, number: RawFd) -> io::Error {
    if let Err(error) = set_inherited(number, false) {
        return error;
    }
    let error = program.exec();
    let reason = error.raw_os_error().unwrap_or(libc::ENOEXEC).to_ne_bytes();
    // SAFETY: write reads the bytes of a local array. Its result does not matter: the parent may be gone.
    unsafe { libc::write(number, reason.as_ptr().cast(), reason.len()) };
    error
}

/// Whether exec keeps a descriptor open.
fn set_inherited(fd: RawFd, inherited: bool) -> io::Result<()> {
    let flags = if inherited { 0 } else { libc::FD_CLOEXEC };
    // SAFETY: fcntl with F_SETFD takes plain numbers.
    check(unsafe { libc::fcntl(fd, libc::F_SETFD, flags) })
}

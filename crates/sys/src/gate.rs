//! A child that is stopped before it executes its program, until its parent lets it continue.
//!
//! The child is a program of ours (the gate) that stops itself and then becomes another program. A pipe says whether
//! that worked: exec closes the child's end, and a gate that could not exec writes the error number into it.
use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};

use crate::call::check;

/// The parent's side of a gate. Dropping it ends a gate that has not become its program.
#[derive(Debug)]
pub struct Gate {
    child: Child,
    outcome: PipeReader,
    opened: bool,
}

/// Both ends of the pipe. The gate finds its end by its number, which is passed in the arguments.
#[derive(Debug)]
pub struct GateEnds {
    reader: PipeReader,
    writer: PipeWriter,
}

impl GateEnds {
    #[allow(missing_docs)]
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
            // NOWAIT leaves the child's status to its owner.
            let of = WaitIdOptions::STOPPED | WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG;
            match waitid(WaitId::Pid(Pid::from_child(&self.child)), of)? {
                Some(status) if status.stopped() => return Ok(true),
                Some(status) if status.exited() || status.killed() || status.dumped() => return Ok(false),
                _ if Instant::now() >= deadline => return Ok(false),
                _ => std::thread::sleep(Duration::from_millis(1)),
            }
        }
    }

    /// Lets the gate continue, and waits until it has become the program or has ended. The inner error says why it could not.
    pub fn open(&mut self) -> io::Result<io::Result<()>> {
        // We have not waited for the child, so its pid cannot be another process's.
        kill_process(Pid::from_child(&self.child), Signal::CONT)?;
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

    /// The child, gate or program.
    pub fn child(&mut self) -> &mut Child {
        &mut self.child
    }

    #[allow(missing_docs)]
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

/// Stops the calling process until it gets SIGCONT.
pub fn stop_self() {
    kill_process(rustix::process::getpid(), Signal::STOP).ok();
}

/// Replaces the gate by another program. Returns only if that fails; the error is reported to the parent. `number` is
/// [`GateEnds::number`].
pub fn become_program(program: &mut Command, number: RawFd) -> io::Error {
    if let Err(error) = set_inherited(number, false) {
        return error;
    }
    // SAFETY: the call above has found it open; it was inherited for this, and nothing else of this process knows it.
    let mut parent = PipeWriter::from(unsafe { OwnedFd::from_raw_fd(number) });
    let error = program.exec();
    // The parent may be gone.
    parent.write_all(&error.raw_os_error().unwrap_or(libc::ENOEXEC).to_ne_bytes()).ok();
    error
}

/// Whether exec keeps a descriptor open.
fn set_inherited(fd: RawFd, inherited: bool) -> io::Result<()> {
    let flags = if inherited { 0 } else { libc::FD_CLOEXEC };
    // SAFETY: fcntl with F_SETFD takes plain numbers.
    check(unsafe { libc::fcntl(fd, libc::F_SETFD, flags) })
}

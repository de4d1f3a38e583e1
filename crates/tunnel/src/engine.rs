//! Which loop moves the packets.
use std::fs;
use std::io;
use std::os::fd::BorrowedFd;

use parshall_host::error::UserError;

use crate::syscall::Syscall;
use crate::threads::Threads;
use crate::uring::{Tunables, Uring};
use crate::worker::Worker;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Engine {
    /// With this many threads for each direction; 1 is one thread for both.
    Syscall(usize),
    Uring(Tunables),
}

/// A loop with its tunnel. It belongs to the thread that made it.
pub enum Loop {
    Syscall(Box<Syscall>),
    Threads(Box<Threads>),
    Uring(Box<Uring>),
}

impl Loop {
    /// Fails where the host has no io_uring, or an old one.
    pub fn new(engine: Engine, worker: Worker) -> Result<Self, UserError> {
        Ok(match engine {
            Engine::Syscall(1) => Self::Syscall(Box::new(Syscall::new(worker))),
            Engine::Syscall(threads) => {
                let made = Threads::new(worker, threads);
                Self::Threads(Box::new(made.map_err(|error| {
                    UserError::new(format!("the threads cannot be made: {error}"), "use --threads 1")
                })?))
            }
            Engine::Uring(tunables) => {
                let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
                if tunables.blocking_tun && may_hang(&release) {
                    let what =
                        format!("--uring-blocking-tun hangs on kernels before 6.4; this one is {}", release.trim());
                    return Err(UserError::new(what, "leave it out"));
                }
                let uring = Uring::new(worker, tunables).map_err(|error| {
                    UserError::new(format!("the ring cannot be made: {error}"), "use --engine syscall")
                })?;
                Self::Uring(Box::new(uring))
            }
        })
    }

    /// Moves packets until `stop` is readable. Fails when the TUN device does.
    pub fn run(&mut self, stop: BorrowedFd<'_>) -> io::Result<()> {
        match self {
            Self::Syscall(single) => single.run(stop),
            Self::Threads(threads) => threads.run(stop),
            Self::Uring(uring) => uring.run(stop),
        }
    }
}

/// Choices of the user about the loop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EngineRequest {
    pub engine: Engine,
    /// Lower the MSS of TCP connections to what the path takes.
    pub clamp_mss: bool,
}

impl EngineRequest {
    /// The flags that say the same, for another process.
    pub fn flags(&self) -> Vec<String> {
        let mut flags = Vec::new();
        if let Engine::Syscall(threads) = self.engine {
            flags.push(format!("--threads={threads}"));
        }
        if let Engine::Uring(tunables) = self.engine {
            let Tunables { entries, tun_slots, send_slots, sqpoll, zero_copy, blocking_tun } = tunables;
            flags.push("--engine=uring".to_owned());
            flags.push(format!("--uring-entries={entries}"));
            flags.push(format!("--uring-tun-slots={tun_slots}"));
            flags.push(format!("--uring-send-slots={send_slots}"));
            flags.extend(sqpoll.then(|| "--uring-sqpoll".to_owned()));
            flags.extend(zero_copy.then(|| "--uring-zero-copy".to_owned()));
            flags.extend(blocking_tun.then(|| "--uring-blocking-tun".to_owned()));
        }
        flags.extend(self.clamp_mss.then(|| "--clamp-mss".to_owned()));
        flags
    }
}

/// Before kernel 6.4 a read of a blocking TUN device occupies a kernel thread, which may not end (that of SQPOLL in 6.1).
fn may_hang(release: &str) -> bool {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|part| part.parse::<u32>().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) < (6, 4)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocking_reads_need_a_kernel_that_does_not_hang() {
        assert!(may_hang("6.1.0-18-amd64\n") && may_hang("5.15.0") && may_hang(""));
        assert!(!may_hang("6.4.0") && !may_hang("6.18.44-fc") && !may_hang("7.0"));
    }
}

//! Starts and ends the process that moves packets.
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Write};
use std::net::{Shutdown, TcpListener};
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::{Duration, Instant};

use anyhow::Context;
use parshall_core::tunnel::{DeviceChange, write_change};
use parshall_sys::handover::{self, Successor};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::ready;
use crate::request::{UpRequest, UserIds};

/// How long the process may take to end before it is killed.
const STOP_MAX: Duration = Duration::from_secs(5);

/// Descriptors and settings that the process gets.
pub struct Inherited<'a> {
    pub tun: &'a File,
    pub control: UnixListener,
    pub metrics: Option<TcpListener>,
}

/// Why a wait ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    Signal,
    Child,
}

/// The process. It is ended when this is dropped.
#[derive(Debug)]
pub struct Child {
    process: Successor,
    link: UnixStream,
    waited: bool,
}

impl Child {
    /// Starts it as `user`, or else as the user of this process, and returns once it moves packets.
    pub fn start(
        request: &UpRequest,
        user: Option<UserIds>,
        mtu: u16,
        change: &DeviceChange,
        inherited: Inherited<'_>,
    ) -> anyhow::Result<Self> {
        let (link, theirs) = UnixStream::pair()?;
        let mut sockets = vec![theirs.as_fd(), inherited.tun.as_fd(), inherited.control.as_fd()];
        sockets.extend(inherited.metrics.as_ref().map(AsFd::as_fd));
        let mut words = vec!["tunnel".to_owned(), "work".to_owned(), request.interface.clone(), format!("--mtu={mtu}")];
        if let Some(UserIds { uid, gid }) = user {
            words.extend([format!("--uid={uid}"), format!("--gid={gid}")]);
        }
        words.extend(request.engine.flags());
        let words: Vec<OsString> = words.into_iter().map(Into::into).collect();
        let program = std::env::current_exe().context("finding this program")?;
        let process = handover::spawn(&program, &words, &sockets).context("starting the process")?;
        drop(theirs);
        let mut child = Self { process, link, waited: false };
        // If it has ended, it says why below.
        child.link.write_all(write_change(change).as_bytes()).ok();
        match ready::wait(&child.process.ready) {
            Some(outcome) => outcome?,
            None => {
                child.reap()?;
                anyhow::bail!("the process that moves packets ended before it was ready");
            }
        }
        Ok(child)
    }

    /// Waits for the process to end or for `stop` to be readable.
    pub fn wait(&self, stop: &UnixStream) -> io::Result<Ended> {
        loop {
            let mut fds = [PollFd::new(&self.link, PollFlags::IN), PollFd::new(stop, PollFlags::IN)];
            match poll(&mut fds, None) {
                Ok(_) if !fds[1].revents().is_empty() => return Ok(Ended::Signal),
                Ok(_) if !fds[0].revents().is_empty() => return Ok(Ended::Child),
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Ends it.
    pub fn stop(mut self) -> anyhow::Result<()> {
        self.end();
        self.reap()
    }

    /// The exit status of a process that has ended, or is about to.
    pub fn outcome(mut self) -> anyhow::Result<()> {
        self.reap()
    }

    fn end(&self) {
        self.link.shutdown(Shutdown::Write).ok();
        if !self.ends_within(STOP_MAX) {
            tracing::warn!("the process that moves packets has not ended after {} s: it is killed", STOP_MAX.as_secs());
            self.process.kill();
        }
    }

    /// Waits for its end. An impatient user sends a signal again, which is no reason to kill it.
    fn ends_within(&self, time: Duration) -> bool {
        let begun = Instant::now();
        loop {
            let left = Timespec::try_from(time.saturating_sub(begun.elapsed())).ok();
            match poll(&mut [PollFd::new(&self.link, PollFlags::IN)], left.as_ref()) {
                Err(Errno::INTR) => {}
                ended => return ended == Ok(1),
            }
        }
    }

    fn reap(&mut self) -> anyhow::Result<()> {
        self.waited = true;
        match self.process.wait().context("waiting for the process that moves packets")? {
            0 => Ok(()),
            code @ 129.. => anyhow::bail!("the process that moves packets was ended by signal {}", code - 128),
            code => anyhow::bail!("the process that moves packets ended with code {code}"),
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        if !self.waited {
            self.end();
            self.reap().ok();
        }
    }
}

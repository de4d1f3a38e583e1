//! Upgrades: a new process inherits the listening sockets, and the old one stops accepting once the new one is ready. No
//! connection is refused.
use std::ffi::OsString;
use std::io::Read;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use parshall_sys::handover::{self, Successor};

/// A successor that is not ready after this time is killed. It is longer than resolving names may take.
const READY_MAX: Duration = Duration::from_secs(30);
/// The bytes that a successor writes to its pipe when it is ready.
pub const READY: &[u8] = b"READY\n";

/// The path and arguments that this process was started with. Where the path is a symbolic link that an update has changed,
/// a successor runs the new file.
#[derive(Debug)]
pub struct Program {
    path: PathBuf,
    arguments: Vec<OsString>,
}

impl Program {
    /// Must be called at the start: once the file is replaced, /proc/self/exe names a deleted one.
    pub fn this() -> anyhow::Result<Self> {
        let path = match handover::started_by().and_then(|path| std::path::absolute(path).ok()) {
            Some(path) if is_this(&path) => path,
            // Started by a descriptor (fexecve), for example.
            _ => std::env::current_exe()?,
        };
        Ok(Self { path, arguments: std::env::args_os().skip(1).collect() })
    }

    /// Starts a successor with these sockets. `on_result` is called from another thread: with its pid when it is ready, or
    /// with the reason why it failed.
    pub fn start(
        &self,
        sockets: &[BorrowedFd<'_>],
        on_result: impl FnOnce(Result<u32, String>) + Send + 'static,
    ) -> anyhow::Result<()> {
        let successor = handover::spawn(&self.path, &self.arguments, sockets)?;
        std::thread::Builder::new().name("relay-upgrade".into()).spawn(move || on_result(watch(successor)))?;
        Ok(())
    }
}

/// Whether the path is that of the file which this process runs.
fn is_this(path: &Path) -> bool {
    let file = |path: &Path| std::fs::metadata(path).map(|m| (m.dev(), m.ino())).ok();
    file(path).is_some_and(|found| file(Path::new("/proc/self/exe")) == Some(found))
}

/// Waits until the successor is ready or has failed. One that failed has ended.
fn watch(successor: Successor) -> Result<u32, String> {
    let pid = successor.pid();
    let Ok(mut ready) = successor.ready.try_clone() else { return Err("no descriptors".to_owned()) };
    let (sender, said) = channel();
    let reader = std::thread::Builder::new().name("relay-upgrade".into()).spawn(move || {
        let mut text = [0; READY.len()];
        let complete = ready.read_exact(&mut text).is_ok() && text == READY;
        sender.send(complete).ok();
    });
    let outcome = match reader {
        Ok(_) => said.recv_timeout(READY_MAX),
        Err(_) => Err(RecvTimeoutError::Timeout),
    };
    match outcome {
        Ok(true) => return Ok(pid),
        Ok(false) | Err(RecvTimeoutError::Disconnected) => {}
        Err(RecvTimeoutError::Timeout) => {
            successor.kill();
            successor.wait().ok();
            return Err(format!("it was not ready after {} s", READY_MAX.as_secs()));
        }
    }
    // The pipe was closed without READY, which happens only when the process ends.
    Err(match successor.wait() {
        Ok(code) => format!("it ended with code {code}"),
        Err(e) => format!("it ended: {e}"),
    })
}

//! A new binary takes over without a connection being refused: it inherits the listening sockets, says when it is ready,
//! and only then does the old process stop accepting.
use std::ffi::OsString;
use std::io::Read;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use parshall_sys::handover::{self, Successor};

/// A successor that is not ready by then is ended. Longer than names may take to resolve.
const READY_MAX: Duration = Duration::from_secs(30);
/// What a successor says when it is ready.
pub const READY: &[u8] = b"READY\n";

/// How to start this program again, by the path that it was started by. Where that path is a symbolic link which an update
/// has turned to another file, that file is started.
#[derive(Debug)]
pub struct Program {
    path: PathBuf,
    arguments: Vec<OsString>,
}

impl Program {
    /// This one. Noted while the file is in its place: once it is replaced, /proc/self/exe names a deleted one.
    pub fn this() -> anyhow::Result<Self> {
        let path = match handover::started_by().and_then(|path| std::path::absolute(path).ok()) {
            Some(path) if is_this(&path) => path,
            // Not by a path that still leads here, but for example by a descriptor (fexecve).
            _ => std::env::current_exe()?,
        };
        Ok(Self { path, arguments: std::env::args_os().skip(1).collect() })
    }

    /// Starts it with these sockets, and calls `tell` from another thread once it is ready (with its pid) or has failed
    /// (with the reason).
    pub fn start(
        &self,
        sockets: &[BorrowedFd<'_>],
        tell: impl FnOnce(Result<u32, String>) + Send + 'static,
    ) -> anyhow::Result<()> {
        let successor = handover::spawn(&self.path, &self.arguments, sockets)?;
        std::thread::Builder::new().name("relay-upgrade".into()).spawn(move || tell(watch(successor)))?;
        Ok(())
    }
}

/// Whether the path leads to the file that this process runs.
fn is_this(path: &Path) -> bool {
    let file = |path: &Path| std::fs::metadata(path).map(|m| (m.dev(), m.ino())).ok();
    file(path).is_some_and(|found| file(Path::new("/proc/self/exe")) == Some(found))
}

/// Waits until the successor is ready or has failed; then it is gone.
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
    // The pipe closes when it ends: nothing else in it closes it without a word.
    Err(match successor.wait() {
        Ok(code) => format!("it ended with code {code}"),
        Err(e) => format!("it ended: {e}"),
    })
}

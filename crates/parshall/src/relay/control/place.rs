//! Where the control socket is. Without a path in the configuration each relay has its own, named by its process id in
//! `/run/parshall` (root), `$XDG_RUNTIME_DIR/parshall` or `/tmp/parshall-UID`, so that several run side by side and
//! `relay top` finds the one there is.
use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use parshall_sys::privileges::current;
use socket2::{Domain, SockAddr, Socket, Type};

use crate::relay::open::Pool;

/// Tools that wait to be answered.
const BACKLOG: i32 = 16;

/// The directory of the control sockets of this user's relays.
pub fn directory() -> PathBuf {
    let uid = current().uid;
    if uid == 0 {
        return PathBuf::from("/run/parshall");
    }
    match std::env::var_os("XDG_RUNTIME_DIR").filter(|d| !d.is_empty()) {
        Some(runtime) => Path::new(&runtime).join("parshall"),
        None => PathBuf::from(format!("/tmp/parshall-{uid}")),
    }
}

/// The socket of a relay that was not given a path.
fn of_pid(directory: &Path, pid: u32) -> PathBuf {
    directory.join(format!("relay-{pid}.sock"))
}

/// A bound control socket; its path is removed when this is dropped.
#[derive(Debug)]
pub struct Bound {
    /// Where it is.
    pub path: PathBuf,
    inode: Option<(u64, u64)>,
}

impl Bound {
    fn new(path: PathBuf) -> Self {
        Self { inode: inode(&path), path }
    }

    /// Leaves it to a successor.
    pub fn leave(mut self) {
        self.inode = None;
    }
}

impl Drop for Bound {
    fn drop(&mut self) {
        // Somebody else may have put another in this place.
        if self.inode.is_some() && inode(&self.path) == self.inode {
            fs::remove_file(&self.path).ok();
        }
    }
}

fn inode(path: &Path) -> Option<(u64, u64)> {
    fs::symlink_metadata(path).ok().map(|m| (m.dev(), m.ino()))
}

/// Takes the control socket of a predecessor, if one was handed over. Its path may be one that this process, without
/// privileges, could not make.
pub fn inherit(configured: Option<&str>, pool: &mut Pool) -> Option<(Bound, UnixListener)> {
    let ours = |path: &str| match configured {
        Some(wanted) => path == wanted,
        None => has_our_name(Path::new(path)),
    };
    let (path, socket) = pool.take_unix(ours)?;
    Some((Bound::new(PathBuf::from(path)), UnixListener::from(socket)))
}

/// Binds the socket, for its owner only.
pub fn bind(configured: Option<&str>) -> io::Result<(Bound, UnixListener)> {
    let path = match configured {
        Some(path) => PathBuf::from(path),
        None => {
            let directory = directory();
            own(&directory)?;
            remove_dead(&directory);
            of_pid(&directory, std::process::id())
        }
    };
    if let Ok(metadata) = fs::symlink_metadata(&path) {
        if !metadata.file_type().is_socket() {
            return Err(io::Error::other("there is something that is no socket"));
        }
        if UnixStream::connect(&path).is_ok() {
            return Err(io::Error::new(io::ErrorKind::AddrInUse, "another process answers there"));
        }
        fs::remove_file(&path)?;
    }
    // The kernel gives the path the rights of the socket (unix_bind in net/unix/af_unix.c), so there is no moment in
    // which others could connect.
    let socket = File::from(OwnedFd::from(Socket::new(Domain::UNIX, Type::STREAM, None)?));
    socket.set_permissions(fs::Permissions::from_mode(0o600))?;
    let socket = Socket::from(OwnedFd::from(socket));
    socket.bind(&SockAddr::unix(&path)?)?;
    socket.listen(BACKLOG)?;
    Ok((Bound::new(path), UnixListener::from(OwnedFd::from(socket))))
}

/// Makes the directory, and refuses one that another user could have made.
fn own(directory: &Path) -> io::Result<()> {
    match fs::DirBuilder::new().mode(0o700).create(directory) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(e),
        _ => {}
    }
    let metadata = fs::symlink_metadata(directory)?;
    if !metadata.is_dir() || metadata.uid() != current().uid || metadata.mode() & 0o022 != 0 {
        let what = format!("{} belongs to someone else", directory.display());
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, what));
    }
    Ok(())
}

/// Sockets of relays that were killed.
fn remove_dead(directory: &Path) {
    for path in all(directory) {
        if matches!(UnixStream::connect(&path), Err(e) if e.kind() == io::ErrorKind::ConnectionRefused) {
            fs::remove_file(path).ok();
        }
    }
}

/// The control sockets in a directory.
fn all(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten().map(|e| e.path());
    let mut all: Vec<PathBuf> = entries.filter(|path| has_our_name(path)).collect();
    all.sort();
    all
}

/// Whether it is named like one of [`of_pid`].
fn has_our_name(path: &Path) -> bool {
    let name = path.file_name().and_then(|n| n.to_str()).unwrap_or_default();
    name.starts_with("relay-") && name.ends_with(".sock")
}

/// The control sockets in a directory at which a relay answers.
pub fn alive(directory: &Path) -> Vec<PathBuf> {
    all(directory).into_iter().filter(|path| UnixStream::connect(path).is_ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_is_for_its_owner_and_goes_with_it() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("c");
        let text = path.to_str().expect("UTF-8");
        let (first, listener) = bind(Some(text)).expect("bound");
        assert_eq!(fs::metadata(&path).expect("there").permissions().mode() & 0o777, 0o600);
        assert!(bind(Some(text)).is_err(), "another relay has it");
        let mut pool = Pool::new(vec![listener.try_clone().expect("a descriptor").into()]);
        assert!(inherit(Some("/elsewhere"), &mut pool).is_none());
        let (second, _same) = inherit(Some(text), &mut pool).expect("a successor takes it");
        first.leave();
        assert!(UnixStream::connect(&path).is_ok(), "the successor's stays");
        drop(second);
        assert!(!path.exists());
        drop(UnixListener::bind(&path).expect("bound"));
        bind(Some(text)).expect("what a killed relay left is replaced");
    }

    #[test]
    fn only_sockets_are_replaced() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("file");
        fs::write(&path, "precious").expect("written");
        assert!(bind(path.to_str()).is_err());
        assert_eq!(fs::read_to_string(&path).expect("there"), "precious");
    }

    #[test]
    fn dead_relays_are_not_found() {
        let dir = tempfile::tempdir().expect("a directory");
        let _alive = UnixListener::bind(of_pid(dir.path(), 1)).expect("bound");
        drop(UnixListener::bind(of_pid(dir.path(), 2)).expect("bound"));
        assert_eq!(alive(dir.path()), [of_pid(dir.path(), 1)]);
        remove_dead(dir.path());
        assert!(of_pid(dir.path(), 1).exists() && !of_pid(dir.path(), 2).exists());
    }
}

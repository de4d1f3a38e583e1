//! UNIX sockets by which other processes control one of ours. Only the owner of the path can connect, and the path is removed
//! with the listener.
use std::fs::{self, File, Permissions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, chown};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use parshall_sys::privileges::User;
use socket2::{Domain, SockAddr, Socket, Type};

use crate::foreign_file::Pinned;

/// The accept queue.
const BACKLOG: i32 = 16;

/// The path of a listening socket. It is removed when this is dropped.
#[derive(Debug)]
pub struct BoundPath {
    path: PathBuf,
    /// Device and inode of the socket; None if its path is not ours to remove.
    inode: Option<(u64, u64)>,
}

impl BoundPath {
    /// Takes over the path of a socket that another process has bound.
    pub fn adopt(path: PathBuf) -> Self {
        Self { inode: inode(&path), path }
    }

    /// The path of the socket.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Changes the owner of the path.
    ///
    /// # Errors
    /// If the path is no longer that of the socket or it has another hard link, and those of `chown`.
    pub fn give_to(&self, user: &User) -> io::Result<()> {
        // Pinned, so that the path cannot be replaced between the checks and the change of owner.
        let file = Pinned::at(&self.path)?;
        let found = file.metadata()?;
        if (found.uid(), found.gid()) == (user.uid, user.gid) {
            return Ok(());
        }
        if !found.file_type().is_socket() || found.nlink() != 1 || Some((found.dev(), found.ino())) != self.inode {
            return Err(io::Error::other("another file has taken its place"));
        }
        chown(file.path(), Some(user.uid), Some(user.gid))
    }

    /// Keeps the path, because another process serves the socket from now on.
    pub fn hand_over(mut self) {
        self.inode = None;
    }
}

impl Drop for BoundPath {
    fn drop(&mut self) {
        // Another process may have replaced it.
        if self.inode.is_some() && inode(&self.path) == self.inode {
            fs::remove_file(&self.path).ok();
        }
    }
}

fn inode(path: &Path) -> Option<(u64, u64)> {
    fs::symlink_metadata(path).ok().map(|m| (m.dev(), m.ino()))
}

/// Binds and listens, with mode 0600. Replaces a socket on which nobody listens any more.
///
/// # Errors
/// `AddrInUse` if a process listens on it, `AlreadyExists` if the path is another kind of file, and those of the system calls.
pub fn bind(path: PathBuf) -> io::Result<(BoundPath, UnixListener)> {
    if let Ok(metadata) = fs::symlink_metadata(&path) {
        if !metadata.file_type().is_socket() {
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, "it exists and is no socket"));
        }
        if is_served(&path) {
            return Err(io::Error::new(io::ErrorKind::AddrInUse, "another process serves it"));
        }
        fs::remove_file(&path)?;
    }
    // bind(2) gives the path the mode of the socket (unix_bind in net/unix/af_unix.c), so that others can never connect.
    let socket = File::from(OwnedFd::from(Socket::new(Domain::UNIX, Type::STREAM, None)?));
    socket.set_permissions(Permissions::from_mode(0o600))?;
    let socket = Socket::from(OwnedFd::from(socket));
    socket.bind(&SockAddr::unix(&path)?)?;
    socket.listen(BACKLOG)?;
    Ok((BoundPath::adopt(path), UnixListener::from(OwnedFd::from(socket))))
}

/// Whether a process listens on the path. Does not wait for one that accepts nothing.
pub fn is_served(path: &Path) -> bool {
    knock(path).is_ok()
}

/// Removes the path if it is a socket that nobody listens on.
pub fn remove_if_unserved(path: &Path) {
    let is_socket = fs::symlink_metadata(path).is_ok_and(|m| m.file_type().is_socket());
    if is_socket && knock(path).is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused) {
        fs::remove_file(path).ok();
    }
}

fn knock(path: &Path) -> io::Result<()> {
    match Socket::new(Domain::UNIX, Type::STREAM.nonblocking(), None)?.connect(&SockAddr::unix(path)?) {
        // A full accept queue is somebody's too.
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
        result => result,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use parshall_sys::privileges::current;

    use super::*;

    #[test]
    fn only_the_owner_can_connect_and_the_path_ends_with_the_listener() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("c");
        let (bound, listener) = bind(path.clone()).expect("bound");
        assert_eq!(fs::metadata(&path).expect("there").permissions().mode() & 0o777, 0o600);
        assert_eq!(bind(path.clone()).expect_err("served").kind(), io::ErrorKind::AddrInUse);
        remove_if_unserved(&path);
        UnixStream::connect(&path).expect("it is served");
        drop((bound, listener));
        assert!(!path.exists());
    }

    #[test]
    fn a_successor_keeps_the_path() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("c");
        let (first, _listener) = bind(path.clone()).expect("bound");
        let second = BoundPath::adopt(path.clone());
        first.hand_over();
        assert!(UnixStream::connect(&path).is_ok());
        drop(second);
        assert!(!path.exists());
    }

    /// A socket that nobody listens on any more. A process that another test starts holds a copy of every descriptor until it
    /// executes its program.
    fn leave_behind(path: &Path) {
        drop(UnixListener::bind(path).expect("bound"));
        let gone = (0..10_000).any(|_| {
            std::thread::sleep(std::time::Duration::from_millis(1));
            !is_served(path)
        });
        assert!(gone, "somebody still listens");
    }

    #[test]
    fn what_a_killed_process_left_is_replaced_and_other_files_are_not() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("c");
        leave_behind(&path);
        let (bound, _listener) = bind(path.clone()).expect("bound");
        fs::remove_file(&path).expect("ours");
        fs::write(&path, "precious").expect("written");
        drop(bound);
        remove_if_unserved(&path);
        assert_eq!(bind(path.clone()).expect_err("a file").kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(fs::read_to_string(&path).expect("there"), "precious");
        let dead = dir.path().join("dead");
        leave_behind(&dead);
        remove_if_unserved(&dead);
        assert!(!dead.exists());
    }

    #[test]
    fn only_the_socket_that_was_bound_changes_its_owner() {
        let nobody = User { uid: 65534, gid: 65534 };
        if current().uid != 0 {
            return parshall_testkit::skip("giving a control socket to another user", "needs root");
        }
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("c");
        let (bound, _listener) = bind(path.clone()).expect("bound");
        let link = dir.path().join("link");
        // Another name of it, as somebody might make who wants a file of ours.
        fs::hard_link(&path, &link).expect("linked");
        assert!(bound.give_to(&nobody).is_err());
        fs::remove_file(link).expect("ours");
        bound.give_to(&nobody).expect("given");
        bound.give_to(&nobody).expect("it is theirs");
        let metadata = fs::metadata(&path).expect("there");
        assert_eq!((metadata.uid(), metadata.gid(), metadata.mode() & 0o777), (65534, 65534, 0o600));
        let other = User { uid: 65533, gid: 65533 };
        fs::remove_file(&path).expect("ours");
        fs::write(&path, "precious").expect("written");
        assert!(bound.give_to(&other).is_err());
        let to_passwd = dir.path().join("passwd");
        std::os::unix::fs::symlink("/etc/passwd", &to_passwd).expect("a link");
        assert!(BoundPath::adopt(to_passwd).give_to(&other).is_err());
        assert_eq!(fs::metadata("/etc/passwd").expect("there").uid(), 0);
    }
}

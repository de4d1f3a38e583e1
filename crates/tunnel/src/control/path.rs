//! The paths of control sockets, `/run/wireguard/NAME.sock`, where `wg` and other programs find them.
use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use socket2::{Domain, SockAddr, Socket, Type};

/// Every implementation in user space has its sockets here, for all network namespaces. `/var/run`, where `wg` looks, is a link
/// to `/run`.
pub const DIRECTORY: &str = "/run/wireguard";

const BACKLOG: i32 = 16;

/// The path for an interface.
pub fn of_interface(directory: &Path, interface: &str) -> PathBuf {
    directory.join(format!("{interface}.sock"))
}

/// The path of a control socket. It is removed when this is dropped.
#[derive(Debug)]
pub struct Bound {
    path: PathBuf,
    inode: Option<(u64, u64)>,
}

impl Drop for Bound {
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

/// Binds the socket of an interface with mode 0600, and replaces one on which nobody listens any more.
///
/// # Errors
/// `AddrInUse` if a process listens there.
pub fn bind(directory: &Path, interface: &str) -> io::Result<(Bound, UnixListener)> {
    let made = DirBuilder::new().mode(0o755).create(directory);
    made.or_else(|error| if error.kind() == io::ErrorKind::AlreadyExists { Ok(()) } else { Err(error) })?;
    let path = of_interface(directory, interface);
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
    socket.set_permissions(fs::Permissions::from_mode(0o600))?;
    let socket = Socket::from(OwnedFd::from(socket));
    socket.bind(&SockAddr::unix(&path)?)?;
    socket.listen(BACKLOG)?;
    Ok((Bound { inode: inode(&path), path }, UnixListener::from(OwnedFd::from(socket))))
}

/// Whether a process listens on the path. Does not wait for one that accepts nothing.
fn is_served(path: &Path) -> bool {
    let connect = || Socket::new(Domain::UNIX, Type::STREAM.nonblocking(), None)?.connect(&SockAddr::unix(path)?);
    // A full accept queue is somebody's too.
    connect().map_or_else(|error| error.kind() == io::ErrorKind::WouldBlock, |()| true)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn only_the_owner_can_connect_and_the_path_ends_with_it() {
        let scratch = tempfile::tempdir().unwrap();
        let directory = scratch.path().join("wireguard");
        let path = of_interface(&directory, "wg0");
        let (bound, listener) = bind(&directory, "wg0").unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(bind(&directory, "wg0").unwrap_err().kind(), io::ErrorKind::AddrInUse);
        bind(&directory, "wg1").expect("another interface");
        UnixStream::connect(&path).expect("it is served");
        drop((bound, listener));
        assert!(!path.exists());
    }

    #[test]
    fn what_a_killed_process_left_is_replaced_and_other_files_are_not() {
        let scratch = tempfile::tempdir().unwrap();
        let path = of_interface(scratch.path(), "wg0");
        drop(UnixListener::bind(&path).unwrap());
        let (bound, _listener) = bind(scratch.path(), "wg0").unwrap();
        fs::remove_file(&path).unwrap();
        fs::write(&path, "precious").unwrap();
        drop(bound);
        assert!(bind(scratch.path(), "wg0").is_err());
        assert_eq!(fs::read_to_string(&path).unwrap(), "precious");
    }
}

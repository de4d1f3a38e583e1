//! The paths of control sockets, `/run/wireguard/NAME.sock`, where `wg` and other programs find them.
use std::io;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use parshall_host::control_socket::{self, BoundPath};
use parshall_host::own_directory;
use parshall_sys::privileges::current;

/// Every implementation in user space has its sockets here, for all network namespaces. `/var/run`, where `wg` looks, is a link
/// to `/run`.
pub const DIRECTORY: &str = "/run/wireguard";

/// The path for an interface.
pub fn of_interface(directory: &Path, interface: &str) -> PathBuf {
    directory.join(format!("{interface}.sock"))
}

/// Binds the socket of an interface, in a directory that is made if it is missing. A writer to the directory could serve
/// `wg`, which sends private keys, and so it must be ours alone.
///
/// # Errors
/// `AddrInUse` if a process listens there; `PermissionDenied` if others may write to the directory.
pub fn bind(directory: &Path, interface: &str) -> io::Result<(BoundPath, UnixListener)> {
    own_directory::make(directory, 0o755, &current())?;
    control_socket::bind(of_interface(directory, interface))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_interface_has_a_socket_of_its_own() {
        let scratch = tempfile::tempdir().unwrap();
        let directory = scratch.path().join("wireguard");
        let (_bound, _listener) = bind(&directory, "wg0").unwrap();
        assert_eq!(bind(&directory, "wg0").unwrap_err().kind(), io::ErrorKind::AddrInUse);
        bind(&directory, "wg1").expect("another interface");
    }
}

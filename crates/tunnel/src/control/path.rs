//! The paths of control sockets, `/run/wireguard/NAME.sock`, where `wg` and other programs find them.
use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use parshall_host::control_socket::{self, BoundPath};

/// Every implementation in user space has its sockets here, for all network namespaces. `/var/run`, where `wg` looks, is a link
/// to `/run`.
pub const DIRECTORY: &str = "/run/wireguard";

/// The path for an interface.
pub fn of_interface(directory: &Path, interface: &str) -> PathBuf {
    directory.join(format!("{interface}.sock"))
}

/// Binds the socket of an interface, in a directory that is made if it is missing.
///
/// # Errors
/// `AddrInUse` if a process listens there.
pub fn bind(directory: &Path, interface: &str) -> io::Result<(BoundPath, UnixListener)> {
    let made = DirBuilder::new().mode(0o755).create(directory);
    made.or_else(|error| if error.kind() == io::ErrorKind::AlreadyExists { Ok(()) } else { Err(error) })?;
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

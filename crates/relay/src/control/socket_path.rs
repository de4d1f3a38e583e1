//! The path of the control socket. Without one in the configuration it is named by the process id, so that several relays
//! run side by side and `relay top` finds them: in `/run/parshall` (root), in `/run/parshall/UID` (root has started it with
//! `user`), or in `$XDG_RUNTIME_DIR/parshall` or `/tmp/parshall-UID`. The socket and its directory belong to the user that
//! the relay becomes, who can connect to it and remove it.
use std::fs;
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use parshall_host::control_socket::{self, BoundPath, is_served};
use parshall_host::own_directory::{self, is_safe};
use parshall_sys::privileges::{User, current};

use crate::open::Pool;

/// Sockets that are looked at in one directory: the owner of a directory must not keep others busy with it.
const SOCKETS_MAX: usize = 1024;

/// The directory for relays that root has started.
const SYSTEM: &str = "/run/parshall";

/// The directory of this user's control sockets, or of `owner`'s if the relay is about to become that user.
pub fn directory(owner: Option<&User>) -> PathBuf {
    let us = current().uid;
    let uid = owner.map_or(us, |owner| owner.uid);
    let by_root = Path::new(SYSTEM).join(uid.to_string());
    match std::env::var_os("XDG_RUNTIME_DIR").filter(|d| !d.is_empty()) {
        _ if uid == 0 => PathBuf::from(SYSTEM),
        _ if us == 0 || is_safe(&by_root, uid) => by_root,
        Some(runtime) => Path::new(&runtime).join("parshall"),
        None => PathBuf::from(format!("/tmp/parshall-{uid}")),
    }
}

/// The directories in which this user may find control sockets; for root, also those of other users in `/run/parshall`.
pub fn searched() -> Vec<PathBuf> {
    let system = Path::new(SYSTEM).to_owned();
    let entries = fs::read_dir(&system).into_iter().flatten().flatten();
    let of_users = entries.map(|entry| entry.path()).filter(|_| current().uid == 0);
    let mut all: Vec<PathBuf> = of_users.chain([system, directory(None)]).collect();
    all.sort();
    all.dedup();
    all
}

fn of_pid(directory: &Path, pid: u32) -> PathBuf {
    directory.join(format!("relay-{pid}.sock"))
}

/// Takes the control socket of a predecessor from the inherited sockets. Without privileges this process might not be able
/// to create its path.
pub fn inherit(configured: Option<&str>, pool: &mut Pool) -> Option<(BoundPath, UnixListener)> {
    let is_wanted = |path: &str| match configured {
        Some(wanted) => path == wanted,
        None => is_relay_socket_name(Path::new(path)),
    };
    let (path, socket) = pool.take_unix(is_wanted)?;
    Some((BoundPath::adopt(PathBuf::from(path)), UnixListener::from(socket)))
}

/// Binds the socket, with mode 0600. Without a configured path it is in the directory of `owner`, if that is given.
pub fn bind(configured: Option<&str>, owner: Option<&User>) -> io::Result<(BoundPath, UnixListener)> {
    let path = match configured {
        Some(path) => PathBuf::from(path),
        None => {
            let directory = directory(owner);
            create(&directory, owner)?;
            remove_dead(&directory);
            of_pid(&directory, std::process::id())
        }
    };
    control_socket::bind(path)
}

/// Creates the directory for this user or for `owner`, with a parent of this user. Refuses an existing one that belongs to
/// another user or that others can write.
fn create(directory: &Path, owner: Option<&User>) -> io::Result<()> {
    let us = current();
    let owner = owner.filter(|owner| owner.uid != us.uid);
    if let (Some(_), Some(parent)) = (owner, directory.parent()) {
        create(parent, None)?;
    }
    // Other users must be able to enter the system's directory to reach their own.
    let mode = if directory == Path::new(SYSTEM) { 0o755 } else { 0o700 };
    own_directory::make(directory, mode, owner.unwrap_or(&us))
}

/// Removes the sockets of relays that were killed.
fn remove_dead(directory: &Path) {
    all(directory).iter().for_each(|path| control_socket::remove_if_unserved(path));
}

/// The control sockets in a directory, at most [`SOCKETS_MAX`]. A link is none: it may lead to the socket of another program.
fn all(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let sockets = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_socket())).map(|e| e.path());
    let mut all: Vec<PathBuf> = sockets.filter(|path| is_relay_socket_name(path)).take(SOCKETS_MAX).collect();
    all.sort();
    all
}

/// Whether the name has the form of [`of_pid`].
fn is_relay_socket_name(path: &Path) -> bool {
    let name = path.file_name().and_then(|n| n.to_str()).unwrap_or_default();
    name.starts_with("relay-") && name.ends_with(".sock")
}

/// The control sockets in these directories on which a relay listens.
pub fn alive(directories: &[PathBuf]) -> Vec<PathBuf> {
    directories.iter().flat_map(|directory| all(directory)).filter(|path| is_served(path)).collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn a_successor_takes_the_socket_that_it_was_configured_with() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("c");
        let text = path.to_str().expect("UTF-8");
        let (first, listener) = bind(Some(text), None).expect("bound");
        assert!(bind(Some(text), None).is_err(), "another relay has it");
        let mut pool = Pool::new(vec![listener.try_clone().expect("a descriptor").into()]);
        assert!(inherit(Some("/elsewhere"), &mut pool).is_none());
        let (second, _same) = inherit(Some(text), &mut pool).expect("a successor takes it");
        first.hand_over();
        assert!(UnixStream::connect(&path).is_ok(), "the successor's stays");
        drop(second);
        assert!(!path.exists());
    }

    #[test]
    fn dead_relays_are_not_found() {
        let dir = tempfile::tempdir().expect("a directory");
        let _alive = UnixListener::bind(of_pid(dir.path(), 1)).expect("bound");
        drop(UnixListener::bind(of_pid(dir.path(), 2)).expect("bound"));
        std::os::unix::fs::symlink(of_pid(dir.path(), 1), of_pid(dir.path(), 3)).expect("a link");
        assert_eq!(alive(&[dir.path().to_owned()]), [of_pid(dir.path(), 1)]);
        remove_dead(dir.path());
        assert!(of_pid(dir.path(), 1).exists() && !of_pid(dir.path(), 2).exists());
    }

    #[test]
    fn a_socket_and_its_directory_are_given_to_the_user_that_the_relay_becomes() {
        let nobody = User { uid: 65534, gid: 65534 };
        if current().uid != 0 {
            return parshall_testkit::skip("giving a control socket to another user", "needs root");
        }
        let dir = tempfile::tempdir().expect("a directory");
        let theirs = dir.path().join("65534");
        create(&theirs, Some(&nobody)).expect("made");
        create(&theirs, Some(&nobody)).expect("it is there");
        let metadata = fs::metadata(&theirs).expect("there");
        assert_eq!((metadata.uid(), metadata.mode() & 0o777), (65534, 0o700));
        assert!(create(&theirs, Some(&User { uid: 65533, gid: 65533 })).is_err(), "of someone else");
        // A process that runs as the user already has a directory in one that may be everybody's.
        create(&dir.path().join("ours"), Some(&current())).expect("made");
        let path = theirs.join("relay-1.sock");
        let (bound, _listener) = bind(path.to_str(), Some(&nobody)).expect("bound");
        bound.give_to(&nobody).expect("given");
        let metadata = fs::metadata(&path).expect("there");
        assert_eq!((metadata.uid(), metadata.gid(), metadata.mode() & 0o777), (65534, 65534, 0o600));
    }
}

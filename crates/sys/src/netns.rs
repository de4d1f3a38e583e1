//! Named network namespaces under `/run/netns`, as of `ip netns`: creates one, runs code in it, removes it on drop, and
//! removes those whose owners died.
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};

use rustix::mount::{MountPropagationFlags, UnmountFlags, mount_bind, mount_bind_recursive, mount_change, unmount};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::owner::{self, Owner};

/// The directory of named namespaces.
pub const DIR: &str = "/run/netns";

/// A network namespace that this process created. Dropping it removes the name; the namespace ends with its last process or
/// descriptor.
#[derive(Debug)]
pub struct NetNs {
    name: String,
    file: File,
}

impl NetNs {
    /// Creates a namespace named `parshall-PID-START-N-TAG`, with its loopback interface up.
    pub fn create(tag: &str) -> io::Result<Self> {
        let name = Owner::this()?.unique_name(tag);
        let path = Path::new(DIR).join(&name);
        prepare_dir()?;
        File::create_new(&path)?;
        // unshare() moves the calling thread, so a new thread calls it.
        let made = std::thread::scope(|scope| {
            scope.spawn(|| make_here(&path)).join().unwrap_or_else(|_| Err(io::Error::other("the thread panicked")))
        });
        match made.and_then(|()| File::open(&path)) {
            Ok(file) => Ok(Self { name, file }),
            Err(error) => {
                remove(&path).ok();
                Err(io::Error::new(error.kind(), format!("making the network namespace {name}: {error}")))
            }
        }
    }

    /// The name under [`DIR`].
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Runs `work` on a new thread inside the namespace and waits for it. Sockets that it opens stay in the namespace.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
        run_in(self.file.as_fd(), work)?
    }
}

impl AsFd for NetNs {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Drop for NetNs {
    fn drop(&mut self) {
        remove(&Path::new(DIR).join(&self.name)).ok();
    }
}

/// Moves the calling thread into a network namespace. EPERM without CAP_SYS_ADMIN.
pub fn enter(netns: BorrowedFd<'_>) -> io::Result<()> {
    Ok(move_into_link_name_space(netns, Some(LinkNameSpaceType::Network))?)
}

/// Runs `work` on a new thread inside the network namespace that `netns` refers to (an open /proc/PID/ns/net or a file of
/// /run/netns), and returns its result. Descriptors that it opens, such as netlink sockets, stay bound to the namespace and
/// may be carried out. EPERM without CAP_SYS_ADMIN.
pub fn run_in<T: Send>(netns: BorrowedFd<'_>, work: impl FnOnce() -> T + Send) -> io::Result<T> {
    // setns() moves the calling thread, and moving back would need the same privilege again. So a new thread does the work.
    std::thread::scope(|scope| {
        let in_netns = move || enter(netns).map(|()| work());
        let thread = std::thread::Builder::new().name("netns".into()).spawn_scoped(scope, in_netns)?;
        thread.join().unwrap_or_else(|_| Err(io::Error::other("the thread inside the namespace panicked")))
    })
}

/// Opens a namespace by its name.
pub fn open(name: &str) -> io::Result<File> {
    crate::nsfs::open_named(&Path::new(DIR).join(name))
}

/// Removes the names that dead owners left and returns them. Processes in them are not touched.
pub fn sweep() -> io::Result<Vec<String>> {
    let dead = owner::leftovers(Path::new(DIR))?;
    for name in &dead {
        remove(&Path::new(DIR).join(name))?;
    }
    Ok(dead)
}

/// Sets a sysctl such as `net.ipv4.tcp_rmem` in the namespace of the calling thread.
pub fn set_sysctl(name: &str, value: &str) -> io::Result<()> {
    // /proc/sys/net is that of the namespace of the accessing thread.
    let path = PathBuf::from("/proc/sys").join(name.replace('.', "/"));
    fs::write(&path, value).map_err(|error| io::Error::new(error.kind(), format!("setting {name}: {error}")))
}

fn make_here(path: &Path) -> io::Result<()> {
    // SAFETY: unshare() takes no pointers; it changes only the calling thread, which ends after this.
    if unsafe { libc::unshare(libc::CLONE_NEWNET) } < 0 {
        return Err(io::Error::last_os_error());
    }
    mount_bind("/proc/thread-self/ns/net", path)?;
    crate::link::set_up("lo")
}

/// Creates the directory as a shared mount, so that names appear and disappear in every mount namespace that has it. `ip
/// netns` does the same; without it a later `ip netns add` would hide our names under a new mount.
fn prepare_dir() -> io::Result<()> {
    let dir = Path::new(DIR);
    fs::create_dir_all(dir)?;
    let share = || mount_change(dir, MountPropagationFlags::SHARED | MountPropagationFlags::REC);
    if share().is_err() {
        mount_bind_recursive(dir, dir)?;
        share()?;
    }
    Ok(())
}

fn remove(path: &Path) -> io::Result<()> {
    // Failure means that nothing was mounted.
    unmount(path, UnmountFlags::DETACH).ok();
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entering_the_own_namespace_works_or_is_not_permitted() {
        let netns = File::open("/proc/self/ns/net").expect("every process has a network namespace");
        match run_in(netns.as_fd(), || 42) {
            Ok(answer) => assert_eq!(answer, 42),
            Err(error) => assert_eq!(error.raw_os_error(), Some(libc::EPERM)),
        }
    }

    #[test]
    fn entering_another_kind_of_file_is_an_error() {
        let file = File::open("/dev/null").expect("/dev/null opens");
        assert!(run_in(file.as_fd(), || ()).is_err());
    }
}

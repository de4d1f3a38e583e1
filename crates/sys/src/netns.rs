//! Named network namespaces under `/run/netns`, as `ip netns` knows them: make one, run code in it, remove it on drop,
//! and remove those whose owners died.
use std::ffi::CString;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::owner::{self, Owner};

/// Where names of namespaces live.
pub const DIR: &str = "/run/netns";

/// A network namespace of this process; dropping it removes the name, and the namespace ends with its last process.
#[derive(Debug)]
pub struct NetNs {
    name: String,
    file: File,
}

impl NetNs {
    /// Makes a namespace named `parshall-PID-START-N-TAG`, with its loopback interface up.
    pub fn create(tag: &str) -> io::Result<Self> {
        let name = Owner::this()?.unique_name(tag);
        let path = Path::new(DIR).join(&name);
        prepare_dir()?;
        File::create_new(&path)?;
        // A thread of its own: unshare() moves the calling thread, and threads have namespaces of their own.
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

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Runs `work` on a new thread inside the namespace and waits for it. Sockets and files it opens stay there.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                enter(self.file.as_fd())?;
                work()
            });
            thread.join().unwrap_or_else(|_| Err(io::Error::other("the thread panicked")))
        })
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

/// Moves the calling thread into a network namespace.
pub fn enter(netns: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: setns() takes no pointers; it changes only the calling thread.
    if unsafe { libc::setns(netns.as_raw_fd(), libc::CLONE_NEWNET) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
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
    // /proc/sys/net shows the namespace of the thread that looks.
    let path = PathBuf::from("/proc/sys").join(name.replace('.', "/"));
    fs::write(&path, value).map_err(|error| io::Error::new(error.kind(), format!("setting {name}: {error}")))
}

fn make_here(path: &Path) -> io::Result<()> {
    // SAFETY: unshare() takes no pointers; it changes only the calling thread, which ends after this.
    if unsafe { libc::unshare(libc::CLONE_NEWNET) } < 0 {
        return Err(io::Error::last_os_error());
    }
    mount(Path::new("/proc/thread-self/ns/net"), path, libc::MS_BIND)?;
    crate::link::set_up("lo")
}

/// The directory is a shared mount, so that names come and go in every mount namespace that sees it (`ip netns` does
/// the same, and without it a later `ip netns add` would hide our names under a new mount).
fn prepare_dir() -> io::Result<()> {
    let dir = Path::new(DIR);
    fs::create_dir_all(dir)?;
    let share = || mount(Path::new(""), dir, libc::MS_SHARED | libc::MS_REC);
    if share().is_err() {
        mount(dir, dir, libc::MS_BIND | libc::MS_REC)?;
        share()?;
    }
    Ok(())
}

fn mount(source: &Path, target: &Path, flags: libc::c_ulong) -> io::Result<()> {
    let source = CString::new(source.as_os_str().as_bytes())?;
    let target = CString::new(target.as_os_str().as_bytes())?;
    // SAFETY: both strings are zero-terminated and live across the call; bind and propagation changes read neither the
    // type nor the data, which may be null.
    let result = unsafe { libc::mount(source.as_ptr(), target.as_ptr(), c"none".as_ptr(), flags, std::ptr::null()) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn remove(path: &Path) -> io::Result<()> {
    let c_path = CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: the string is zero-terminated and lives across the call. Failure means that nothing was mounted.
    unsafe { libc::umount2(c_path.as_ptr(), libc::MNT_DETACH) };
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

//! Opening network namespaces by names that another user may control.
//!
//! An unprivileged user who unshares a mount namespace decides what every path below its root leads to: a FIFO, a device, a
//! symbolic link into our own tree, a FUSE file system whose server never answers. So a name is first resolved without opening
//! anything (O_PATH), what it led to is compared with the namespace file system by device and inode, and only then it is
//! opened, through /proc/self/fd and not by its name again.
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::{AtFlags, Mode, OFlags, ResolveFlags, StatxFlags, makedev, openat, openat2, statx};
use rustix::io::Errno;

/// ioctl that returns the kind of a namespace as its CLONE_NEW* flag (include/uapi/linux/nsfs.h, Linux 4.11).
const NS_GET_NSTYPE: libc::Ioctl = 0xb703;
/// Attempts of a resolution from the cache of names, which any rename on the host can interrupt.
const TRIES: u32 = 8;
/// Resolves a path and opens nothing.
const PLACE: OFlags = OFlags::PATH.union(OFlags::CLOEXEC).union(OFlags::NOFOLLOW);

/// Opens the mount point at `path` below the directory `root`, if it is the namespace with this inode.
///
/// `path` is a mount point as the kernel prints it (/proc/PID/mountinfo). Its directories are in the kernel's cache as long as it
/// is mounted, so no file system is asked for them and none can hold the caller up. Symbolic links are not followed.
///
/// # Errors
/// `NotFound` if the path leads to something else, which has not been opened; `WouldBlock` if a file system would have to be
/// asked for a name on the way.
pub fn open_mounted(root: BorrowedFd<'_>, path: &Path, inode: u64) -> io::Result<File> {
    reopen(&resolve_mounted(root, path, inode)?)
}

/// Whether the mount point at `path` below `root` is the namespace with this inode. Opens nothing, as [`open_mounted`].
pub fn is_mounted(root: BorrowedFd<'_>, path: &Path, inode: u64) -> bool {
    resolve_mounted(root, path, inode).is_ok()
}

/// Opens the network namespace that `path` leads to, over symbolic links if need be. For directories that only root writes to,
/// such as /run/netns: a file system on the way that hangs holds the caller up.
///
/// # Errors
/// `InvalidInput` if it is no network namespace; what it is has not been opened.
pub fn open_named(path: &Path) -> io::Result<File> {
    let no_namespace = || io::Error::new(io::ErrorKind::InvalidInput, "it is no network namespace");
    let found = File::from(resolve_named(path)?);
    if device_and_inode(found.as_fd())?.0 != own_device()? {
        return Err(no_namespace());
    }
    let file = reopen(&found.into())?;
    // SAFETY: this request takes no argument and answers with a number, or -1 on kernels that do not know it.
    let kind = unsafe { libc::ioctl(file.as_raw_fd(), NS_GET_NSTYPE) };
    if kind >= 0 && kind != libc::CLONE_NEWNET { Err(no_namespace()) } else { Ok(file) }
}

/// The inode of the network namespace that `path` leads to, as [`open_named`].
///
/// # Errors
/// Those of [`open_named`].
pub fn inode_named(path: &Path) -> io::Result<u64> {
    Ok(open_named(path)?.metadata()?.ino())
}

/// A descriptor of the directory `path` that serves only to resolve paths below it.
///
/// # Errors
/// Those of open(2).
pub fn root(path: &Path) -> io::Result<OwnedFd> {
    let options = libc::O_PATH | libc::O_DIRECTORY;
    Ok(File::options().read(true).custom_flags(options).open(path)?.into())
}

fn resolve_mounted(root: BorrowedFd<'_>, path: &Path, inode: u64) -> io::Result<OwnedFd> {
    let below = path.strip_prefix("/").unwrap_or(path);
    let found = resolve_below(root, below)?;
    if device_and_inode(found.as_fd())? == (own_device()?, inode) {
        return Ok(found);
    }
    Err(io::Error::new(io::ErrorKind::NotFound, "the path leads to something else by now"))
}

fn resolve_below(root: BorrowedFd<'_>, path: &Path) -> io::Result<OwnedFd> {
    let strict = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    for _ in 0..TRIES {
        match openat2(root, path, PLACE, Mode::empty(), strict | ResolveFlags::CACHED) {
            Err(Errno::AGAIN) => {}
            // Linux before 5.12 does not know RESOLVE_CACHED.
            Err(Errno::INVAL) => return Ok(openat2(root, path, PLACE, Mode::empty(), strict)?),
            // Linux before 5.6, or a filter of system calls that is older: a file system on the way may be waited for.
            Err(Errno::NOSYS | Errno::PERM) => return Ok(openat(root, path, PLACE, Mode::empty())?),
            found => return Ok(found?),
        }
    }
    Err(Errno::AGAIN.into())
}

fn resolve_named(path: &Path) -> io::Result<OwnedFd> {
    Ok(File::options().read(true).custom_flags(libc::O_PATH).open(path)?.into())
}

/// Device and inode as the kernel has them: a FUSE server is not asked (AT_STATX_DONT_SYNC).
fn device_and_inode(file: BorrowedFd<'_>) -> io::Result<(u64, u64)> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::NO_AUTOMOUNT | AtFlags::STATX_DONT_SYNC;
    let answer = statx(file, "", flags, StatxFlags::INO)?;
    Ok((makedev(answer.stx_dev_major, answer.stx_dev_minor), answer.stx_ino))
}

/// The device of the namespace file system, of which the kernel has one.
fn own_device() -> io::Result<u64> {
    Ok(fs::metadata("/proc/self/ns/net")?.dev())
}

/// Opens what a descriptor refers to, whatever its name leads to by now.
fn reopen(found: &OwnedFd) -> io::Result<File> {
    File::open(format!("/proc/self/fd/{}", found.as_raw_fd()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::path::PathBuf;

    use super::*;

    /// A directory that goes with its owner.
    struct Directory(PathBuf);

    impl Directory {
        fn new(tag: &str) -> Self {
            let path = std::env::temp_dir().join(format!("parshall-nsfs-{}-{tag}", std::process::id()));
            fs::create_dir(&path).expect("a directory of ours");
            Self(path)
        }

        fn fifo(&self) -> PathBuf {
            let path = self.0.join("fifo");
            let mode = Mode::RUSR | Mode::WUSR;
            rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, mode, 0)
                .expect("a FIFO can be made");
            path
        }
    }

    impl Drop for Directory {
        fn drop(&mut self) {
            fs::remove_dir_all(&self.0).ok();
        }
    }

    fn top() -> OwnedFd {
        root(Path::new("/")).expect("the root opens")
    }

    #[test]
    fn neither_a_fifo_nor_a_device_is_opened() {
        let directory = Directory::new("fifo");
        for path in [directory.fifo(), PathBuf::from("/dev/null"), PathBuf::from("/dev/tty")] {
            // A FIFO that is opened for reading blocks until somebody writes.
            let Ok(inode) = fs::symlink_metadata(&path).map(|metadata| metadata.ino()) else { continue };
            let refused =
                open_mounted(top().as_fd(), &path, inode).expect_err("its inode is right and its device is not");
            assert_eq!(refused.kind(), io::ErrorKind::NotFound, "{path:?}: {refused}");
            assert_eq!(open_named(&path).expect_err("no namespace").kind(), io::ErrorKind::InvalidInput, "{path:?}");
        }
    }

    #[test]
    fn without_openat2_a_path_resolves_too() {
        let null = openat(top(), "dev/null", PLACE, Mode::empty()).expect("it is there");
        let inode = fs::metadata("/dev/null").expect("it is there").ino();
        assert_eq!(device_and_inode(null.as_fd()).expect("found").1, inode);
    }

    #[test]
    fn links_lead_only_where_root_has_made_them() {
        let directory = Directory::new("links");
        let (link, own) = (directory.0.join("link"), Path::new("/proc/self/ns/net"));
        symlink(own, &link).expect("a link can be made");
        let inode = fs::metadata(own).expect("ours").ino();
        assert!(open_mounted(top().as_fd(), &link, inode).is_err(), "links are not followed");
        assert!(!is_mounted(top().as_fd(), &directory.0.join("link/../link"), inode));
        assert_eq!(inode_named(&link).expect("a link in a directory of root's may be followed"), inode);
        assert_eq!(open_named(Path::new("/proc/self/ns/mnt")).expect_err("mounts").kind(), io::ErrorKind::InvalidInput);
    }
}

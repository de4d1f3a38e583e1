//! Opening network namespaces by names that another user may control.
//!
//! An unprivileged user who unshares a mount namespace decides what every path below its root leads to: a FIFO, a device, a
//! symbolic link into our own tree, a FUSE file system whose server never answers. So a name is first resolved without opening
//! the file (O_PATH). The device and inode of the file are compared with those of a namespace. Only then it is opened, through
//! /proc/self/fd and not by its name again.
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::{AtFlags, Mode, OFlags, ResolveFlags, StatxFlags, makedev, openat, openat2, statx};
use rustix::io::Errno;

/// ioctl that returns the kind of a namespace as its CLONE_NEW* flag (include/uapi/linux/nsfs.h, Linux 4.11).
const NS_GET_NSTYPE: libc::Ioctl = 0xb703;
/// Attempts to resolve a path from the dentry cache alone (RESOLVE_CACHED), which any rename on the host can make fail.
const TRIES: u32 = 8;
/// Flags that resolve a path without opening the file.
const PLACE: OFlags = OFlags::PATH.union(OFlags::CLOEXEC).union(OFlags::NOFOLLOW);

/// Opens the mount point at `path` below the directory `root`, if it is the namespace with this inode.
///
/// `path` is a mount point as the kernel prints it (/proc/PID/mountinfo). Its directories are in the dentry cache as long as it
/// is mounted, so resolving it asks no file system and cannot block. Symbolic links are not followed.
///
/// # Errors
/// `NotFound` if the path leads to something else, which has not been opened. `WouldBlock` if a directory of the path is not in
/// the dentry cache.
pub fn open_mounted(root: BorrowedFd<'_>, path: &Path, inode: u64) -> io::Result<File> {
    reopen(&resolve_mounted(root, path, inode)?)
}

/// Whether the mount point at `path` below `root` is the namespace with this inode. Resolves as [`open_mounted`] does, and
/// does not open it.
pub fn is_mounted(root: BorrowedFd<'_>, path: &Path, inode: u64) -> bool {
    resolve_mounted(root, path, inode).is_ok()
}

/// Opens the network namespace that `path` leads to, following symbolic links. For directories that only root can write, such
/// as /run/netns: it blocks if a file system on the path does not respond.
///
/// # Errors
/// `InvalidInput` if the file is not a network namespace. A file outside the namespace file system has not been opened.
pub fn open_named(path: &Path) -> io::Result<File> {
    let no_namespace = || io::Error::new(io::ErrorKind::InvalidInput, "not a network namespace");
    let found = File::from(resolve_named(path)?);
    if device_and_inode(found.as_fd())?.0 != own_device()? {
        return Err(no_namespace());
    }
    let file = reopen(&found.into())?;
    // SAFETY: this request takes no argument and returns a number, or -1 on kernels that do not have it.
    let kind = unsafe { libc::ioctl(file.as_raw_fd(), NS_GET_NSTYPE) };
    if kind >= 0 && kind != libc::CLONE_NEWNET { Err(no_namespace()) } else { Ok(file) }
}

/// The inode of the network namespace that `path` leads to, resolved as by [`open_named`].
///
/// # Errors
/// Those of [`open_named`].
pub fn inode_named(path: &Path) -> io::Result<u64> {
    Ok(open_named(path)?.metadata()?.ino())
}

/// Opens the directory `path` only to resolve paths below it (O_PATH).
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
    Err(io::Error::new(io::ErrorKind::NotFound, "the path now leads to something else"))
}

fn resolve_below(root: BorrowedFd<'_>, path: &Path) -> io::Result<OwnedFd> {
    let strict = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    for _ in 0..TRIES {
        match openat2(root, path, PLACE, Mode::empty(), strict | ResolveFlags::CACHED) {
            Err(Errno::AGAIN) => {}
            // Linux before 5.12 has no RESOLVE_CACHED.
            Err(Errno::INVAL) => return Ok(openat2(root, path, PLACE, Mode::empty(), strict)?),
            // Linux before 5.6, or an older seccomp filter. This call may block in a file system on the path.
            Err(Errno::NOSYS | Errno::PERM) => return Ok(openat(root, path, PLACE, Mode::empty())?),
            found => return Ok(found?),
        }
    }
    Err(Errno::AGAIN.into())
}

fn resolve_named(path: &Path) -> io::Result<OwnedFd> {
    Ok(File::options().read(true).custom_flags(libc::O_PATH).open(path)?.into())
}

/// Device and inode from the kernel's cache, without a request to a FUSE server (AT_STATX_DONT_SYNC).
fn device_and_inode(file: BorrowedFd<'_>) -> io::Result<(u64, u64)> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::NO_AUTOMOUNT | AtFlags::STATX_DONT_SYNC;
    let answer = statx(file, "", flags, StatxFlags::INO)?;
    Ok((makedev(answer.stx_dev_major, answer.stx_dev_minor), answer.stx_ino))
}

/// The device number of the namespace file system. The kernel has only one.
fn own_device() -> io::Result<u64> {
    Ok(fs::metadata("/proc/self/ns/net")?.dev())
}

/// Opens the file that a descriptor refers to, independently of its name.
fn reopen(found: &OwnedFd) -> io::Result<File> {
    File::open(format!("/proc/self/fd/{}", found.as_raw_fd()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::path::PathBuf;

    use super::*;

    /// A temporary directory, removed on drop.
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
    fn links_are_followed_only_in_directories_of_root() {
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

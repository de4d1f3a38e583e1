//! Opens files whose name or content another user controls, such as the files that a process has mapped.
use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// A file that is pinned without being opened (O_PATH). Replacing its name later has no effect on it.
#[derive(Debug)]
pub struct Pinned(File);

impl Pinned {
    /// Resolves the path once, without following a link in its last component.
    ///
    /// # Errors
    /// Those of open(2).
    pub fn at(path: &Path) -> io::Result<Self> {
        OpenOptions::new().read(true).custom_flags(libc::O_PATH | libc::O_NOFOLLOW).open(path).map(Self)
    }

    /// Its metadata.
    ///
    /// # Errors
    /// Those of fstat(2).
    pub fn metadata(&self) -> io::Result<Metadata> {
        self.0.metadata()
    }

    /// A path that leads to exactly this file, as long as this value lives.
    pub fn path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.0.as_raw_fd()))
    }
}

/// Opens a file for reading, if it is a regular file.
///
/// The path is resolved once, without opening the file (O_PATH) and without following a link in its last component. The file is
/// checked and then opened through /proc/self/fd. So replacing the name meanwhile has no effect: a FIFO never blocks the caller,
/// and a device is never opened.
///
/// `owner` is, besides root, the only user who may own the file. None if the owner does not matter, as for a file that a process
/// has mapped.
///
/// # Errors
/// Those of open(2); `PermissionDenied` for a wrong owner, `InvalidInput` for anything but a regular file.
pub fn open_regular(path: &Path, owner: Option<u32>) -> io::Result<File> {
    reopen_regular(&Pinned::at(path)?, owner)
}

/// As [`open_regular`], for a path in /proc whose last component is a magic link, which is followed: it leads to the file itself
/// and not to a name.
///
/// # Errors
/// As [`open_regular`].
pub fn open_regular_link(link: &Path) -> io::Result<File> {
    let found = OpenOptions::new().read(true).custom_flags(libc::O_PATH).open(link)?;
    reopen_regular(&Pinned(found), None)
}

fn reopen_regular(pinned: &Pinned, owner: Option<u32>) -> io::Result<File> {
    let found = pinned.metadata()?;
    if !found.is_file() {
        return Err(io::Error::new(ErrorKind::InvalidInput, "not a regular file"));
    }
    if owner.is_some_and(|owner| found.uid() != 0 && found.uid() != owner) {
        return Err(io::Error::new(ErrorKind::PermissionDenied, "the file belongs to another user"));
    }
    // O_NONBLOCK: without it, open() waits for the holder of a lease on the file (fcntl(2), F_SETLEASE).
    OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(pinned.path())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{chown, symlink};
    use std::process::Command;

    #[test]
    fn only_a_regular_file_is_opened() {
        let directory = tempfile::tempdir().expect("a directory");
        let at = |name: &str| directory.path().join(name);
        std::fs::write(at("plain"), "text").expect("writable");
        symlink(at("plain"), at("link")).expect("a link");
        assert!(Command::new("mkfifo").arg(at("fifo")).status().is_ok_and(|status| status.success()));
        assert!(open_regular(&at("plain"), None).is_ok());
        // An open of the FIFO would wait for a writer that never comes.
        for name in ["link", "fifo", "."] {
            let error = open_regular(&at(name), None).expect_err(name);
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{name}");
        }
        assert!(open_regular(Path::new("/dev/zero"), None).is_err());
        assert!(open_regular_link(&at("fifo")).is_err());
        assert!(open_regular_link(Path::new("/proc/self/exe")).is_ok());
        assert_eq!(open_regular(&at("absent"), None).expect_err("absent").kind(), ErrorKind::NotFound);
    }

    #[test]
    fn a_file_of_a_third_user_is_refused() {
        if !parshall_testkit::root("the owner of a foreign file") {
            return;
        }
        let file = tempfile::NamedTempFile::new().expect("a file");
        chown(file.path(), Some(1234), None).expect("root may");
        assert!(open_regular(file.path(), Some(1234)).is_ok());
        let error = open_regular(file.path(), Some(1235)).expect_err("of another user");
        assert_eq!(error.kind(), ErrorKind::PermissionDenied);
        chown(file.path(), Some(0), None).expect("root may");
        assert!(open_regular(file.path(), Some(1235)).is_ok());
    }
}

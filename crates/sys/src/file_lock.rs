//! A lock on a file that is released when its holder ends: flock(2).
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

/// An exclusive lock of a file. It is released when this is dropped, and when the process is killed.
#[derive(Debug)]
pub struct FileLock(File);

impl FileLock {
    /// Locks the file at `path` without waiting: None if another process holds the lock. A missing file is created with mode
    /// 0600. A symbolic link is not followed, and a FIFO not waited for.
    ///
    /// # Errors
    /// If the file cannot be opened or its file system has no locks.
    pub fn take(path: &Path) -> io::Result<Option<FileLock>> {
        let mut options = OpenOptions::new();
        options.create(true).truncate(false).write(true).mode(0o600).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
        Self::of(options.open(path)?)
    }

    /// As [`FileLock::take`], for a file that its holders remove ([`FileLock::remove`]): a file that was removed between its opening
    /// and its locking locks nobody else out, and the one that is there now is locked instead.
    ///
    /// # Errors
    /// As [`FileLock::take`].
    pub fn take_removable(path: &Path) -> io::Result<Option<FileLock>> {
        loop {
            match Self::take(path)? {
                Some(lock) if !lock.is_at(path) => {}
                taken => return Ok(taken),
            }
        }
    }

    /// Replaces the content of the file, such as by a description of the holder.
    ///
    /// # Errors
    /// Those of ftruncate(2) and pwrite(2).
    pub fn write(&self, content: &[u8]) -> io::Result<()> {
        self.0.set_len(0)?;
        self.0.write_all_at(content, 0)
    }

    /// Removes the file at `path`, if it is the one that is locked. The lock is held until this value is dropped.
    pub fn remove(&self, path: &Path) {
        if self.is_at(path) {
            std::fs::remove_file(path).ok();
        }
    }

    fn is_at(&self, path: &Path) -> bool {
        let (Ok(there), Ok(own)) = (std::fs::symlink_metadata(path), self.0.metadata()) else { return false };
        (there.dev(), there.ino()) == (own.dev(), own.ino())
    }

    /// Locks a file that is there and may not be written to, such as one of /proc, as [`FileLock::take`] does.
    ///
    /// # Errors
    /// If the file cannot be opened or its file system has no locks.
    pub fn take_existing(path: &Path) -> io::Result<Option<FileLock>> {
        Self::of(OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)?)
    }

    fn of(file: File) -> io::Result<Option<FileLock>> {
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(FileLock(file))),
            Err(Errno::WOULDBLOCK) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}

impl Drop for FileLock {
    fn drop(&mut self) {
        // Closing would not do: a process that is being started holds a copy of every descriptor until its exec.
        flock(&self.0, FlockOperation::Unlock).ok();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_is_not_followed_and_the_file_is_for_its_owner() {
        use std::os::unix::fs::PermissionsExt;
        let path = std::env::temp_dir().join(format!("parshall-lock-mode-{}", std::process::id()));
        let link = path.with_extension("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        FileLock::take(&link).expect_err("a link");
        assert!(!path.exists(), "nothing was made where the link leads to");
        let _lock = FileLock::take(&path).unwrap().unwrap();
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        std::fs::remove_file(&path).unwrap();
        std::fs::remove_file(&link).unwrap();
    }

    #[test]
    fn a_file_that_its_holder_removed_locks_nobody_out() {
        let path = std::env::temp_dir().join(format!("parshall-lock-removed-{}", std::process::id()));
        let first = FileLock::take_removable(&path).unwrap().unwrap();
        first.write(b"a longer description").unwrap();
        first.write(b"first").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"first");
        assert!(FileLock::take_removable(&path).unwrap().is_none());
        first.remove(&path);
        assert!(!path.exists());
        let second = FileLock::take_removable(&path).unwrap().expect("the next holder has another file");
        first.remove(&path);
        assert!(path.exists(), "a holder removes its own file only");
        second.remove(&path);
        assert!(!path.exists());
    }

    #[test]
    fn a_process_can_be_locked_by_its_file() {
        let path = format!("/proc/{}/stat", std::process::id());
        let lock = FileLock::take_existing(Path::new(&path)).unwrap().unwrap();
        assert!(FileLock::take_existing(Path::new(&path)).unwrap().is_none());
        drop(lock);
        assert!(FileLock::take_existing(Path::new(&path)).unwrap().is_some());
        assert!(FileLock::take_existing(Path::new("/proc/0/stat")).is_err());
    }

    #[test]
    fn a_second_holder_waits_for_the_first_to_go() {
        let path = std::env::temp_dir().join(format!("parshall-lock-{}", std::process::id()));
        let first = FileLock::take(&path).unwrap().unwrap();
        assert!(FileLock::take(&path).unwrap().is_none());
        let copy = first.0.try_clone().unwrap();
        drop(first);
        assert!(FileLock::take(&path).unwrap().is_some(), "a copy of the descriptor does not keep it");
        drop(copy);
        std::fs::remove_file(&path).unwrap();
    }
}

//! Files of sinks, with mode 0600. Every change of the disk passes through here, so that tests can make any of them fail, or be
//! the last one of a process.
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

#[cfg(test)]
pub mod faults;

/// Only the owner may read the connections of a host, also if the umask allows more.
const MODE: u32 = 0o600;

/// Creates, opens, renames and removes files.
#[derive(Debug, Clone, Default)]
pub struct Disk {
    #[cfg(test)]
    faults: Option<std::sync::Arc<faults::Faults>>,
}

/// A change of the disk, which a test can make fail.
#[cfg(test)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    Create,
    /// A write of this many bytes.
    Write(usize),
    Truncate,
    Sync,
    Rename,
    Remove,
    SyncDirectory,
}

impl Disk {
    /// Called before each step. A test can make it fail.
    #[cfg(test)]
    fn before(&self, step: Step, path: &Path) -> io::Result<()> {
        self.faults.as_ref().map_or(Ok(()), |faults| faults.before(step, path))
    }

    /// Creates a file, which must not exist.
    ///
    /// # Errors
    /// Those of open(2).
    pub fn create(&self, path: &Path) -> io::Result<DiskFile> {
        #[cfg(test)]
        self.before(Step::Create, path)?;
        let file = OpenOptions::new().read(true).write(true).create_new(true).mode(MODE).open(path)?;
        Ok(self.file(file, path))
    }

    /// Opens a file of an earlier process. Does not follow a symbolic link, and does not block on a FIFO.
    ///
    /// # Errors
    /// Those of open(2), and `InvalidInput` if it is not a regular file.
    pub fn open(&self, path: &Path) -> io::Result<DiskFile> {
        let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
        let file = OpenOptions::new().read(true).write(true).custom_flags(flags).open(path)?;
        if !file.metadata()?.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file"));
        }
        Ok(self.file(file, path))
    }

    /// Renames a file.
    ///
    /// # Errors
    /// Those of rename(2).
    pub fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        #[cfg(test)]
        self.before(Step::Rename, from)?;
        fs::rename(from, to)
    }

    /// Removes a file.
    ///
    /// # Errors
    /// Those of unlink(2).
    pub fn remove(&self, path: &Path) -> io::Result<()> {
        #[cfg(test)]
        self.before(Step::Remove, path)?;
        fs::remove_file(path)
    }

    /// Syncs a directory. Only then a new name in it survives a loss of power.
    ///
    /// # Errors
    /// Those of fsync(2).
    pub fn sync_directory(&self, path: &Path) -> io::Result<()> {
        #[cfg(test)]
        self.before(Step::SyncDirectory, path)?;
        File::open(path)?.sync_all()
    }

    #[cfg(test)]
    fn file(&self, file: File, path: &Path) -> DiskFile {
        DiskFile { file, disk: self.clone(), path: path.to_owned() }
    }

    #[cfg(not(test))]
    #[expect(clippy::unused_self, reason = "tests make steps fail")]
    fn file(&self, file: File, _: &Path) -> DiskFile {
        DiskFile { file }
    }
}

#[derive(Debug)]
pub struct DiskFile {
    file: File,
    #[cfg(test)]
    disk: Disk,
    #[cfg(test)]
    path: std::path::PathBuf,
}

impl DiskFile {
    /// Opens the same file for direct writes (O_DIRECT). `None` if the file system does not support them.
    pub fn direct(&self) -> Option<Self> {
        // By its descriptor, because its name may be another file by now.
        let same = format!("/proc/self/fd/{}", self.file.as_raw_fd());
        let file = OpenOptions::new().write(true).custom_flags(libc::O_DIRECT).open(same).ok()?;
        Some(Self {
            file,
            #[cfg(test)]
            disk: self.disk.clone(),
            #[cfg(test)]
            path: self.path.clone(),
        })
    }

    /// Writes all bytes at an offset.
    ///
    /// # Errors
    /// Those of pwrite(2). A part of the bytes may have been written.
    pub fn write_all_at(&self, bytes: &[u8], at: u64) -> io::Result<()> {
        #[cfg(test)]
        if !bytes.is_empty()
            && let Err(error) = self.disk.before(Step::Write(bytes.len()), &self.path)
        {
            // A full disk and a killed process leave a part of the write.
            if !self.disk.faults.as_ref().is_some_and(|faults| faults.is_over()) {
                self.file.write_all_at(&bytes[..bytes.len() / 2], at)?;
            }
            return Err(error);
        }
        self.file.write_all_at(bytes, at)
    }

    /// Truncates the file.
    ///
    /// # Errors
    /// Those of ftruncate(2).
    pub fn set_len(&self, bytes: u64) -> io::Result<()> {
        #[cfg(test)]
        self.disk.before(Step::Truncate, &self.path)?;
        self.file.set_len(bytes)
    }

    /// Syncs its data and its length.
    ///
    /// # Errors
    /// Those of fdatasync(2). Written data may be lost then, and another fdatasync would not report it.
    pub fn sync(&self) -> io::Result<()> {
        #[cfg(test)]
        self.disk.before(Step::Sync, &self.path)?;
        self.file.sync_data()
    }

    /// Fills `bytes` from an offset.
    ///
    /// # Errors
    /// Those of pread(2), and `UnexpectedEof`.
    pub fn read_exact_at(&self, bytes: &mut [u8], at: u64) -> io::Result<()> {
        self.file.read_exact_at(bytes, at)
    }

    /// The length of the file.
    ///
    /// # Errors
    /// Those of fstat(2).
    pub fn bytes(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    /// Replaces the file, and returns the one before.
    #[cfg(test)]
    pub fn replace(&mut self, file: File) -> File {
        std::mem::replace(&mut self.file, file)
    }
}

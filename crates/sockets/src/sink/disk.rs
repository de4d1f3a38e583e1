//! The disk as sinks see it: files for their owner only (mode 0600), and every change of the disk in one place, so that tests can
//! let any of them fail or be the last one of a process.
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

#[cfg(test)]
pub mod faults;

/// Nobody but the owner reads what sockets talk to whom, whatever the umask says.
const MODE: u32 = 0o600;

/// Where files are made, renamed and removed.
#[derive(Debug, Clone, Default)]
pub struct Disk {
    #[cfg(test)]
    faults: Option<std::sync::Arc<faults::Faults>>,
}

/// What is done to a disk: what a test's fault may strike.
#[cfg(test)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// A file is made.
    Create,
    /// So many bytes are written.
    Write(usize),
    /// A file is cut.
    Cut,
    /// A file's bytes are brought to the disk.
    Sync,
    /// A file gets another name.
    Rename,
    /// A file is removed.
    Remove,
    /// The names in a directory are brought to the disk.
    SyncDirectory,
}

impl Disk {
    /// Asked before each step: a test may let it fail.
    #[cfg(test)]
    fn before(&self, step: Step, path: &Path) -> io::Result<()> {
        self.faults.as_ref().map_or(Ok(()), |faults| faults.before(step, path))
    }

    /// Makes a file, which must not be there yet.
    ///
    /// # Errors
    /// Those of open(2).
    pub fn create(&self, path: &Path) -> io::Result<DiskFile> {
        #[cfg(test)]
        self.before(Step::Create, path)?;
        let file = OpenOptions::new().read(true).write(true).create_new(true).mode(MODE).open(path)?;
        Ok(self.file(file, path))
    }

    /// Opens a file of an earlier process. A link in its place is not followed, and a FIFO not waited for.
    ///
    /// # Errors
    /// Those of open(2), and `InvalidInput` if it is no regular file.
    pub fn open(&self, path: &Path) -> io::Result<DiskFile> {
        let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
        let file = OpenOptions::new().read(true).write(true).custom_flags(flags).open(path)?;
        if !file.metadata()?.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no regular file"));
        }
        Ok(self.file(file, path))
    }

    /// Gives a file another name.
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

    /// Brings the names in a directory to the disk: a new name outlives a loss of power only after this.
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
    #[expect(clippy::unused_self, reason = "tests let steps fail")]
    fn file(&self, file: File, _: &Path) -> DiskFile {
        DiskFile { file }
    }
}

/// An open file.
#[derive(Debug)]
pub struct DiskFile {
    file: File,
    #[cfg(test)]
    disk: Disk,
    #[cfg(test)]
    path: std::path::PathBuf,
}

impl DiskFile {
    /// The same file, opened for direct writes; none where the file system has none.
    pub fn direct(&self) -> Option<Self> {
        // By its descriptor: by its name it might be another one by now.
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

    /// Writes all of it there.
    ///
    /// # Errors
    /// Those of pwrite(2); a part of it may have been written.
    pub fn write_all_at(&self, bytes: &[u8], at: u64) -> io::Result<()> {
        #[cfg(test)]
        if !bytes.is_empty()
            && let Err(error) = self.disk.before(Step::Write(bytes.len()), &self.path)
        {
            // As a disk that fills up and a process that is killed do: a part of it is there.
            if !self.disk.faults.as_ref().is_some_and(|faults| faults.is_over()) {
                self.file.write_all_at(&bytes[..bytes.len() / 2], at)?;
            }
            return Err(error);
        }
        self.file.write_all_at(bytes, at)
    }

    /// Cuts the file.
    ///
    /// # Errors
    /// Those of ftruncate(2).
    pub fn set_len(&self, bytes: u64) -> io::Result<()> {
        #[cfg(test)]
        self.disk.before(Step::Cut, &self.path)?;
        self.file.set_len(bytes)
    }

    /// Brings its bytes and its length to the disk.
    ///
    /// # Errors
    /// Those of fdatasync(2): some of what was written may be lost, and another attempt would not say so.
    pub fn sync(&self) -> io::Result<()> {
        #[cfg(test)]
        self.disk.before(Step::Sync, &self.path)?;
        self.file.sync_data()
    }

    /// Reads exactly so many bytes from there.
    ///
    /// # Errors
    /// Those of pread(2), and the file's end.
    pub fn read_exact_at(&self, bytes: &mut [u8], at: u64) -> io::Result<()> {
        self.file.read_exact_at(bytes, at)
    }

    /// How long it is.
    ///
    /// # Errors
    /// Those of fstat(2).
    pub fn bytes(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    /// Puts another file behind the same descriptor, and returns the one that was there.
    #[cfg(test)]
    pub fn replace(&mut self, file: File) -> File {
        std::mem::replace(&mut self.file, file)
    }
}

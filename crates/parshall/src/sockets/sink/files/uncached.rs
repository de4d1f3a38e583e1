//! A file that grows at its end without going through the page cache, where the file system can (O_DIRECT): nobody reads it
//! soon, so its pages would only push out those of the services on the host, and taking them costs several times what handing
//! the bytes to the device does.
//!
//! Such writes are of whole blocks. What is behind the last whole block is written in the usual way, and again with the block
//! that it becomes part of: after every append the file is complete, for readers and for whoever finds it after a crash.
//! Bytes that stand in memory as they will in the file, by blocks, are written from where they are: bringing them from the CPU
//! that encoded them to the one that writes would cost as much as encoding. See [`Places`].
use std::fs::{File, OpenOptions};
use std::io::{self, IoSlice, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A multiple of what any device asks for, in the file and in memory.
const BLOCK: usize = 4096;
/// Bytes that are copied and written together where they do not stand right.
const STAGE: usize = 256 << 10;

/// How far what is offered and what is in the file lie apart, modulo a block: told by who writes, used by who encodes. A guess
/// that a new file or a lost chunk makes wrong for some chunks, which are copied then.
#[derive(Debug, Clone, Default)]
pub struct Places(Arc<AtomicU64>);

impl Places {
    /// Prepares an empty buffer: from where it says on, bytes stand as they will in the file, when `offered` came before them.
    pub fn prepare(&self, buffer: &mut Vec<u8>, offered: u64) -> usize {
        buffer.reserve(2 * BLOCK);
        let place = offered.wrapping_add(self.0.load(Ordering::Relaxed)) % BLOCK as u64;
        let from = buffer.as_ptr().align_offset(BLOCK) + place as usize;
        buffer.resize(from, 0);
        from
    }

    /// Tells that the file goes on at `at` with what was offered after `offered` bytes.
    pub fn tell(&self, offered: u64, at: u64) {
        self.0.store(at.wrapping_sub(offered), Ordering::Relaxed);
    }
}

/// The file.
#[derive(Debug)]
pub struct Uncached {
    file: File,
    /// The same file, opened for direct writes; none where they are refused.
    direct: Option<File>,
    bytes: u64,
    /// Holds a stretch of the file from the last whole block on, at an aligned place.
    stage: Vec<u8>,
    aligned: usize,
    /// What is behind the last whole block.
    rest: Vec<u8>,
}

impl Uncached {
    /// Makes the file, which must not be there yet.
    ///
    /// # Errors
    /// Those of making a file.
    pub fn create(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(path)?;
        let direct = OpenOptions::new().write(true).custom_flags(libc::O_DIRECT).open(path).ok();
        let stage = vec![0; if direct.is_some() { STAGE + BLOCK } else { 0 }];
        let aligned = stage.as_ptr().align_offset(BLOCK);
        Ok(Self { file, direct, bytes: 0, stage, aligned, rest: Vec::with_capacity(BLOCK) })
    }

    /// How long it is.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Appends all of it or nothing.
    ///
    /// # Errors
    /// The write failed, and the file is as it was.
    pub fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        let written = match self.append_direct(bytes) {
            Err(error) if is_refusal(&error) => {
                self.direct = None;
                self.file.write_all_at(bytes, self.bytes)
            }
            written => written,
        };
        if let Err(error) = written {
            // What stays behind if this fails too is overwritten by the next attempt.
            let _ = self.file.set_len(self.bytes);
            return Err(error);
        }
        self.bytes += bytes.len() as u64;
        self.keep_rest(bytes);
        Ok(())
    }

    /// Takes back what was appended after it had this length.
    ///
    /// # Errors
    /// The file could not be cut, or its end not be read.
    pub fn shorten(&mut self, bytes: u64) -> io::Result<()> {
        self.file.set_len(bytes)?;
        let length = bytes % BLOCK as u64;
        self.rest.resize(length as usize, 0);
        self.file.read_exact_at(&mut self.rest, bytes - length)?;
        self.bytes = bytes;
        Ok(())
    }

    /// Puts another file behind the same name, and returns the one that was there.
    #[cfg(test)]
    pub fn replaced(&mut self, file: File) -> File {
        std::mem::replace(&mut self.file, file)
    }

    fn append_direct(&mut self, bytes: &[u8]) -> io::Result<()> {
        let Some(direct) = &self.direct else { return self.file.write_all_at(bytes, self.bytes) };
        let at = self.bytes - self.rest.len() as u64;
        let stage = &mut self.stage[self.aligned..][..STAGE];
        stage[..self.rest.len()].copy_from_slice(&self.rest);
        // Up to the next whole block.
        let first = (BLOCK - self.rest.len()) % BLOCK;
        let stands_right = bytes.len() > first && bytes[first..].as_ptr().align_offset(BLOCK) == 0;
        let written = if stands_right {
            let (head, body) = bytes.split_at(first);
            stage[self.rest.len()..][..first].copy_from_slice(head);
            let body = &body[..body.len() - body.len() % BLOCK];
            write_both_at(direct, &stage[..self.rest.len() + first], body, at)?
        } else {
            write_staged_at(direct, stage, self.rest.len(), bytes, at)?
        };
        let end = self.bytes + bytes.len() as u64;
        let left = bytes.len().min((end - at - written) as usize);
        self.file.write_all_at(&bytes[bytes.len() - left..], end - left as u64)
    }

    fn keep_rest(&mut self, appended: &[u8]) {
        let length = (self.bytes % BLOCK as u64) as usize;
        if length > appended.len() {
            self.rest.extend_from_slice(appended);
        } else {
            self.rest.clear();
            self.rest.extend_from_slice(&appended[appended.len() - length..]);
        }
    }
}

/// Writes two runs of whole blocks, one after the other, and returns how many bytes they are.
fn write_both_at(mut file: &File, first: &[u8], second: &[u8], at: u64) -> io::Result<u64> {
    file.seek(SeekFrom::Start(at))?;
    let mut slices = &mut [IoSlice::new(first), IoSlice::new(second)][..];
    IoSlice::advance_slices(&mut slices, 0);
    while !slices.is_empty() {
        match file.write_vectored(slices) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => IoSlice::advance_slices(&mut slices, written),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok((first.len() + second.len()) as u64)
}

/// Writes what the stage holds and then `bytes`, but for what is behind the last whole block; returns how much was written.
fn write_staged_at(file: &File, stage: &mut [u8], mut filled: usize, mut bytes: &[u8], at: u64) -> io::Result<u64> {
    let mut written = 0;
    loop {
        let (now, later) = bytes.split_at(bytes.len().min(stage.len() - filled));
        stage[filled..][..now.len()].copy_from_slice(now);
        filled += now.len();
        let whole = filled - filled % BLOCK;
        file.write_all_at(&stage[..whole], at + written)?;
        written += whole as u64;
        if later.is_empty() {
            return Ok(written);
        }
        // There is more than the stage has room for, so it was full.
        (bytes, filled) = (later, 0);
    }
}

/// Whether the file system cannot write so after all.
fn is_refusal(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EINVAL | libc::EOPNOTSUPP))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Appends of these lengths leave the same bytes as one write would, after each of them.
    fn check(directory: &Path, lengths: &[usize], is_moved: bool) {
        let places = Places::default();
        let path = directory.join("file");
        let mut file = Uncached::create(&path).unwrap();
        let mut wanted = Vec::new();
        for (turn, length) in lengths.iter().enumerate() {
            let mut buffer = Vec::new();
            let from = places.prepare(&mut buffer, wanted.len() as u64);
            buffer.extend((0..*length).map(|at| (at * 31 + turn) as u8));
            let buffer = if is_moved { [&[0][..], &buffer].concat() } else { buffer };
            let bytes = &buffer[from + usize::from(is_moved)..];
            file.append(bytes).unwrap();
            wanted.extend_from_slice(bytes);
            assert!(std::fs::read(&path).unwrap() == wanted, "append {turn} of {lengths:?}");
            assert_eq!(file.bytes(), wanted.len() as u64);
        }
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn any_appends_leave_what_one_write_would() {
        // On a disk and in memory; standing right and not.
        let target = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target");
        for at in [target.as_path(), Path::new("/dev/shm")] {
            let directory = tempfile::tempdir_in(at).unwrap();
            for lengths in [
                &[0, 1, 4094, 1, 1, 4096, 8192][..],
                &[100, 200, 300, 5000, 12288, 7],
                &[STAGE, STAGE + 1, STAGE - 1],
                &[3 * STAGE + 17, 5, 2 * STAGE - 5],
            ] {
                check(directory.path(), lengths, false);
                check(directory.path(), lengths, true);
            }
        }
    }

    #[test]
    fn what_was_appended_can_be_taken_back() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        let mut file = Uncached::create(&path).unwrap();
        for kept in [0, 1, 4096, 5000] {
            file.shorten(0).unwrap();
            file.append(&[1; 5000]).unwrap();
            file.append(&[2; 9000]).unwrap();
            file.shorten(kept).unwrap();
            file.append(&[3; 6000]).unwrap();
            let mut wanted = vec![1; kept as usize];
            wanted.extend_from_slice(&[3; 6000]);
            assert!(std::fs::read(&path).unwrap() == wanted, "{kept} kept");
        }
    }

    #[test]
    fn an_append_that_fails_leaves_the_file_as_it_was() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        let mut file = Uncached::create(&path).unwrap();
        file.append(&[1; 5000]).unwrap();
        let good = file.replaced(File::open("/dev/null").unwrap());
        file.append(&[2; 10]).unwrap_err();
        file.replaced(good);
        file.append(&[3; 5000]).unwrap();
        let mut wanted = vec![1; 5000];
        wanted.extend_from_slice(&[3; 5000]);
        assert!(std::fs::read(&path).unwrap() == wanted);
    }
}

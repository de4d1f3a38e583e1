//! A file that grows at its end without going through the page cache, where the file system can (O_DIRECT): nobody reads it
//! soon, so its pages would only push out those of the services on the host, and taking them costs several times what handing
//! the bytes to the device does.
//!
//! Such writes are of whole blocks. What is before the first and behind the last whole block of an append is written in the usual
//! way: after every append the file is complete, for readers and for whoever finds it after a crash. A block that is written in
//! the usual way is never written directly too, for which the kernel would first have to bring it to the disk.
//! Bytes that stand in memory as they will in the file, by blocks, are written from where they are: bringing them from the CPU
//! that encoded them to the one that writes would cost as much as encoding. See [`Places`].
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::sink::disk::{Disk, DiskFile};

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
    file: DiskFile,
    /// The same file, opened for direct writes; none where they are refused.
    direct: Option<DiskFile>,
    bytes: u64,
    /// Where bytes are brought to that do not stand right; empty until there are such.
    stage: Vec<u8>,
}

impl Uncached {
    /// Makes the file, which must not be there yet.
    ///
    /// # Errors
    /// Those of making a file.
    pub fn create(disk: &Disk, path: &Path) -> io::Result<Self> {
        let file = disk.create(path)?;
        let direct = file.direct();
        Ok(Self { file, direct, bytes: 0, stage: Vec::new() })
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
        Ok(())
    }

    /// Takes back what was appended after it had this length.
    ///
    /// # Errors
    /// The file could not be cut.
    pub fn shorten(&mut self, bytes: u64) -> io::Result<()> {
        self.file.set_len(bytes)?;
        self.bytes = bytes;
        Ok(())
    }

    /// Brings all of it to the disk. Little is left to be brought where it was written directly.
    ///
    /// # Errors
    /// Some of what was appended may be lost, and another attempt would not say so.
    pub fn sync(&self) -> io::Result<()> {
        self.file.sync()
    }

    /// Puts another file behind the same name, and returns the one that was there.
    #[cfg(test)]
    pub fn replaced(&mut self, file: std::fs::File) -> std::fs::File {
        self.file.replace(file)
    }

    fn append_direct(&mut self, bytes: &[u8]) -> io::Result<()> {
        let Some(direct) = &self.direct else { return self.file.write_all_at(bytes, self.bytes) };
        let to_next_block = self.bytes.next_multiple_of(BLOCK as u64) - self.bytes;
        let (head, rest) = bytes.split_at(bytes.len().min(to_next_block as usize));
        let (body, tail) = rest.split_at(rest.len() - rest.len() % BLOCK);
        let at = self.bytes + head.len() as u64;
        self.file.write_all_at(head, self.bytes)?;
        if body.is_empty() || body.as_ptr().align_offset(BLOCK) == 0 {
            direct.write_all_at(body, at)?;
        } else {
            write_staged_at(direct, &mut self.stage, body, at)?;
        }
        self.file.write_all_at(tail, at + body.len() as u64)
    }
}

/// Writes whole blocks from a place in memory that is right for it.
fn write_staged_at(file: &DiskFile, stage: &mut Vec<u8>, blocks: &[u8], at: u64) -> io::Result<()> {
    stage.resize(STAGE + BLOCK, 0);
    let aligned = stage.as_ptr().align_offset(BLOCK);
    for (piece, at) in blocks.chunks(STAGE).zip((at..).step_by(STAGE)) {
        let staged = &mut stage[aligned..][..piece.len()];
        staged.copy_from_slice(piece);
        file.write_all_at(staged, at)?;
    }
    Ok(())
}

/// Whether the file system cannot write so after all.
fn is_refusal(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EINVAL | libc::EOPNOTSUPP))
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    /// Appends of these lengths leave the same bytes as one write would, after each of them.
    fn check(directory: &Path, lengths: &[usize], is_moved: bool) {
        let places = Places::default();
        let path = directory.join("file");
        let mut file = Uncached::create(&Disk::default(), &path).unwrap();
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
        let mut file = Uncached::create(&Disk::default(), &path).unwrap();
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
        let mut file = Uncached::create(&Disk::default(), &path).unwrap();
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

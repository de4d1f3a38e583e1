//! A file that is appended to without the page cache (O_DIRECT), where the file system supports it. The file is not read soon,
//! so its pages would only evict those of the services on the host, and allocating them costs several times as much CPU time
//! as the write to the device.
//!
//! Direct writes have whole blocks. The bytes before the first and behind the last whole block of an append are written with
//! buffered I/O, so that the file is complete after every append, for readers and after a crash. No block is written both
//! ways, because the kernel would flush the cached page first.
//!
//! Bytes with the same alignment in memory as in the file are written from where they are. A copy would bring them from the
//! cache of the CPU that encoded them to the one that writes, which costs as much as encoding. See [`Alignment`].
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::sink::disk::{Disk, DiskFile};

/// A multiple of the alignment that any device requires, in the file and in memory.
const BLOCK: usize = 4096;
/// Bytes that are copied and written together where they are not aligned.
const STAGE: usize = 256 << 10;

/// The difference between offsets in the file and in the sequence of encoded bytes. The writer records it, and the encoder
/// uses it to align its buffers. After a new file or a lost chunk it is wrong for some chunks, which are then copied.
#[derive(Debug, Clone, Default)]
pub struct Alignment(Arc<AtomicU64>);

impl Alignment {
    /// Pads an empty buffer and returns the offset from which on bytes have the alignment that they will have in the file.
    /// `offered` bytes were encoded before them.
    pub fn prepare(&self, buffer: &mut Vec<u8>, offered: u64) -> usize {
        buffer.reserve(2 * BLOCK);
        let in_block = offered.wrapping_add(self.0.load(Ordering::Relaxed)) % BLOCK as u64;
        let from = buffer.as_ptr().align_offset(BLOCK) + in_block as usize;
        buffer.resize(from, 0);
        from
    }

    /// Records that the file continues at `at` with the bytes behind the first `offered` encoded ones.
    pub fn record(&self, offered: u64, at: u64) {
        self.0.store(at.wrapping_sub(offered), Ordering::Relaxed);
    }
}

#[derive(Debug)]
pub struct Uncached {
    file: DiskFile,
    /// The same file, opened for direct writes; `None` where they are refused.
    direct: Option<DiskFile>,
    bytes: u64,
    /// Aligned copy of bytes that are not; empty until there are such.
    stage: Vec<u8>,
}

impl Uncached {
    /// Creates the file, which must not exist.
    pub fn create(disk: &Disk, path: &Path) -> io::Result<Self> {
        let file = disk.create(path)?;
        let direct = file.direct();
        Ok(Self { file, direct, bytes: 0, stage: Vec::new() })
    }

    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Appends all of `bytes` or nothing.
    ///
    /// # Errors
    /// The write failed, and the file is unchanged.
    pub fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        let written = match self.append_direct(bytes) {
            Err(error) if is_refusal(&error) => {
                self.direct = None;
                self.file.write_all_at(bytes, self.bytes)
            }
            written => written,
        };
        if let Err(error) = written {
            // If this fails too, the next attempt overwrites the rest.
            let _ = self.file.set_len(self.bytes);
            return Err(error);
        }
        self.bytes += bytes.len() as u64;
        Ok(())
    }

    /// Truncates the file to this length.
    pub fn shorten(&mut self, bytes: u64) -> io::Result<()> {
        self.file.set_len(bytes)?;
        self.bytes = bytes;
        Ok(())
    }

    /// Syncs the data. Little is left to write after direct writes.
    ///
    /// # Errors
    /// Some appended bytes may be lost. Another attempt would not report it.
    pub fn sync(&self) -> io::Result<()> {
        self.file.sync()
    }

    /// Replaces the file behind the descriptor, and returns the one before.
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

/// Copies whole blocks to aligned memory and writes them.
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

/// Whether the file system refuses direct writes, which it may do even if it accepted O_DIRECT.
fn is_refusal(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EINVAL | libc::EOPNOTSUPP))
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    /// After each append of these lengths the file has the bytes that one write would leave.
    fn check(directory: &Path, lengths: &[usize], is_misaligned: bool) {
        let alignment = Alignment::default();
        let path = directory.join("file");
        let mut file = Uncached::create(&Disk::default(), &path).unwrap();
        let mut wanted = Vec::new();
        for (round, length) in lengths.iter().enumerate() {
            let mut buffer = Vec::new();
            let from = alignment.prepare(&mut buffer, wanted.len() as u64);
            buffer.extend((0..*length).map(|at| (at * 31 + round) as u8));
            let buffer = if is_misaligned { [&[0][..], &buffer].concat() } else { buffer };
            let bytes = &buffer[from + usize::from(is_misaligned)..];
            file.append(bytes).unwrap();
            wanted.extend_from_slice(bytes);
            assert!(std::fs::read(&path).unwrap() == wanted, "append {round} of {lengths:?}");
            assert_eq!(file.bytes(), wanted.len() as u64);
        }
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn appends_leave_the_bytes_of_one_write() {
        // On a disk and in memory, aligned and not.
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
    fn appended_bytes_can_be_removed() {
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

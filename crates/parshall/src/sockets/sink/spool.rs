//! A bounded queue of chunks on disk that survives a restart: segment files that are only appended to, read from their
//! beginning, and removed when all of them was delivered. What stands in them is decided in `parshall_core`.
//!
//! Nothing is synced: a spool survives the end of the process, and what a crash of the host leaves half written is
//! recognised. A chunk that was delivered right before a crash may be delivered once more.
use std::collections::VecDeque;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use anyhow::Context;
use parshall_core::sockets::spool::{Cursor, HEADER_BYTES, Header, SEGMENT_MAGIC, Step, checksum, step};
use parshall_sys::file_lock::FileLock;

use super::delivery::Chunk;
use crate::error::UserError;

/// Number of the first segment ever: half-way, because what is put in front counts down.
const FIRST: u64 = 1 << 32;
const MAGIC_BYTES: u64 = SEGMENT_MAGIC.len() as u64;

/// Where a spool lies and how large it may become.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpoolConfig {
    /// Its directory; made if it is not there. No two sinks may share one.
    pub directory: PathBuf,
    /// Bytes that it may take on disk.
    pub max_bytes: u64,
    /// Bytes of a segment, after which the next one is begun. Room is given back a segment at a time.
    pub segment_bytes: u64,
}

/// What went wrong with the spool itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// As metrics count it: `spool-full`, `disk-full`, `spool-io`, `spool-torn`, `spool-damaged`.
    pub kind: &'static str,
    /// As it may be shown.
    pub text: String,
}

/// How much lies in a spool.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Level {
    /// Chunks that were not delivered.
    pub chunks: u64,
    /// Rows in them.
    pub rows: u64,
    /// Bytes on disk, delivered parts of segments included.
    pub bytes: u64,
}

impl Level {
    /// This level, after something that took a spool from one level to another. Two threads that note their changes in
    /// another order than they made them come to the same sum.
    #[must_use]
    pub fn changed(self, before: Self, after: Self) -> Self {
        let moved = |now: u64, from: u64, to: u64| now.wrapping_add(to).wrapping_sub(from);
        Self {
            chunks: moved(self.chunks, before.chunks, after.chunks),
            rows: moved(self.rows, before.rows, after.rows),
            bytes: moved(self.bytes, before.bytes, after.bytes),
        }
    }
}

/// What stands at the head of a spool.
#[derive(Debug)]
pub enum Next {
    /// The oldest chunk. It stays until [`Spool::advance`].
    Chunk(Chunk),
    /// Nothing.
    Nothing,
    /// Something that cannot be read any more, and was left out; there may be more behind it.
    Damaged {
        /// Rows that are lost.
        rows: u64,
        /// What happened.
        text: String,
    },
}

/// A spool that is open. Only one process can have it open.
#[derive(Debug)]
pub struct Spool {
    config: SpoolConfig,
    segments: VecDeque<Segment>,
    /// The first segment, open for reading.
    reader: Option<File>,
    /// The last segment, open for writing, if this process began it.
    writer: Option<File>,
    /// The record that [`Self::peek`] gave.
    given: Option<Header>,
    lock: Option<FileLock>,
}

#[derive(Debug)]
struct Segment {
    number: u64,
    /// Its length.
    bytes: u64,
    /// Where the next record to deliver begins.
    at: u64,
    /// Chunks and rows from there on.
    chunks: u64,
    rows: u64,
}

impl Spool {
    /// Opens a spool, and reads what an earlier process left. Faults that were found and mended come beside it.
    ///
    /// # Errors
    /// If the directory cannot be used, or another process uses it.
    pub fn open(config: &SpoolConfig) -> anyhow::Result<(Self, Vec<Fault>)> {
        let directory = &config.directory;
        let context = || format!("cannot use the spool {}", directory.display());
        fs::create_dir_all(directory).with_context(context)?;
        let Some(lock) = FileLock::take(&directory.join("lock")).with_context(context)? else {
            let text = format!("the spool {} is in use by another process", directory.display());
            return Err(UserError::new(text, "give each process and each sink a spool directory of its own").into());
        };
        let mut spool = Self {
            config: config.clone(),
            segments: VecDeque::new(),
            reader: None,
            writer: None,
            given: None,
            lock: Some(lock),
        };
        let mut faults = Vec::new();
        let mut numbers: Vec<u64> = Vec::new();
        for entry in fs::read_dir(directory).with_context(context)? {
            let name = entry.with_context(context)?.file_name();
            numbers.extend(name.to_str().and_then(|n| n.strip_suffix(".spool")).and_then(|n| n.parse::<u64>().ok()));
        }
        numbers.sort_unstable();
        for number in numbers {
            let segment = spool.recover(number, &mut faults).with_context(context)?;
            spool.segments.extend(segment);
        }
        Ok((spool, faults))
    }

    /// Lets another open it from now on; nothing may be put into it or taken out any more.
    pub fn leave(&mut self) {
        self.lock = None;
    }

    /// How much lies in it.
    pub fn level(&self) -> Level {
        self.segments.iter().fold(Level::default(), |sum, segment| Level {
            chunks: sum.chunks + segment.chunks,
            rows: sum.rows + segment.rows,
            bytes: sum.bytes + segment.bytes,
        })
    }

    /// Appends a chunk. What a full disk cut off is removed again.
    ///
    /// # Errors
    /// If there is no room for it, by the bound or on the disk; the spool is as it was.
    pub fn append(&mut self, chunk: &Chunk) -> Result<(), Fault> {
        let header = self.fits(chunk)?;
        let whole = |segment: &Segment| segment.bytes + header.record_bytes() > self.config.segment_bytes;
        if self.writer.is_none() || self.segments.back().is_none_or(whole) {
            let number = self.segments.back().map_or(FIRST, |last| last.number + 1);
            let (file, segment) = self.begin(number).map_err(|e| fault(&e))?;
            self.segments.push_back(segment);
            self.writer = Some(file);
        }
        if let (Some(file), Some(segment)) = (&self.writer, self.segments.back_mut()) {
            write_record(file, segment, &header, chunk).map_err(|e| fault(&e))?;
        }
        Ok(())
    }

    /// Puts chunks in front of everything, oldest first; returns how many rows found no room. For the end of a process:
    /// what was in memory is older than what is here.
    pub fn put_first(&mut self, chunks: Vec<Chunk>, faults: &mut Vec<Fault>) -> u64 {
        let Some(oldest) = self.segments.front().map(|s| s.number) else {
            return chunks
                .iter()
                .map(|chunk| self.append(chunk).map_or_else(|f| give_up(chunk, f, faults), |()| 0))
                .sum();
        };
        if chunks.is_empty() {
            return 0;
        }
        let (file, mut segment) = match self.begin(oldest.saturating_sub(1)) {
            Ok(begun) => begun,
            Err(error) => {
                faults.push(fault(&error));
                return chunks.iter().map(|c| u64::from(c.rows)).sum();
            }
        };
        let mut lost = 0;
        for chunk in &chunks {
            let written = self.fits(chunk).and_then(|header| {
                if self.level().bytes + segment.bytes + header.record_bytes() > self.config.max_bytes {
                    return Err(self.full(chunk));
                }
                write_record(&file, &mut segment, &header, chunk).map_err(|e| fault(&e))
            });
            lost += written.map_or_else(|f| give_up(chunk, f, faults), |()| 0);
        }
        self.reader = None;
        self.given = None;
        self.segments.push_front(segment);
        lost
    }

    /// The oldest chunk.
    pub fn peek(&mut self) -> Next {
        self.given = None;
        while self.segments.front().is_some_and(|segment| segment.chunks == 0) {
            self.remove_first();
        }
        let Some(segment) = self.segments.front() else { return Next::Nothing };
        let (at, left) = (segment.at, segment.bytes.saturating_sub(segment.at));
        match self.read(segment.number, at, left) {
            Ok((header, Some(body))) => {
                self.given = Some(header);
                Next::Chunk(Chunk {
                    sequence: header.sequence,
                    at_unix_ns: header.at_unix_ns,
                    rows: header.rows,
                    bytes: body.into(),
                })
            }
            Ok((header, None)) => {
                self.given = Some(header);
                let rows = u64::from(header.rows);
                let text = match self.advance() {
                    Ok(()) => format!("a chunk of {rows} rows in the spool was damaged"),
                    Err(fault) => fault.text,
                };
                Next::Damaged { rows, text }
            }
            Err(error) => {
                let rows = self.segments.front().map_or(0, |s| s.rows);
                self.remove_first();
                Next::Damaged { rows, text: format!("a segment of the spool with {rows} rows cannot be read: {error}") }
            }
        }
    }

    /// The chunk that was given last has been delivered, or given up.
    ///
    /// # Errors
    /// If that could not be noted on disk: after a restart it would be delivered again.
    pub fn advance(&mut self) -> Result<(), Fault> {
        let Some(header) = self.given.take() else { return Ok(()) };
        let Some(segment) = self.segments.front_mut() else { return Ok(()) };
        segment.at += header.record_bytes();
        segment.chunks = segment.chunks.saturating_sub(1);
        segment.rows = segment.rows.saturating_sub(u64::from(header.rows));
        if segment.chunks == 0 {
            self.remove_first();
            return Ok(());
        }
        let cursor = Cursor { segment: segment.number, offset: segment.at };
        fs::write(self.path(cursor.segment, "at"), cursor.encode()).map_err(|e| fault(&e))
    }

    fn path(&self, number: u64, kind: &str) -> PathBuf {
        self.config.directory.join(format!("{number:020}.{kind}"))
    }

    fn full(&self, chunk: &Chunk) -> Fault {
        let text = format!("the spool has no room for {} rows within {} bytes", chunk.rows, self.config.max_bytes);
        Fault { kind: "spool-full", text }
    }

    /// The header of a chunk for which there is room by the bound.
    fn fits(&self, chunk: &Chunk) -> Result<Header, Fault> {
        let header = Header::of(chunk.sequence, chunk.at_unix_ns, chunk.rows, &chunk.bytes);
        let header = header.ok_or_else(|| self.full(chunk))?;
        let needed = self.level().bytes + header.record_bytes() + MAGIC_BYTES;
        if needed > self.config.max_bytes { Err(self.full(chunk)) } else { Ok(header) }
    }

    fn begin(&self, number: u64) -> io::Result<(File, Segment)> {
        let path = self.path(number, "spool");
        let file = OpenOptions::new().write(true).create_new(true).open(&path)?;
        if let Err(error) = file.write_all_at(&SEGMENT_MAGIC, 0) {
            let _ = fs::remove_file(&path);
            return Err(error);
        }
        Ok((file, Segment { number, bytes: MAGIC_BYTES, at: MAGIC_BYTES, chunks: 0, rows: 0 }))
    }

    fn remove_first(&mut self) {
        if let Some(segment) = self.segments.pop_front() {
            // Left behind, it would be delivered again after a restart; nothing else can be done about it here.
            let _ = fs::remove_file(self.path(segment.number, "spool"));
            let _ = fs::remove_file(self.path(segment.number, "at"));
        }
        self.reader = None;
        if self.segments.is_empty() {
            self.writer = None;
        }
    }

    /// The record at a place of the first segment; no body if it is not the one that was written.
    fn read(&mut self, number: u64, at: u64, left: u64) -> io::Result<(Header, Option<Vec<u8>>)> {
        let file = match self.reader.take() {
            Some(file) => file,
            None => File::open(self.path(number, "spool"))?,
        };
        let header = match look(&file, at, left)? {
            Step::Record(header) => header,
            _ => return Err(io::Error::new(io::ErrorKind::InvalidData, "it is damaged")),
        };
        let mut body = vec![0; header.body_bytes as usize];
        file.read_exact_at(&mut body, at + HEADER_BYTES as u64)?;
        self.reader = Some(file);
        let whole = checksum(&body) == header.body_crc;
        Ok((header, whole.then_some(body)))
    }

    /// Reads the headers of a segment that an earlier process left, and cuts off what is no record.
    fn recover(&self, number: u64, faults: &mut Vec<Fault>) -> io::Result<Option<Segment>> {
        let path = self.path(number, "spool");
        let file = OpenOptions::new().read(true).write(true).open(&path)?;
        let length = file.metadata()?.len();
        let mut magic = [0; SEGMENT_MAGIC.len()];
        let begun = length >= MAGIC_BYTES && file.read_exact_at(&mut magic, 0).is_ok() && magic == SEGMENT_MAGIC;
        let mut at = if begun { MAGIC_BYTES } else { 0 };
        let delivered = fs::read(self.path(number, "at")).ok().and_then(|b| Cursor::decode(&b));
        let delivered = delivered.filter(|c| c.segment == number).map_or(0, |c| c.offset);
        let mut segment = Segment { number, bytes: length, at: MAGIC_BYTES, chunks: 0, rows: 0 };
        let end = loop {
            let found = if begun { look(&file, at, length - at)? } else { Step::Damaged };
            let Step::Record(header) = found else { break found };
            at += header.record_bytes();
            if at <= delivered {
                segment.at = at;
            } else {
                segment.chunks += 1;
                segment.rows += u64::from(header.rows);
            }
        };
        if end != Step::End {
            let kind = if end == Step::Torn || length < MAGIC_BYTES { "spool-torn" } else { "spool-damaged" };
            let text = format!("{}: {} bytes at the end are no record and were cut off", path.display(), length - at);
            faults.push(Fault { kind, text });
            file.set_len(at)?;
            segment.bytes = at;
        }
        if segment.chunks == 0 {
            fs::remove_file(&path)?;
            let _ = fs::remove_file(self.path(number, "at"));
            return Ok(None);
        }
        Ok(Some(segment))
    }
}

/// What stands at a place of a segment.
fn look(file: &File, at: u64, left: u64) -> io::Result<Step> {
    let mut head = [0; HEADER_BYTES];
    let head = &mut head[..HEADER_BYTES.min(usize::try_from(left).unwrap_or(HEADER_BYTES))];
    file.read_exact_at(head, at)?;
    Ok(step(head, left))
}

/// Writes a record at the end of a segment, or leaves the segment as it was.
fn write_record(file: &File, segment: &mut Segment, header: &Header, chunk: &Chunk) -> io::Result<()> {
    let written = file
        .write_all_at(&header.encode(), segment.bytes)
        .and_then(|()| file.write_all_at(&chunk.bytes, segment.bytes + HEADER_BYTES as u64));
    if let Err(error) = written {
        // If this fails too, the next record overwrites what is there, or a restart finds a torn tail.
        let _ = file.set_len(segment.bytes);
        return Err(error);
    }
    segment.bytes += header.record_bytes();
    segment.chunks += 1;
    segment.rows += u64::from(chunk.rows);
    Ok(())
}

fn give_up(chunk: &Chunk, fault: Fault, faults: &mut Vec<Fault>) -> u64 {
    faults.push(fault);
    u64::from(chunk.rows)
}

fn fault(error: &io::Error) -> Fault {
    Fault { kind: super::disk_error_kind(error, "spool-io"), text: format!("the spool: {error}") }
}

#[cfg(test)]
mod tests;

//! A bounded queue of chunks on disk that survives a restart. Chunks are appended to segment files, which are read from their
//! beginning and removed when all of their chunks were delivered. `parshall_core::sockets::spool` has the file format.
//!
//! A segment is synced when the next one is begun and when the spool is closed. So a spool survives the end of the process, and
//! a crash of the host loses at most the last segment. An incomplete record is detected. A chunk that was delivered just before
//! a crash may be delivered twice.
use std::collections::{BTreeSet, VecDeque};
use std::fs;
use std::io;
use std::ops::Range;
use std::path::PathBuf;

use anyhow::Context;
use parshall_core::sockets::spool::{
    CURSOR_SLOT, Cursor, HEADER_BYTES, Header, SEGMENT_MAGIC, Step, checksum, find, step,
};
use parshall_sys::file_lock::FileLock;

use super::account::{Fault, disk_error_kind};
use super::delivery::Chunk;
use super::disk::{Disk, DiskFile};
use parshall_host::error::UserError;

/// Number of the first segment. Segments that are put before it have smaller numbers.
const FIRST: u64 = 1 << 32;
const MAGIC_BYTES: u64 = SEGMENT_MAGIC.len() as u64;
/// Bytes that are read together in the search for a record after a damaged one.
const WINDOW: usize = 256 << 10;

/// The directory and the limits of a spool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpoolConfig {
    /// The directory, which is created if it does not exist. Two sinks cannot share one.
    pub directory: PathBuf,
    /// The maximum size on disk.
    pub max_bytes: u64,
    /// The size at which the next segment is begun. Disk space is freed one segment at a time.
    pub segment_bytes: u64,
}

/// The amount of data in a spool.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Level {
    /// Chunks that are not delivered yet.
    pub chunks: u64,
    /// Rows in these chunks.
    pub rows: u64,
    /// Bytes on disk, delivered parts of segments included.
    pub bytes: u64,
}

impl Level {
    /// This level plus the difference between two others. The sum does not depend on the order in which threads add theirs.
    #[must_use]
    pub fn changed(self, before: Self, after: Self) -> Self {
        let add = |now: u64, from: u64, to: u64| now.wrapping_add(to).wrapping_sub(from);
        Self {
            chunks: add(self.chunks, before.chunks, after.chunks),
            rows: add(self.rows, before.rows, after.rows),
            bytes: add(self.bytes, before.bytes, after.bytes),
        }
    }
}

/// The head of a spool.
#[derive(Debug)]
pub enum Next {
    /// The oldest chunk. It stays until [`Spool::advance`].
    Chunk(Chunk),
    Nothing,
    /// Something unreadable was skipped. There may be chunks after it.
    Damaged {
        /// Lost rows.
        rows: u64,
        /// Skipped bytes.
        bytes: u64,
        /// The text for people.
        text: String,
    },
}

/// An open spool. Only one process can have it open.
#[derive(Debug)]
pub struct Spool {
    config: SpoolConfig,
    disk: Disk,
    segments: VecDeque<Segment>,
    /// The first segment, open for reading.
    reader: Option<DiskFile>,
    /// The last segment, open for writing, if this process began it.
    writer: Option<DiskFile>,
    /// The record that [`Self::peek`] returned.
    peeked: Option<Header>,
    /// Failures that [`Self::faults`] has not returned yet.
    faults: Vec<Fault>,
    lock: Option<FileLock>,
}

#[derive(Debug)]
struct Segment {
    number: u64,
    /// Its length.
    bytes: u64,
    /// Offset of the next record to deliver.
    at: u64,
    /// Chunks from `at` on.
    chunks: u64,
    /// Rows from `at` on.
    rows: u64,
    /// Damaged bytes between records from `at` on.
    holes: VecDeque<Range<u64>>,
    /// Rows of all its records, modulo 2^32.
    rows_written: u32,
    /// Whether the second of its cursors is overwritten next.
    second: bool,
}

/// The records of a segment from an offset on.
#[derive(Debug)]
struct Scan {
    /// Offset of the next record to deliver.
    at: u64,
    /// End of the last record.
    end: u64,
    /// Why there is no further record.
    last: Step,
    chunks: u64,
    rows: u64,
    holes: VecDeque<Range<u64>>,
    /// Rows in the holes, as far as the headers after them show it.
    rows_missing: u64,
}

impl Spool {
    /// Opens a spool with the chunks of an earlier process. Also returns faults that were found and repaired.
    ///
    /// # Errors
    /// The directory cannot be used, or another process uses it.
    pub fn open(config: &SpoolConfig) -> anyhow::Result<(Self, Vec<Fault>)> {
        Self::open_on(config, Disk::default())
    }

    fn open_on(config: &SpoolConfig, disk: Disk) -> anyhow::Result<(Self, Vec<Fault>)> {
        let directory = &config.directory;
        let context = || format!("cannot use the spool {}", directory.display());
        fs::create_dir_all(directory).with_context(context)?;
        let Some(lock) = FileLock::take(&directory.join("lock")).with_context(context)? else {
            let text = format!("the spool {} is in use by another process", directory.display());
            return Err(UserError::new(text, "give each process and each sink a spool directory of its own").into());
        };
        let mut spool = Self {
            config: config.clone(),
            disk,
            segments: VecDeque::new(),
            reader: None,
            writer: None,
            peeked: None,
            faults: Vec::new(),
            lock: Some(lock),
        };
        let (mut numbers, mut cursors) = (BTreeSet::new(), BTreeSet::new());
        for entry in fs::read_dir(directory).with_context(context)? {
            let name = entry.with_context(context)?.file_name();
            let number =
                |ending| name.to_str().and_then(|n| n.strip_suffix(ending)).and_then(|n| n.parse::<u64>().ok());
            numbers.extend(number(".spool"));
            cursors.extend(number(".at"));
        }
        for &number in &numbers {
            let segment = spool.recover(number).with_context(context)?;
            spool.segments.extend(segment);
        }
        for &number in cursors.difference(&numbers) {
            // The process was killed between removing the segment and removing its cursors.
            spool.disk.remove(&spool.path(number, "at")).with_context(context)?;
        }
        let faults = spool.faults();
        Ok((spool, faults))
    }

    /// Takes the failures since the last call.
    pub fn faults(&mut self) -> Vec<Fault> {
        std::mem::take(&mut self.faults)
    }

    /// Syncs the last segment and the directory.
    pub fn sync(&mut self) {
        let synced = self.writer.as_ref().map_or(Ok(()), DiskFile::sync);
        let synced = synced.and_then(|()| self.disk.sync_directory(&self.config.directory));
        self.faults.extend(synced.err().map(|error| fault(&error)));
    }

    /// Releases the lock, so that another process can open the spool. This one must not use it afterwards.
    pub fn unlock(&mut self) {
        self.lock = None;
    }

    /// The amount of data in the spool.
    pub fn level(&self) -> Level {
        self.segments.iter().fold(Level::default(), |sum, segment| Level {
            chunks: sum.chunks + segment.chunks,
            rows: sum.rows + segment.rows,
            bytes: sum.bytes + segment.bytes,
        })
    }

    /// Appends a chunk. An incomplete record, which a full disk leaves, is removed again.
    ///
    /// # Errors
    /// The limit or the disk has no space for it. The spool is unchanged.
    pub fn append(&mut self, chunk: &Chunk) -> Result<(), Fault> {
        let header = self.fits(chunk)?;
        let whole = |segment: &Segment| segment.bytes + header.record_bytes() > self.config.segment_bytes;
        if self.writer.is_none() || self.segments.back().is_none_or(whole) {
            let number = self.segments.back().map_or(FIRST, |last| last.number + 1);
            if self.writer.is_some() {
                self.sync();
                self.writer = None;
            }
            let (file, segment) = self.begin(number).map_err(|e| fault(&e))?;
            self.segments.push_back(segment);
            self.writer = Some(file);
        }
        if let (Some(file), Some(segment)) = (&self.writer, self.segments.back_mut()) {
            write_record(file, segment, &header, chunk).map_err(|e| fault(&e))?;
        }
        Ok(())
    }

    /// Puts chunks, oldest first, before all others, and returns the number of rows that did not fit. Used when a process ends,
    /// because the chunks in memory are older than those in the spool.
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
        faults.extend(file.sync().err().map(|error| fault(&error)));
        self.reader = None;
        self.peeked = None;
        self.segments.push_front(segment);
        lost
    }

    /// Reads the oldest chunk.
    pub fn peek(&mut self) -> Next {
        self.peeked = None;
        while self.segments.front().is_some_and(|segment| segment.chunks == 0) {
            self.remove_first();
        }
        let Some(segment) = self.segments.front_mut() else { return Next::Nothing };
        while let Some(hole) = segment.holes.front().filter(|hole| hole.start <= segment.at) {
            segment.at = segment.at.max(hole.end);
            segment.holes.pop_front();
        }
        let (number, at, left) = (segment.number, segment.at, segment.bytes.saturating_sub(segment.at));
        match self.read(number, at, left) {
            Ok(Some((header, Some(body)))) => {
                self.peeked = Some(header);
                Next::Chunk(Chunk {
                    sequence: header.sequence.into(),
                    at_unix_ns: header.at_unix_ns,
                    rows: header.rows,
                    bytes: body.into(),
                })
            }
            Ok(Some((header, None))) => {
                self.peeked = Some(header);
                self.advance();
                let (rows, bytes) = (u64::from(header.rows), header.record_bytes());
                Next::Damaged { rows, bytes, text: format!("a chunk of {rows} rows in the spool was damaged") }
            }
            Ok(None) => self.skip_damage(number, at, left).unwrap_or_else(|error| self.unreadable(&error)),
            Err(error) => self.unreadable(&error),
        }
    }

    /// Finds the remaining records of the first segment, after one that was damaged since the spool was opened.
    fn skip_damage(&mut self, number: u64, at: u64, left: u64) -> io::Result<Next> {
        let file = self.disk.open(&self.path(number, "spool"))?;
        let scan = scan(&file, at, at + left, 0)?;
        let Some(segment) = self.segments.front_mut() else { return Ok(Next::Nothing) };
        let rows = segment.rows.saturating_sub(scan.rows);
        let bytes = left - scan.end.saturating_sub(at) + holes(&scan);
        (segment.chunks, segment.rows, segment.holes) = (scan.chunks, scan.rows, scan.holes);
        Ok(Next::Damaged { rows, bytes, text: format!("{rows} rows in the spool were damaged") })
    }

    fn unreadable(&mut self, error: &io::Error) -> Next {
        let (rows, bytes) = self.segments.front().map_or((0, 0), |s| (s.rows, s.bytes.saturating_sub(s.at)));
        self.remove_first();
        let text = format!("a segment of the spool with {rows} rows cannot be read: {error}");
        Next::Damaged { rows, bytes, text }
    }

    /// Removes the chunk that [`Self::peek`] returned: it was delivered, or dropped. If the cursor cannot be written, that is a
    /// fault, and the chunk is delivered again after a restart.
    pub fn advance(&mut self) {
        let Some(header) = self.peeked.take() else { return };
        let Some(segment) = self.segments.front_mut() else { return };
        segment.at += header.record_bytes();
        segment.chunks = segment.chunks.saturating_sub(1);
        segment.rows = segment.rows.saturating_sub(u64::from(header.rows));
        if segment.chunks == 0 {
            self.remove_first();
            return;
        }
        let (cursor, second) = (Cursor { segment: segment.number, offset: segment.at }, segment.second);
        segment.second = !second;
        let written = self.write_cursor(cursor, second);
        self.faults.extend(written.err().map(|error| fault(&error)));
    }

    /// Overwrites one of the two cursors of a segment. The other one is unchanged, and no disk space is allocated.
    fn write_cursor(&self, cursor: Cursor, second: bool) -> io::Result<()> {
        let path = self.path(cursor.segment, "at");
        let file = match self.disk.open(&path) {
            // Spools of parshall 0.1.0 have no cursor file before the first delivery.
            Err(error) if error.kind() == io::ErrorKind::NotFound => self.disk.create(&path)?,
            file => file?,
        };
        file.write_all_at(&cursor.encode(), if second { CURSOR_SLOT as u64 } else { 0 })
    }

    fn path(&self, number: u64, kind: &str) -> PathBuf {
        self.config.directory.join(format!("{number:020}.{kind}"))
    }

    fn full(&self, chunk: &Chunk) -> Fault {
        let text = format!("the spool is full: {} rows do not fit its {} bytes", chunk.rows, self.config.max_bytes);
        Fault::new("spool-full", text)
    }

    /// The header of a chunk, if the limit has space for it.
    fn fits(&self, chunk: &Chunk) -> Result<Header, Fault> {
        let header = Header::of(chunk.sequence, chunk.at_unix_ns, chunk.rows, &chunk.bytes);
        let header = header.ok_or_else(|| self.full(chunk))?;
        let needed = self.level().bytes + header.record_bytes() + MAGIC_BYTES;
        if needed > self.config.max_bytes { Err(self.full(chunk)) } else { Ok(header) }
    }

    /// Creates a segment and its cursors, so that [`Self::write_cursor`] needs no disk space.
    fn begin(&self, number: u64) -> io::Result<(DiskFile, Segment)> {
        let (path, at) = (self.path(number, "spool"), self.path(number, "at"));
        let made = self.disk.create(&path).and_then(|file| {
            file.write_all_at(&SEGMENT_MAGIC, 0)?;
            let mut cursors = vec![0; CURSOR_SLOT];
            cursors.extend(Cursor { segment: number, offset: MAGIC_BYTES }.encode());
            self.disk.create(&at)?.write_all_at(&cursors, 0)?;
            Ok(file)
        });
        let file = made.inspect_err(|_| {
            let _ = self.disk.remove(&path);
            let _ = self.disk.remove(&at);
        })?;
        let segment = Segment {
            number,
            bytes: MAGIC_BYTES,
            at: MAGIC_BYTES,
            chunks: 0,
            rows: 0,
            holes: VecDeque::new(),
            rows_written: 0,
            second: false,
        };
        Ok((file, segment))
    }

    fn remove_first(&mut self) {
        if let Some(segment) = self.segments.pop_front() {
            let removed = self.disk.remove(&self.path(segment.number, "spool"));
            let gone = |result: io::Result<()>| {
                result.or_else(|e| if e.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(e) })
            };
            if let Err(error) = gone(removed) {
                // The file stays, and its cursor says that all of it was delivered.
                let end = Cursor { segment: segment.number, offset: segment.bytes };
                self.faults.push(fault(&self.write_cursor(end, segment.second).err().unwrap_or(error)));
            } else {
                let removed = gone(self.disk.remove(&self.path(segment.number, "at")));
                self.faults.extend(removed.err().map(|error| fault(&error)));
            }
        }
        self.reader = None;
        if self.segments.is_empty() {
            self.writer = None;
        }
    }

    /// Reads the record at an offset of the first segment. There is no body if its checksum is wrong.
    fn read(&mut self, number: u64, at: u64, left: u64) -> io::Result<Option<(Header, Option<Vec<u8>>)>> {
        let file = match self.reader.take() {
            Some(file) => file,
            None => self.disk.open(&self.path(number, "spool"))?,
        };
        let Step::Record(header) = read_header(&file, at, left)? else { return Ok(None) };
        let mut body = vec![0; header.body_bytes as usize];
        file.read_exact_at(&mut body, at + HEADER_BYTES as u64)?;
        self.reader = Some(file);
        let whole = checksum(&body) == header.body_crc;
        Ok(Some((header, whole.then_some(body))))
    }

    /// Reads the headers of a segment of an earlier process, and truncates what is not a record at its end.
    fn recover(&mut self, number: u64) -> io::Result<Option<Segment>> {
        let path = self.path(number, "spool");
        let file = self.disk.open(&path)?;
        let length = file.bytes()?;
        let mut magic = [0; SEGMENT_MAGIC.len()];
        let begun = length >= MAGIC_BYTES && file.read_exact_at(&mut magic, 0).is_ok() && magic == SEGMENT_MAGIC;
        let cursors = fs::read(self.path(number, "at")).ok().and_then(|bytes| Cursor::latest(&bytes));
        let (delivered, second) =
            cursors.filter(|(c, _)| c.segment == number).map_or((0, false), |(c, second)| (c.offset, !second));
        let scan = scan(&file, if begun { MAGIC_BYTES } else { 0 }, length, delivered)?;
        if !scan.holes.is_empty() {
            let bytes = holes(&scan);
            let text = format!("{}: {bytes} damaged bytes between records are skipped", path.display());
            self.faults.push(Fault { kind: "spool-damaged", text, rows: scan.rows_missing, bytes });
        }
        if scan.last != Step::End {
            let torn = scan.last == Step::Torn || length < MAGIC_BYTES;
            let bytes = length - scan.end;
            let text = format!("{}: {bytes} bytes at the end are not a record and were removed", path.display());
            let kind = if torn { "spool-torn" } else { "spool-damaged" };
            self.faults.push(Fault { bytes, ..Fault::new(kind, text) });
            file.set_len(scan.end)?;
        }
        if scan.chunks == 0 {
            self.disk.remove(&path)?;
            let _ = self.disk.remove(&self.path(number, "at"));
            return Ok(None);
        }
        let Scan { at, end, chunks, rows, holes, .. } = scan;
        Ok(Some(Segment { number, bytes: end, at, chunks, rows, holes, rows_written: 0, second }))
    }
}

/// Reads the header at an offset of a segment.
fn read_header(file: &DiskFile, at: u64, left: u64) -> io::Result<Step> {
    let mut head = [0; HEADER_BYTES];
    let head = &mut head[..HEADER_BYTES.min(usize::try_from(left).unwrap_or(HEADER_BYTES))];
    file.read_exact_at(head, at)?;
    Ok(step(head, left))
}

/// Reads the headers of a segment from an offset on. Records that end at or before `delivered` were delivered.
fn scan(file: &DiskFile, from: u64, length: u64, delivered: u64) -> io::Result<Scan> {
    let mut scan =
        Scan { at: from, end: from, last: Step::End, chunks: 0, rows: 0, holes: VecDeque::new(), rows_missing: 0 };
    let mut rows_read = 0u32;
    let mut place = from;
    loop {
        match read_header(file, place, length - place)? {
            Step::Record(header) => {
                let is_behind_hole = place > scan.end;
                scan.end = place + header.record_bytes();
                if scan.end <= delivered {
                    scan.at = scan.end;
                    scan.holes.clear();
                    scan.rows_missing = 0;
                } else {
                    if is_behind_hole {
                        scan.rows_missing += u64::from(header.rows_missing(rows_read));
                    }
                    scan.chunks += 1;
                    scan.rows += u64::from(header.rows);
                }
                rows_read = header.rows_before.max(rows_read).wrapping_add(header.rows);
                place = scan.end;
            }
            Step::Damaged => match find_record(file, place + 1, length)? {
                Some(next) => {
                    scan.holes.push_back(place..next);
                    place = next;
                }
                None => {
                    scan.last = Step::Damaged;
                    return Ok(scan);
                }
            },
            last => {
                scan.last = last;
                return Ok(scan);
            }
        }
    }
}

/// The next offset of a segment at which a record begins.
fn find_record(file: &DiskFile, from: u64, length: u64) -> io::Result<Option<u64>> {
    let mut window = Vec::new();
    let mut at = from;
    while at + HEADER_BYTES as u64 <= length {
        window.resize(WINDOW.min((length - at) as usize), 0);
        file.read_exact_at(&mut window, at)?;
        if let Some(found) = find(&window, 0, length - at) {
            return Ok(Some(at + found as u64));
        }
        // A header may extend beyond the window.
        at += (window.len() - (HEADER_BYTES - 1)) as u64;
    }
    Ok(None)
}

fn holes(scan: &Scan) -> u64 {
    scan.holes.iter().map(|hole| hole.end - hole.start).sum()
}

/// Writes a record at the end of a segment. After an error the segment is unchanged.
fn write_record(file: &DiskFile, segment: &mut Segment, header: &Header, chunk: &Chunk) -> io::Result<()> {
    let header = Header { rows_before: segment.rows_written, ..*header };
    let written = file
        .write_all_at(&header.encode(), segment.bytes)
        .and_then(|()| file.write_all_at(&chunk.bytes, segment.bytes + HEADER_BYTES as u64));
    if let Err(error) = written {
        // If this fails too, the next record overwrites the incomplete one, or the next start removes it.
        let _ = file.set_len(segment.bytes);
        return Err(error);
    }
    segment.bytes += header.record_bytes();
    segment.chunks += 1;
    segment.rows += u64::from(chunk.rows);
    segment.rows_written = segment.rows_written.wrapping_add(chunk.rows);
    Ok(())
}

fn give_up(chunk: &Chunk, fault: Fault, faults: &mut Vec<Fault>) -> u64 {
    faults.push(fault);
    u64::from(chunk.rows)
}

fn fault(error: &io::Error) -> Fault {
    Fault::new(disk_error_kind(error, "spool-io"), format!("the spool: {error}"))
}

#[cfg(test)]
mod tests;

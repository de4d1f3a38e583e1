//! A bounded queue of chunks on disk that survives a restart: segment files that are only appended to, read from their
//! beginning, and removed when all of them was delivered. What stands in them is decided in `parshall_core`.
//!
//! A segment is synced when the next one is begun and when the spool is closed: a spool survives the end of the process, and a
//! crash of the host costs at most the last segment; what that leaves half written is recognised. A chunk that was delivered right
//! before a crash may be delivered once more.
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

use super::Fault;
use super::delivery::Chunk;
use super::disk::{Disk, DiskFile};
use parshall_host::error::UserError;

/// Number of the first segment ever: half-way, because what is put in front counts down.
const FIRST: u64 = 1 << 32;
const MAGIC_BYTES: u64 = SEGMENT_MAGIC.len() as u64;
/// Bytes that are read at a time in search of a record behind a damaged one.
const WINDOW: usize = 256 << 10;

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
        /// Bytes of the segment that are.
        bytes: u64,
        /// What happened.
        text: String,
    },
}

/// A spool that is open. Only one process can have it open.
#[derive(Debug)]
pub struct Spool {
    config: SpoolConfig,
    disk: Disk,
    segments: VecDeque<Segment>,
    /// The first segment, open for reading.
    reader: Option<DiskFile>,
    /// The last segment, open for writing, if this process began it.
    writer: Option<DiskFile>,
    /// The record that [`Self::peek`] gave.
    given: Option<Header>,
    /// Not reported yet.
    faults: Vec<Fault>,
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
    /// What lies between records from there on and is none.
    holes: VecDeque<Range<u64>>,
    /// Rows of all its records, modulo 2^32.
    rows_written: u32,
    /// Whether the second of its cursors is written next.
    second: bool,
}

/// What was found in a segment from a place on.
#[derive(Debug)]
struct Scan {
    /// Where the next record to deliver begins.
    at: u64,
    /// Where the last record ends, and why there is no more.
    end: u64,
    last: Step,
    chunks: u64,
    rows: u64,
    holes: VecDeque<Range<u64>>,
    /// Rows in the holes, as far as the records behind them tell.
    rows_missing: u64,
}

impl Spool {
    /// Opens a spool, and reads what an earlier process left. Faults that were found and mended come beside it.
    ///
    /// # Errors
    /// If the directory cannot be used, or another process uses it.
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
            given: None,
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
            // Of a segment that was removed right before the process was killed.
            spool.disk.remove(&spool.path(number, "at")).with_context(context)?;
        }
        let faults = spool.faults();
        Ok((spool, faults))
    }

    /// What went wrong since the last call.
    pub fn faults(&mut self) -> Vec<Fault> {
        std::mem::take(&mut self.faults)
    }

    /// Brings the last segment to the disk.
    pub fn sync(&mut self) {
        let synced = self.writer.as_ref().map_or(Ok(()), DiskFile::sync);
        let synced = synced.and_then(|()| self.disk.sync_directory(&self.config.directory));
        self.faults.extend(synced.err().map(|error| fault(&error)));
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
        faults.extend(file.sync().err().map(|error| fault(&error)));
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
        let Some(segment) = self.segments.front_mut() else { return Next::Nothing };
        while let Some(hole) = segment.holes.front().filter(|hole| hole.start <= segment.at) {
            segment.at = segment.at.max(hole.end);
            segment.holes.pop_front();
        }
        let (number, at, left) = (segment.number, segment.at, segment.bytes.saturating_sub(segment.at));
        match self.read(number, at, left) {
            Ok(Some((header, Some(body)))) => {
                self.given = Some(header);
                Next::Chunk(Chunk {
                    sequence: header.sequence.into(),
                    at_unix_ns: header.at_unix_ns,
                    rows: header.rows,
                    bytes: body.into(),
                })
            }
            Ok(Some((header, None))) => {
                self.given = Some(header);
                self.advance();
                let (rows, bytes) = (u64::from(header.rows), header.record_bytes());
                Next::Damaged { rows, bytes, text: format!("a chunk of {rows} rows in the spool was damaged") }
            }
            Ok(None) => self.step_over(number, at, left).unwrap_or_else(|error| self.unreadable(&error)),
            Err(error) => self.unreadable(&error),
        }
    }

    /// Finds out what is left of the first segment, behind a record that was damaged since the spool was opened.
    fn step_over(&mut self, number: u64, at: u64, left: u64) -> io::Result<Next> {
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

    /// The chunk that was given last has been delivered, or given up. If that cannot be noted on disk, it will be delivered again
    /// after a restart, and that is a fault.
    pub fn advance(&mut self) {
        let Some(header) = self.given.take() else { return };
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

    /// Overwrites one of the two cursors of a segment. Neither the other one nor the room on the disk is touched.
    fn write_cursor(&self, cursor: Cursor, second: bool) -> io::Result<()> {
        let path = self.path(cursor.segment, "at");
        let file = match self.disk.open(&path) {
            // Spools of parshall 0.1.0 have none before the first delivery.
            Err(error) if error.kind() == io::ErrorKind::NotFound => self.disk.create(&path)?,
            file => file?,
        };
        file.write_all_at(&cursor.encode(), if second { CURSOR_SLOT as u64 } else { 0 })
    }

    fn path(&self, number: u64, kind: &str) -> PathBuf {
        self.config.directory.join(format!("{number:020}.{kind}"))
    }

    fn full(&self, chunk: &Chunk) -> Fault {
        let text = format!("the spool has no room for {} rows within {} bytes", chunk.rows, self.config.max_bytes);
        Fault::new("spool-full", text)
    }

    /// The header of a chunk for which there is room by the bound.
    fn fits(&self, chunk: &Chunk) -> Result<Header, Fault> {
        let header = Header::of(chunk.sequence, chunk.at_unix_ns, chunk.rows, &chunk.bytes);
        let header = header.ok_or_else(|| self.full(chunk))?;
        let needed = self.level().bytes + header.record_bytes() + MAGIC_BYTES;
        if needed > self.config.max_bytes { Err(self.full(chunk)) } else { Ok(header) }
    }

    /// Makes a segment and its cursors, so that noting a delivery needs no more room on the disk.
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
                // It stays, and its cursor says that nothing in it is left to be delivered.
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

    /// The record at a place of the first segment: none if there is none, no body if it is not the one that was written.
    fn read(&mut self, number: u64, at: u64, left: u64) -> io::Result<Option<(Header, Option<Vec<u8>>)>> {
        let file = match self.reader.take() {
            Some(file) => file,
            None => self.disk.open(&self.path(number, "spool"))?,
        };
        let Step::Record(header) = look(&file, at, left)? else { return Ok(None) };
        let mut body = vec![0; header.body_bytes as usize];
        file.read_exact_at(&mut body, at + HEADER_BYTES as u64)?;
        self.reader = Some(file);
        let whole = checksum(&body) == header.body_crc;
        Ok(Some((header, whole.then_some(body))))
    }

    /// Reads the headers of a segment that an earlier process left, and cuts off what is no record.
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
            let text = format!("{}: {bytes} bytes between records are damaged and left out", path.display());
            self.faults.push(Fault { kind: "spool-damaged", text, rows: scan.rows_missing, bytes });
        }
        if scan.last != Step::End {
            let torn = scan.last == Step::Torn || length < MAGIC_BYTES;
            let bytes = length - scan.end;
            let text = format!("{}: {bytes} bytes at the end are no record and were cut off", path.display());
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

/// What stands at a place of a segment.
fn look(file: &DiskFile, at: u64, left: u64) -> io::Result<Step> {
    let mut head = [0; HEADER_BYTES];
    let head = &mut head[..HEADER_BYTES.min(usize::try_from(left).unwrap_or(HEADER_BYTES))];
    file.read_exact_at(head, at)?;
    Ok(step(head, left))
}

/// Reads the headers of a segment from a place on. What ends before `delivered` has been delivered.
fn scan(file: &DiskFile, from: u64, length: u64, delivered: u64) -> io::Result<Scan> {
    let mut scan =
        Scan { at: from, end: from, last: Step::End, chunks: 0, rows: 0, holes: VecDeque::new(), rows_missing: 0 };
    let mut rows_read = 0u32;
    let mut place = from;
    loop {
        match look(file, place, length - place)? {
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

/// The next place of a segment where a record begins.
fn find_record(file: &DiskFile, from: u64, length: u64) -> io::Result<Option<u64>> {
    let mut window = Vec::new();
    let mut at = from;
    while at + HEADER_BYTES as u64 <= length {
        window.resize(WINDOW.min((length - at) as usize), 0);
        file.read_exact_at(&mut window, at)?;
        if let Some(found) = find(&window, 0, length - at) {
            return Ok(Some(at + found as u64));
        }
        // A header may lie across the end of the window.
        at += (window.len() - (HEADER_BYTES - 1)) as u64;
    }
    Ok(None)
}

fn holes(scan: &Scan) -> u64 {
    scan.holes.iter().map(|hole| hole.end - hole.start).sum()
}

/// Writes a record at the end of a segment, or leaves the segment as it was.
fn write_record(file: &DiskFile, segment: &mut Segment, header: &Header, chunk: &Chunk) -> io::Result<()> {
    let header = Header { rows_before: segment.rows_written, ..*header };
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
    segment.rows_written = segment.rows_written.wrapping_add(chunk.rows);
    Ok(())
}

fn give_up(chunk: &Chunk, fault: Fault, faults: &mut Vec<Fault>) -> u64 {
    faults.push(fault);
    u64::from(chunk.rows)
}

fn fault(error: &io::Error) -> Fault {
    Fault::new(super::disk_error_kind(error, "spool-io"), format!("the spool: {error}"))
}

#[cfg(test)]
mod tests;

//! Rotating files in a directory. A file has a hidden name that ends in `.tmp` until it is complete, and never changes after
//! it was renamed.
//!
//! Rows are encoded in the collector's thread, and compressed, written and rotated in the thread of the delivery queue. A zstd
//! frame, a run of messages or a row group is written completely or not at all: a write that a full disk cut short is removed
//! and retried. A file and its name are synced once, at its end. The next process cuts the file of a killed one behind the last
//! complete part and appends `.partial` to its name; the limits on size and count include such files.
use std::collections::HashMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, UNIX_EPOCH};

use anyhow::Context;
use parshall_core::sockets::retry::Retry;
use parshall_core::sockets::{Dump, Row};
use parshall_evidence::socket::Completeness;
use parshall_sys::file_lock::FileLock;

use self::parts::Parts;
use super::account::{Account, Fault, Sink, disk_error_kind};
use super::delivery::{BufferPool, Chunk, Delivery, Payload, Refusal, Rejected};
use super::delivery_queue::{DeliveryQueue, QueueConfig};
use super::disk::Disk;
use crate::format::json::Json;
use crate::format::parquet::file::{Assembler, MAGIC};
use crate::format::parquet::piece::Pieces;
use crate::format::protobuf::Protobuf;
use crate::format::{Encoder, SocketFormat, ZSTD_LEVEL};
use clap::ValueEnum;
use parshall_host::error::UserError;
use parshall_host::utc;

mod parts;
mod salvage;
pub mod table;
mod uncached;

use uncached::{Alignment, Uncached};

/// Encoded bytes that are passed to the writer together and become one zstd frame.
const PORTION: usize = 1 << 20;
/// Rows that are encoded between two checks of the buffer's size.
const ROWS_AT_ONCE: usize = 256;
/// Bytes that this many rows rarely exceed. A buffer that grows is copied once more.
const RESERVE: usize = 256 << 10;
/// Bytes that may wait for the disk.
const QUEUE_BYTES: usize = 8 << 20;
/// How long rows of a burst wait for space in the queue before they are dropped.
const OFFER_TIMEOUT: Duration = Duration::from_secs(1);
/// The suffix of a file whose process was killed.
const PARTIAL: &str = ".partial";

/// The parts of the files of a format and the suffix of their names. `None` for tables, which are not written to files.
fn layout(format: SocketFormat) -> Option<(Parts, &'static str)> {
    match format {
        SocketFormat::Text => None,
        SocketFormat::Json => Some((Parts::Frames, "jsonl.zst")),
        SocketFormat::Protobuf => Some((Parts::Messages, "pb")),
        SocketFormat::ProtobufZstd => Some((Parts::Frames, "pb.zst")),
        SocketFormat::Parquet => Some((Parts::Pieces, "parquet")),
    }
}

/// The parts and the suffix of a file with this name.
fn layout_of_name(name: &str) -> Option<(Parts, &'static str)> {
    let has_suffix = |suffix: &str| name.strip_suffix(suffix).is_some_and(|stem| stem.ends_with('.'));
    let layouts = SocketFormat::value_variants().iter().filter_map(|format| layout(*format));
    layouts.into_iter().find(|(_, suffix)| has_suffix(suffix))
}

/// The settings for files: their directory, their format, and how long they are kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FilesConfig {
    /// Created if it does not exist. Two processes cannot share one.
    directory: PathBuf,
    format: SocketFormat,
    parts: Parts,
    suffix: &'static str,
    /// A new file is begun at this size.
    pub rotate_bytes: u64,
    /// A new file is begun after this time.
    pub rotate_every: Duration,
    /// The oldest complete files are removed when all of them together are larger.
    pub keep_bytes: u64,
    /// The oldest complete files are removed when there are more.
    pub keep_files: usize,
}

impl FilesConfig {
    /// Files of this format, with the default limits.
    ///
    /// # Errors
    /// The format is a table.
    pub fn new(directory: PathBuf, format: SocketFormat) -> Result<Self, UserError> {
        let (parts, suffix) = layout(format).ok_or_else(|| {
            UserError::new(
                "tables are not written to files",
                "choose json, protobuf, protobuf-zstd or parquet for files",
            )
        })?;
        Ok(Self {
            directory,
            format,
            parts,
            suffix,
            rotate_bytes: 128 << 20,
            rotate_every: Duration::from_secs(3600),
            keep_bytes: 4 << 30,
            keep_files: 10_000,
        })
    }
}

pub struct Files {
    encoding: Encoding,
    buffer: Vec<u8>,
    /// Offset of the encoded bytes in the buffer.
    from: usize,
    buffered_rows: u32,
    /// Number and time of the dump of the oldest row that no chunk has yet.
    oldest: Option<(u64, u64)>,
    /// Encoded bytes that the delivery queue was given so far.
    offered: u64,
    alignment: Alignment,
    pool: Arc<BufferPool>,
    queue: DeliveryQueue,
}

enum Encoding {
    Stream(Box<dyn Encoder + Send>),
    Parquet(Box<Pieces>),
}

impl Files {
    /// Opens the directory and starts the writer.
    ///
    /// # Errors
    /// The directory cannot be used, or another process uses it.
    pub fn start(config: FilesConfig) -> anyhow::Result<Self> {
        let encoding = match config.parts {
            Parts::Pieces => Encoding::Parquet(Box::default()),
            _ if config.format == SocketFormat::Json => Encoding::Stream(Box::new(Json::default())),
            _ => Encoding::Stream(Box::new(Protobuf::default())),
        };
        let retry = Retry { first_ns: 100_000_000, longest_ns: 5_000_000_000 };
        let bounds = QueueConfig { queue_bytes: QUEUE_BYTES, spool: None, retry };
        let alignment = Alignment::default();
        let writer = Writer::open(config, alignment.clone(), Disk::default())?;
        let queue = DeliveryQueue::start("sockets-files", bounds, Box::new(writer))?;
        Ok(Self {
            encoding,
            buffer: Vec::new(),
            from: 0,
            buffered_rows: 0,
            oldest: None,
            offered: 0,
            alignment,
            pool: Arc::default(),
            queue,
        })
    }

    /// Passes what was encoded since the last call to the writer, which names a file after the time of its oldest row.
    fn send(&mut self) {
        let Some((sequence, at_unix_ns)) = self.oldest.take() else { return };
        let (bytes, rows) = match &mut self.encoding {
            Encoding::Stream(_) => (self.encoded(), std::mem::take(&mut self.buffered_rows)),
            Encoding::Parquet(pieces) => {
                let rows = pieces.rows() as u32;
                (pieces.take().into(), rows)
            }
        };
        self.offered += bytes.len() as u64;
        if !bytes.is_empty() {
            self.queue.offer_within(Chunk { sequence, at_unix_ns, rows, bytes }, OFFER_TIMEOUT);
        }
    }

    /// Takes the encoded bytes. A few bytes are copied out of their buffer, because the bound of the queue does not count the
    /// capacity that a mostly empty buffer occupies.
    fn encoded(&mut self) -> Payload {
        let (buffer, from) = (std::mem::take(&mut self.buffer), std::mem::take(&mut self.from));
        let mut bytes = Payload::pooled(buffer, from, self.offered, self.pool.clone());
        if bytes.len() < PORTION / 4 {
            let position = bytes.position;
            bytes = bytes.to_vec().into();
            bytes.position = position;
        }
        bytes
    }

    /// Rows that are in no chunk yet.
    fn buffered(&self) -> u64 {
        match &self.encoding {
            Encoding::Stream(_) => u64::from(self.buffered_rows),
            Encoding::Parquet(pieces) => pieces.rows() as u64,
        }
    }
}

impl Sink for Files {
    fn name(&self) -> &str {
        "files"
    }

    fn rows(&mut self, dump: &Dump, rows: &[Row<'_>]) -> anyhow::Result<()> {
        for part in rows.chunks(ROWS_AT_ONCE) {
            self.oldest.get_or_insert((dump.sequence, dump.at_unix_ns));
            let is_enough = match &mut self.encoding {
                Encoding::Stream(encoder) => {
                    if self.buffer.is_empty() {
                        self.buffer = self.pool.take(PORTION + RESERVE);
                        self.from = self.alignment.prepare(&mut self.buffer, self.offered);
                    }
                    encoder.rows(dump, part, &mut self.buffer);
                    self.buffered_rows += part.len() as u32;
                    self.buffer.len() - self.from >= PORTION
                }
                Encoding::Parquet(pieces) => {
                    part.iter().for_each(|row| pieces.row(dump, row));
                    // Row groups hold a multiple of these rows, unless a dump ended in between.
                    !pieces.has_capacity_for(ROWS_AT_ONCE)
                }
            };
            if is_enough {
                self.send();
            }
        }
        Ok(())
    }

    fn end(&mut self, dump: &Dump, completeness: &Completeness) -> anyhow::Result<()> {
        self.oldest.get_or_insert((dump.sequence, dump.at_unix_ns));
        let is_enough = match &mut self.encoding {
            Encoding::Stream(encoder) => {
                encoder.end(dump, completeness, &mut self.buffer);
                true
            }
            Encoding::Parquet(pieces) => {
                pieces.end(dump, completeness);
                pieces.is_worth_taking(dump)
            }
        };
        if is_enough {
            self.send();
        }
        Ok(())
    }

    fn account(&self) -> Account {
        let mut account = self.queue.account();
        account.rows_in += self.buffered();
        account.rows_waiting += self.buffered();
        account
    }

    fn close(mut self: Box<Self>, timeout: Duration) -> Account {
        self.send();
        self.queue.close(timeout)
    }
}

/// Writes chunks to files, in the thread of the delivery queue.
struct Writer {
    config: FilesConfig,
    disk: Disk,
    open: Option<Open>,
    compressor: Option<zstd::bulk::Compressor<'static>>,
    /// Counts the files, so that the names of those of one second differ.
    count: u32,
    /// The files that this process has completed, with their place in that order.
    completed: HashMap<PathBuf, u64>,
    alignment: Alignment,
    /// Faults that [`Delivery::faults`] has not returned yet.
    faults: Vec<Fault>,
    _lock: FileLock,
}

/// The file that is being written.
struct Open {
    file: Uncached,
    path: PathBuf,
    /// Its name once it is complete.
    proper: PathBuf,
    began: Instant,
    rows: u64,
    assembler: Option<Assembler>,
}

impl Writer {
    /// Opens the directory and salvages the unfinished files of earlier processes.
    fn open(config: FilesConfig, alignment: Alignment, disk: Disk) -> anyhow::Result<Self> {
        let directory = &config.directory;
        let context = || format!("cannot write to {}", directory.display());
        fs::create_dir_all(directory).with_context(context)?;
        let Some(lock) = FileLock::take(&directory.join(".lock")).with_context(context)? else {
            let text = format!("another process writes to {}", directory.display());
            return Err(UserError::new(text, "give each process a directory of its own").into());
        };
        let compressor = match config.parts {
            Parts::Frames => Some(zstd::bulk::Compressor::new(ZSTD_LEVEL)?),
            Parts::Messages | Parts::Pieces => None,
        };
        let unfinished = unfinished(directory).with_context(context)?;
        let mut writer = Self {
            config,
            disk,
            open: None,
            compressor,
            count: 0,
            completed: HashMap::new(),
            alignment,
            faults: Vec::new(),
            _lock: lock,
        };
        for (path, proper, parts) in unfinished {
            let fault = writer.salvage(&path, &proper, parts).unwrap_or_else(|error| {
                // A full disk must not prevent the collector from starting. The next process tries again.
                Fault::new(
                    disk_error_kind(&error, "unfinished"),
                    format!("{} was left unfinished: {error}", path.display()),
                )
            });
            writer.faults.push(fault);
        }
        writer.retain();
        Ok(writer)
    }

    /// Completes the file of a killed process as `.partial`, or removes it if no part of it is complete.
    fn salvage(&mut self, path: &Path, proper: &str, parts: Parts) -> io::Result<Fault> {
        let found = salvage::salvage(&self.disk, path, parts)?;
        let text = if found.bytes == 0 {
            self.disk.remove(path)?;
            format!("{proper} was never completed and had no complete part: it has been removed")
        } else {
            let partial = format!("{proper}{PARTIAL}");
            self.disk.rename(path, &self.config.directory.join(&partial))?;
            self.disk.sync_directory(&self.config.directory)?;
            format!("{proper} was never completed: the {} bytes of its complete parts are in {partial}", found.bytes)
        };
        Ok(Fault { bytes: found.cut, ..Fault::new("unfinished", text) })
    }

    /// Creates the next file, named after the time of its first dump.
    fn begin(&mut self, at_unix_ns: u64) -> io::Result<Open> {
        let begun = UNIX_EPOCH + Duration::from_nanos(at_unix_ns);
        let (proper, path) = loop {
            self.count += 1;
            let name = format!("sockets-{}-{:06}.{}", utc::compact(begun), self.count, self.config.suffix);
            let proper = self.config.directory.join(&name);
            if !proper.exists() && !self.config.directory.join(format!("{name}{PARTIAL}")).exists() {
                break (proper, self.config.directory.join(format!(".{name}.tmp")));
            }
        };
        let file = Uncached::create(&self.disk, &path)?;
        let mut open = Open { file, path, proper, began: Instant::now(), rows: 0, assembler: None };
        if self.config.parts == Parts::Pieces {
            open.assembler = Some(Assembler::default());
            if let Err(error) = open.file.append(MAGIC) {
                let _ = self.disk.remove(&open.path);
                return Err(error);
            }
        }
        Ok(open)
    }

    /// Whether the open file has reached a limit and is to be completed.
    fn is_due(&self) -> bool {
        self.open.as_ref().is_some_and(|open| {
            open.file.bytes() >= self.config.rotate_bytes
                || open.began.elapsed() >= self.config.rotate_every
                || open.assembler.as_ref().is_some_and(Assembler::is_full)
        })
    }

    /// Completes the open file: writes its footer, syncs it and renames it.
    fn finish(&mut self) -> io::Result<()> {
        let Some(open) = &mut self.open else { return Ok(()) };
        let before = open.file.bytes();
        if let Some(assembler) = &open.assembler {
            let footer = assembler.footer();
            open.file.append(&footer)?;
        }
        let mut proper = open.proper.clone();
        if let Err(error) = open.file.sync() {
            // The kernel reports a write-back error once, and a second fsync would succeed. So the file is not marked as complete.
            proper.as_mut_os_string().push(PARTIAL);
            let text = format!("{}: some of its {} rows may be lost: {error}", proper.display(), open.rows);
            self.faults.push(Fault::new("sync", text));
        }
        if let Err(error) = self.disk.rename(&open.path, &proper) {
            // The next attempt writes another footer.
            open.file.shorten(before)?;
            return Err(error);
        }
        self.open = None;
        let place = self.completed.values().max().map_or(1, |last| last + 1);
        self.completed.insert(proper, place);
        if let Err(error) = self.disk.sync_directory(&self.config.directory) {
            self.faults.push(Fault::new(
                "sync",
                format!("cannot sync the directory {}: {error}", self.config.directory.display()),
            ));
        }
        self.retain();
        Ok(())
    }

    /// Removes the oldest files beyond the limits.
    fn retain(&mut self) {
        if let Err(error) = retain(&self.disk, &self.config, &mut self.completed) {
            let text = format!("cannot remove old files in {}: {error}", self.config.directory.display());
            self.faults.push(Fault::new("remove", text));
        }
    }

    /// The bytes of a chunk as they are written to the file.
    fn packed<'a>(&mut self, bytes: &'a [u8]) -> io::Result<std::borrow::Cow<'a, [u8]>> {
        Ok(match &mut self.compressor {
            Some(compressor) => compressor.compress(bytes)?.into(),
            None => bytes.into(),
        })
    }

    fn write(&mut self, chunk: &Chunk) -> io::Result<()> {
        if self.is_due() {
            self.finish()?;
        }
        if self.open.is_none() {
            self.open = Some(self.begin(chunk.at_unix_ns)?);
        }
        let packed = self.packed(&chunk.bytes)?;
        let Some(open) = &mut self.open else { return Ok(()) };
        let Some(mut assembler) = open.assembler.take() else {
            open.file.append(&packed)?;
            open.rows += u64::from(chunk.rows);
            let bytes = &chunk.bytes;
            self.alignment.record(bytes.position + bytes.len() as u64, open.file.bytes());
            return Ok(());
        };
        let mark = assembler.mark();
        let added = assembler.add(&packed).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error));
        let written = added.and_then(|bytes| open.file.append(&bytes));
        match &written {
            Ok(()) => open.rows += u64::from(chunk.rows),
            Err(_) => assembler.rewind(&mark),
        }
        open.assembler = Some(assembler);
        written
    }
}

impl Delivery for Writer {
    fn deliver(&mut self, chunk: &Chunk) -> Result<Option<Rejected>, Refusal> {
        self.write(chunk).map_err(|error| Refusal {
            kind: disk_error_kind(&error, "write"),
            text: format!("{}: {error}", self.config.directory.display()),
            retriable: error.kind() != io::ErrorKind::InvalidData,
        })?;
        if self.is_due() {
            // The chunk is written. If this fails, it is retried before the next one.
            let _ = self.finish();
        }
        Ok(None)
    }

    fn faults(&mut self) -> Vec<Fault> {
        std::mem::take(&mut self.faults)
    }

    fn close(&mut self, _: Duration) {
        // A file that cannot be completed keeps its hidden name, and the next process salvages it.
        if let Err(error) = self.finish() {
            let text = format!("a file in {} was left unfinished: {error}", self.config.directory.display());
            self.faults.push(Fault::new("incomplete", text));
        }
    }
}

/// The complete files of this configuration with their sizes, the oldest first: those of earlier processes in the order in which
/// they were last written, then those of this one in the order in which it completed them. Names are not compared before
/// that, because they have the time of a clock that may have been set meanwhile: a host without a battery starts in 1970.
fn complete(config: &FilesConfig, completed: &HashMap<PathBuf, u64>) -> io::Result<Vec<(PathBuf, u64)>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(&config.directory)? {
        let entry = entry?;
        let name = entry.file_name();
        let Some(name) = name.to_str() else { continue };
        let whole = name.strip_suffix(PARTIAL).unwrap_or(name);
        if whole.starts_with("sockets-") && layout_of_name(whole) == Some((config.parts, config.suffix)) {
            let (path, found) = (entry.path(), entry.metadata()?);
            let place = completed.get(&path).copied().unwrap_or(0);
            let written = if place == 0 { found.modified().ok() } else { None };
            files.push((place, written, path, found.len()));
        }
    }
    files.sort();
    Ok(files.into_iter().map(|(_, _, path, size)| (path, size)).collect())
}

/// Removes the oldest files beyond the limits, but never the newest.
fn retain(disk: &Disk, config: &FilesConfig, completed: &mut HashMap<PathBuf, u64>) -> io::Result<()> {
    let files = complete(config, completed)?;
    let mut bytes: u64 = files.iter().map(|(_, bytes)| bytes).sum();
    let mut count = files.len();
    for (path, size) in &files {
        if count <= 1 || bytes <= config.keep_bytes && count <= config.keep_files {
            break;
        }
        disk.remove(path)?;
        completed.remove(path);
        bytes -= size;
        count -= 1;
    }
    Ok(())
}

/// Files that killed processes left: their paths, their names without `.tmp`, and their parts.
fn unfinished(directory: &Path) -> io::Result<Vec<(PathBuf, String, Parts)>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        let Some(name) = path.file_name().and_then(|n| n.to_str()) else { continue };
        let Some(proper) = name.strip_prefix('.').and_then(|n| n.strip_suffix(".tmp")) else { continue };
        if let Some((parts, _)) = layout_of_name(proper).filter(|_| proper.starts_with("sockets-")) {
            found.push((path.clone(), proper.to_owned(), parts));
        }
    }
    found.sort_unstable_by(|one, other| one.0.cmp(&other.0));
    Ok(found)
}

#[cfg(test)]
mod tests;

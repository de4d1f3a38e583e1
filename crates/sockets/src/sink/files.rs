//! Rotating files in a directory. A file has a hidden name ending in `.tmp` until it is complete; what has its proper name
//! will not change any more.
//!
//! Encoding happens where the rows come from; compressing, writing and rotating in the delivery queue's thread. What is written
//! as a whole (a zstd frame, a run of messages, a row group) is there or is not: what a full disk cut off is removed, and
//! tried again. A file and its name are synced once, at its end. What a process that was killed left is cut behind what is whole
//! and gets the name of the file with `.partial` behind it; it counts and goes as all others do.
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use parshall_core::sockets::retry::Retry;
use parshall_core::sockets::stamp::stamp;
use parshall_core::sockets::{Dump, Row};
use parshall_evidence::socket::Completeness;
use parshall_sys::file_lock::FileLock;

use super::delivery::{Chunk, Delivery, Payload, Refusal, Spare};
use super::delivery_queue::{DeliveryQueue, QueueConfig};
use super::disk::Disk;
use super::{Account, Fault, Sink, disk_error_kind};
use crate::format::Encoder;
use crate::format::json::Json;
use crate::format::parquet::file::{Assembler, MAGIC};
use crate::format::parquet::piece::Pieces;
use crate::format::protobuf::Protobuf;
use parshall_host::error::UserError;

mod salvage;
pub mod table;
mod uncached;

use uncached::{Places, Uncached};

/// Encoded bytes that go to the writer together, and become one zstd frame.
const PORTION: usize = 1 << 20;
/// Rows that are encoded before it is looked whether they are enough.
const ROWS_AT_ONCE: usize = 256;
/// Bytes that so many rows hardly exceed; growing the buffer would copy everything once more.
const ROOM_AT_ONCE: usize = 256 << 10;
/// What may wait for the disk.
const QUEUE_BYTES: usize = 8 << 20;
/// A dump comes in a burst; the writer gets so long to make room before rows are refused.
const PATIENCE: Duration = Duration::from_secs(1);
/// What stands behind the name of a file whose process was killed.
const PARTIAL: &str = ".partial";
/// A quick level: JSON shrinks to a tenth, and the next levels cost twice the time for a tenth of that.
const ZSTD_LEVEL: i32 = 1;

/// What the files hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileFormat {
    /// JSON lines, zstd.
    Json,
    /// Length-delimited rows.
    Protobuf,
    /// Length-delimited rows, zstd.
    ProtobufZstd,
    /// Parquet.
    Parquet,
}

impl FileFormat {
    const ALL: [Self; 4] = [Self::Json, Self::Protobuf, Self::ProtobufZstd, Self::Parquet];

    /// The format of a file of this name.
    fn of_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|format| name.strip_suffix(format.ending()).is_some_and(|stem| stem.ends_with('.')))
    }

    /// The end of the names.
    pub fn ending(self) -> &'static str {
        match self {
            Self::Json => "jsonl.zst",
            Self::Protobuf => "pb",
            Self::ProtobufZstd => "pb.zst",
            Self::Parquet => "parquet",
        }
    }
}

/// Where files go and how long they live.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FilesConfig {
    /// Their directory; made if it is not there. No two processes may share one.
    pub directory: PathBuf,
    /// What they hold.
    pub format: FileFormat,
    /// A new file is begun at this size.
    pub rotate_bytes: u64,
    /// Or after this time.
    pub rotate_every: Duration,
    /// The oldest go when all complete files together are larger.
    pub keep_bytes: u64,
    /// Or when there are more.
    pub keep_files: usize,
}

/// The sink.
pub struct Files {
    encoding: Encoding,
    buffer: Vec<u8>,
    /// Where the encoded bytes begin in the buffer.
    from: usize,
    buffered_rows: u32,
    /// Bytes that were offered to the delivery queue.
    offered: u64,
    places: Places,
    spare: Arc<Spare>,
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
    /// If the directory cannot be used, or another process uses it.
    pub fn start(config: FilesConfig) -> anyhow::Result<Self> {
        let encoding = match config.format {
            FileFormat::Json => Encoding::Stream(Box::new(Json::default())),
            FileFormat::Protobuf | FileFormat::ProtobufZstd => Encoding::Stream(Box::new(Protobuf::default())),
            FileFormat::Parquet => Encoding::Parquet(Box::default()),
        };
        let retry = Retry { first_ns: 100_000_000, longest_ns: 5_000_000_000 };
        let bounds = QueueConfig { queue_bytes: QUEUE_BYTES, spool: None, retry };
        let places = Places::default();
        let writer = Writer::open(config, places.clone(), Disk::default())?;
        let queue = DeliveryQueue::start("sockets-files", bounds, Box::new(writer))?;
        Ok(Self {
            encoding,
            buffer: Vec::new(),
            from: 0,
            buffered_rows: 0,
            offered: 0,
            places,
            spare: Arc::default(),
            queue,
        })
    }

    fn send(&mut self, dump: &Dump) {
        let (bytes, rows, at_unix_ns) = match &mut self.encoding {
            Encoding::Stream(_) => (self.encoded(), std::mem::take(&mut self.buffered_rows), dump.at_unix_ns),
            Encoding::Parquet(pieces) => {
                let (rows, at) = (pieces.rows() as u32, pieces.oldest_unix_ns());
                (pieces.take().into(), rows, if at == 0 { dump.at_unix_ns } else { at })
            }
        };
        self.offered += bytes.len() as u64;
        if !bytes.is_empty() {
            self.queue.offer_within(Chunk { sequence: dump.sequence, at_unix_ns, rows, bytes }, PATIENCE);
        }
    }

    /// What was encoded since the last time. Few bytes leave their buffer: while they wait, nothing counts what it has room for.
    fn encoded(&mut self) -> Payload {
        let (buffer, from) = (std::mem::take(&mut self.buffer), std::mem::take(&mut self.from));
        let mut bytes = Payload::placed(buffer, from, self.offered, self.spare.clone());
        if bytes.len() < PORTION / 4 {
            let position = bytes.position;
            bytes = bytes.to_vec().into();
            bytes.position = position;
        }
        bytes
    }

    /// Rows that no chunk holds yet.
    fn held(&self) -> u64 {
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
            let is_enough = match &mut self.encoding {
                Encoding::Stream(encoder) => {
                    if self.buffer.is_empty() {
                        self.buffer = self.spare.take(PORTION + ROOM_AT_ONCE);
                        self.from = self.places.prepare(&mut self.buffer, self.offered);
                    }
                    encoder.rows(dump, part, &mut self.buffer);
                    self.buffered_rows += part.len() as u32;
                    self.buffer.len() - self.from >= PORTION
                }
                Encoding::Parquet(pieces) => {
                    part.iter().for_each(|row| pieces.row(dump, row));
                    // Groups of rows are a multiple of what is given at once, unless a dump ended between.
                    pieces.has_no_room_for(ROWS_AT_ONCE)
                }
            };
            if is_enough {
                self.send(dump);
            }
        }
        Ok(())
    }

    fn end(&mut self, dump: &Dump, completeness: &Completeness) -> anyhow::Result<()> {
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
            self.send(dump);
        }
        Ok(())
    }

    fn account(&self) -> Account {
        let mut account = self.queue.account();
        account.rows_in += self.held();
        account.rows_waiting += self.held();
        account
    }

    fn close(mut self: Box<Self>, timeout: Duration) -> Account {
        let is_left = match &self.encoding {
            Encoding::Stream(_) => self.buffer.len() > self.from,
            Encoding::Parquet(pieces) => !pieces.is_empty(),
        };
        if is_left {
            self.send(&Dump { at_unix_ns: 0, sequence: 0, host: String::new(), backend: "" });
        }
        self.queue.close(timeout)
    }
}

/// Writes chunks to files, in the delivery queue's thread.
struct Writer {
    config: FilesConfig,
    disk: Disk,
    open: Option<Open>,
    compressor: Option<zstd::bulk::Compressor<'static>>,
    /// Number of files, so that those of one second differ.
    count: u32,
    places: Places,
    /// Not reported yet.
    faults: Vec<Fault>,
    _lock: FileLock,
}

/// The file in the making.
struct Open {
    file: Uncached,
    path: PathBuf,
    proper: PathBuf,
    began: Instant,
    rows: u64,
    assembler: Option<Assembler>,
}

impl Writer {
    /// Opens the directory; what an earlier process left unfinished is salvaged.
    fn open(config: FilesConfig, places: Places, disk: Disk) -> anyhow::Result<Self> {
        let directory = &config.directory;
        let context = || format!("cannot write to {}", directory.display());
        fs::create_dir_all(directory).with_context(context)?;
        let Some(lock) = FileLock::take(&directory.join(".lock")).with_context(context)? else {
            let text = format!("another process writes to {}", directory.display());
            return Err(UserError::new(text, "give each process a directory of its own").into());
        };
        let compressor = match config.format {
            FileFormat::Json | FileFormat::ProtobufZstd => Some(zstd::bulk::Compressor::new(ZSTD_LEVEL)?),
            FileFormat::Protobuf | FileFormat::Parquet => None,
        };
        let unfinished = unfinished(directory).with_context(context)?;
        let mut writer =
            Self { config, disk, open: None, compressor, count: 0, places, faults: Vec::new(), _lock: lock };
        for (path, proper, format) in unfinished {
            let fault = writer.salvage(&path, &proper, format).unwrap_or_else(|error| {
                // A full disk must not keep the collector from starting. The next process tries again.
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

    /// Makes the best of a file that a process left when it was killed.
    fn salvage(&mut self, path: &Path, proper: &str, format: FileFormat) -> io::Result<Fault> {
        let found = salvage::salvage(&self.disk, path, format)?;
        let text = if found.bytes == 0 {
            self.disk.remove(path)?;
            format!("{proper} was never completed: nothing in it was whole, and it has been removed")
        } else {
            let partial = format!("{proper}{PARTIAL}");
            self.disk.rename(path, &self.config.directory.join(&partial))?;
            self.disk.sync_directory(&self.config.directory)?;
            format!("{proper} was never completed: the {} bytes of it that are whole are in {partial}", found.bytes)
        };
        Ok(Fault { bytes: found.cut, ..Fault::new("unfinished", text) })
    }

    fn begin(&mut self, at_unix_ns: u64) -> io::Result<Open> {
        let (proper, path) = loop {
            self.count += 1;
            let name = format!("sockets-{}-{:06}.{}", stamp(at_unix_ns), self.count, self.config.format.ending());
            let proper = self.config.directory.join(&name);
            if !proper.exists() && !self.config.directory.join(format!("{name}{PARTIAL}")).exists() {
                break (proper, self.config.directory.join(format!(".{name}.tmp")));
            }
        };
        let file = Uncached::create(&self.disk, &path)?;
        let mut open = Open { file, path, proper, began: Instant::now(), rows: 0, assembler: None };
        if self.config.format == FileFormat::Parquet {
            open.assembler = Some(Assembler::default());
            if let Err(error) = open.file.append(MAGIC) {
                let _ = self.disk.remove(&open.path);
                return Err(error);
            }
        }
        Ok(open)
    }

    /// Whether the file in the making is done, but for its end.
    fn is_due(&self) -> bool {
        self.open.as_ref().is_some_and(|open| {
            open.file.bytes() >= self.config.rotate_bytes
                || open.began.elapsed() >= self.config.rotate_every
                || open.assembler.as_ref().is_some_and(Assembler::is_full)
        })
    }

    /// Completes the file: its end, its way to the disk, and its proper name.
    fn finish(&mut self) -> io::Result<()> {
        let Some(open) = &mut self.open else { return Ok(()) };
        let before = open.file.bytes();
        if let Some(assembler) = &open.assembler {
            let footer = assembler.footer();
            open.file.append(&footer)?;
        }
        let mut proper = open.proper.clone();
        if let Err(error) = open.file.sync() {
            // Another attempt would succeed whatever was lost (the kernel reports it once), so nobody may take it for complete.
            proper.as_mut_os_string().push(PARTIAL);
            let text = format!("{}: some of its {} rows may be lost: {error}", proper.display(), open.rows);
            self.faults.push(Fault::new("sync", text));
        }
        if let Err(error) = self.disk.rename(&open.path, &proper) {
            // It will be tried again, with a footer of its own.
            open.file.shorten(before)?;
            return Err(error);
        }
        self.open = None;
        if let Err(error) = self.disk.sync_directory(&self.config.directory) {
            self.faults.push(Fault::new("sync", format!("the names in {}: {error}", self.config.directory.display())));
        }
        self.retain();
        Ok(())
    }

    /// Removes the oldest files beyond the bounds.
    fn retain(&mut self) {
        if let Err(error) = retain(&self.disk, &self.config) {
            let text = format!("old files in {} stay: {error}", self.config.directory.display());
            self.faults.push(Fault::new("remove", text));
        }
    }

    /// The bytes of a chunk as they stand in a file.
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
            self.places.tell(bytes.position + bytes.len() as u64, open.file.bytes());
            return Ok(());
        };
        let mark = assembler.mark();
        let added = assembler.add(&packed).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error));
        let written = added.and_then(|bytes| open.file.append(&bytes));
        match &written {
            Ok(()) => open.rows += u64::from(chunk.rows),
            Err(_) => assembler.take_back(&mark),
        }
        open.assembler = Some(assembler);
        written
    }
}

impl Delivery for Writer {
    fn deliver(&mut self, chunk: &Chunk) -> Result<(), Refusal> {
        self.write(chunk).map_err(|error| Refusal {
            kind: disk_error_kind(&error, "write"),
            text: format!("{}: {error}", self.config.directory.display()),
            again: error.kind() != io::ErrorKind::InvalidData,
        })?;
        if self.is_due() {
            // The chunk is there; if this fails, it is tried again before the next one.
            let _ = self.finish();
        }
        Ok(())
    }

    fn faults(&mut self) -> Vec<Fault> {
        std::mem::take(&mut self.faults)
    }

    fn close(&mut self, _: Duration) {
        // If there is no room even for the end, the file keeps its hidden name, and the next process deals with it.
        if let Err(error) = self.finish() {
            let text = format!("a file in {} was left unfinished: {error}", self.config.directory.display());
            self.faults.push(Fault::new("incomplete", text));
        }
    }
}

/// Files of ours that will not change any more, the oldest first.
fn complete(config: &FilesConfig) -> io::Result<Vec<(PathBuf, u64)>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(&config.directory)? {
        let entry = entry?;
        let name = entry.file_name();
        let Some(name) = name.to_str() else { continue };
        let whole = name.strip_suffix(PARTIAL).unwrap_or(name);
        if whole.starts_with("sockets-") && FileFormat::of_name(whole) == Some(config.format) {
            files.push((entry.path(), entry.metadata()?.len()));
        }
    }
    files.sort();
    Ok(files)
}

/// Removes the oldest files beyond the bounds; the newest stays whatever its size.
fn retain(disk: &Disk, config: &FilesConfig) -> io::Result<()> {
    let files = complete(config)?;
    let mut bytes: u64 = files.iter().map(|(_, bytes)| bytes).sum();
    let mut count = files.len();
    for (path, size) in &files {
        if count <= 1 || bytes <= config.keep_bytes && count <= config.keep_files {
            break;
        }
        disk.remove(path)?;
        bytes -= size;
        count -= 1;
    }
    Ok(())
}

/// Files that processes left when they were killed: where they are, their proper names, and what is in them.
fn unfinished(directory: &Path) -> io::Result<Vec<(PathBuf, String, FileFormat)>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        let Some(name) = path.file_name().and_then(|n| n.to_str()) else { continue };
        let Some(proper) = name.strip_prefix('.').and_then(|n| n.strip_suffix(".tmp")) else { continue };
        if let Some(format) = FileFormat::of_name(proper).filter(|_| proper.starts_with("sockets-")) {
            found.push((path.clone(), proper.to_owned(), format));
        }
    }
    found.sort_unstable_by(|one, other| one.0.cmp(&other.0));
    Ok(found)
}

#[cfg(test)]
mod tests;

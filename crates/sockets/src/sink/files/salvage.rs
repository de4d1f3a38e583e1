//! What a process that was killed left of the file in the making: cut behind the last thing in it that is whole, so that it can
//! be read to its end.
use std::io;
use std::path::Path;

use super::FileFormat;
use crate::format::parquet::file::{Assembler, MAGIC, PIECE_END, piece_of};
use crate::sink::disk::{Disk, DiskFile};

/// Bytes that are read at a time, and as much again while what begins in them is not whole.
const WINDOW: usize = 4 << 20;
/// Nothing that is written at once is longer than this, by far.
const WHOLE_MAX: usize = 64 << 20;
/// What a zstd frame begins with (RFC 8878, 3.1.1).
const FRAME_MAGIC: [u8; 4] = 0xfd2f_b528_u32.to_le_bytes();

/// What was found in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Salvaged {
    /// Bytes that are whole; the file is as long now, but for a footer.
    pub bytes: u64,
    /// Bytes behind them that were cut off.
    pub cut: u64,
}

/// Cuts a file behind what is whole in it, and gives a Parquet file its footer. Doing it again changes nothing.
///
/// # Errors
/// The file cannot be read or written; it is as it was, or as it will be.
pub fn salvage(disk: &Disk, path: &Path, format: FileFormat) -> io::Result<Salvaged> {
    let file = disk.open(path)?;
    let length = file.bytes()?;
    let (whole, footer) = match format {
        FileFormat::Protobuf => (walk(&file, length, 0, &mut message)?, Vec::new()),
        FileFormat::Json | FileFormat::ProtobufZstd => (walk(&file, length, 0, &mut frame)?, Vec::new()),
        FileFormat::Parquet => pieces(&file, length)?,
    };
    if whole < length {
        file.set_len(whole)?;
    }
    if whole > 0 {
        if !footer.is_empty() {
            file.write_all_at(&footer, whole)?;
        }
        file.sync()?;
    }
    Ok(Salvaged { bytes: whole, cut: length - whole })
}

/// Looks at what begins with these bytes.
type Look<'a> = dyn FnMut(&[u8]) -> Found + 'a;

/// What begins with some bytes.
enum Found {
    /// Something whole, of this length.
    Whole(usize),
    /// More bytes are needed to tell.
    More,
    /// Nothing.
    Nothing,
}

/// Where what is whole ends in a file, from a place on.
fn walk(file: &DiskFile, length: u64, from: u64, look: &mut Look<'_>) -> io::Result<u64> {
    let (mut at, mut window) = (from, Vec::new());
    loop {
        let mut used = 0;
        let wants_more = loop {
            match look(&window[used..]) {
                Found::Whole(bytes) if bytes > 0 => used += bytes,
                Found::More => break true,
                _ => break false,
            }
        };
        at += used as u64;
        window.drain(..used);
        let room = (length - at - window.len() as u64).min(WINDOW.max(window.len()) as u64) as usize;
        if !wants_more || room == 0 || window.len() > WHOLE_MAX {
            return Ok(at);
        }
        let had = window.len();
        window.resize(had + room, 0);
        file.read_exact_at(&mut window[had..], at + had as u64)?;
    }
}

/// A message behind its length. No message is empty: zeros are what a loss of power leaves.
fn message(bytes: &[u8]) -> Found {
    let mut length = 0u64;
    for (at, byte) in bytes.iter().take(5).enumerate() {
        length |= u64::from(byte & 0x7f) << (7 * at);
        if byte & 0x80 == 0 {
            let end = at + 1 + length as usize;
            return match length {
                0 => Found::Nothing,
                _ if end <= bytes.len() => Found::Whole(end),
                _ => Found::More,
            };
        }
    }
    if bytes.len() < 5 { Found::More } else { Found::Nothing }
}

/// A zstd frame.
fn frame(bytes: &[u8]) -> Found {
    if bytes.len() >= FRAME_MAGIC.len() && !bytes.starts_with(&FRAME_MAGIC) {
        return Found::Nothing;
    }
    zstd::zstd_safe::find_frame_compressed_size(bytes).map_or(Found::More, Found::Whole)
}

/// The pieces of a Parquet file, each of which has its footer behind it: where they end, and the footer of them all.
fn pieces(file: &DiskFile, length: u64) -> io::Result<(u64, Vec<u8>)> {
    let mut assembler = Assembler::default();
    let mut magic = [0; MAGIC.len()];
    if length < MAGIC.len() as u64 || file.read_exact_at(&mut magic, 0).is_err() || magic != *MAGIC {
        return Ok((0, Vec::new()));
    }
    // Where the search for an end goes on: a piece has to be looked at again when more of it was read.
    let mut searched = 0;
    let end = walk(file, length, MAGIC.len() as u64, &mut |bytes| {
        while let Some(at) = find(bytes, searched) {
            searched = at + 1;
            let end = at + PIECE_END.len();
            if piece_of(&bytes[..end]).is_some_and(|piece| assembler.add(&piece).is_ok()) {
                searched = 0;
                return Found::Whole(end);
            }
        }
        searched = bytes.len().saturating_sub(PIECE_END.len() - 1);
        Found::More
    })?;
    if assembler.is_empty() {
        return Ok((0, Vec::new()));
    }
    Ok((end, assembler.footer()))
}

fn find(bytes: &[u8], from: usize) -> Option<usize> {
    bytes.get(from..)?.windows(PIECE_END.len()).position(|found| found == PIECE_END).map(|at| from + at)
}

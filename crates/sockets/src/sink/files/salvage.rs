//! Salvages the unfinished file of a killed process: cuts it behind its last complete part, so that it can be read to its end.
use std::io;
use std::path::Path;

use super::parts::Parts;
use parshall_core::sockets::varint;

use crate::format::parquet::file::{Assembler, MAGIC, PIECE_END, piece_of};
use crate::sink::disk::{Disk, DiskFile};

/// Bytes that are read at a time. The window doubles while a part does not end in it.
const WINDOW: usize = 4 << 20;
/// No part is nearly as long.
const PART_MAX: usize = 64 << 20;
/// Bytes of the length before a message: no row is 2^35 bytes long.
const LENGTH_BYTES_MAX: usize = 5;
/// The magic number of a zstd frame (RFC 8878, 3.1.1).
const FRAME_MAGIC: [u8; 4] = 0xfd2f_b528_u32.to_le_bytes();

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Salvaged {
    /// Bytes of complete parts. The file has this length now, without a footer.
    pub bytes: u64,
    /// Bytes that were cut off behind them.
    pub cut: u64,
}

/// Cuts a file behind its complete parts, and appends the footer of a Parquet file. Repeating it changes nothing.
///
/// # Errors
/// The file cannot be read or written. It is unchanged, or already cut.
pub fn salvage(disk: &Disk, path: &Path, parts: Parts) -> io::Result<Salvaged> {
    let file = disk.open(path)?;
    let length = file.bytes()?;
    let (complete, footer) = match parts {
        Parts::Messages => (scan(&file, length, 0, &mut message)?, Vec::new()),
        Parts::Frames => (scan(&file, length, 0, &mut frame)?, Vec::new()),
        Parts::Pieces => pieces(&file, length)?,
    };
    if complete < length {
        file.set_len(complete)?;
    }
    if complete > 0 {
        if !footer.is_empty() {
            file.write_all_at(&footer, complete)?;
        }
        file.sync()?;
    }
    Ok(Salvaged { bytes: complete, cut: length - complete })
}

/// Recognises the part that begins with the given bytes.
type Recognise<'a> = dyn FnMut(&[u8]) -> Found + 'a;

enum Found {
    /// A complete part of this length.
    Complete(usize),
    /// More bytes are needed.
    More,
    /// No part begins here.
    Nothing,
}

/// The end of the complete parts of a file, from the offset `from` on.
fn scan(file: &DiskFile, length: u64, from: u64, recognise: &mut Recognise<'_>) -> io::Result<u64> {
    let (mut at, mut window) = (from, Vec::new());
    loop {
        let mut used = 0;
        let wants_more = loop {
            match recognise(&window[used..]) {
                Found::Complete(bytes) if bytes > 0 => used += bytes,
                Found::More => break true,
                _ => break false,
            }
        };
        at += used as u64;
        window.drain(..used);
        let next = (length - at - window.len() as u64).min(WINDOW.max(window.len()) as u64) as usize;
        if !wants_more || next == 0 || window.len() > PART_MAX {
            return Ok(at);
        }
        let had = window.len();
        window.resize(had + next, 0);
        file.read_exact_at(&mut window[had..], at + had as u64)?;
    }
}

/// A message preceded by its length. A length of zero is no message, because a power failure leaves zeros.
fn message(bytes: &[u8]) -> Found {
    let mut rest = bytes;
    match varint::take(&mut rest) {
        None if bytes.len() < LENGTH_BYTES_MAX => Found::More,
        Some(length) if length > 0 && bytes.len() - rest.len() <= LENGTH_BYTES_MAX => {
            let end = bytes.len() - rest.len() + length as usize;
            if end <= bytes.len() { Found::Complete(end) } else { Found::More }
        }
        _ => Found::Nothing,
    }
}

fn frame(bytes: &[u8]) -> Found {
    if bytes.len() >= FRAME_MAGIC.len() && !bytes.starts_with(&FRAME_MAGIC) {
        return Found::Nothing;
    }
    zstd::zstd_safe::find_frame_compressed_size(bytes).map_or(Found::More, Found::Complete)
}

/// The pieces of a Parquet file, each followed by its footer: the end of the last one, and the footer of the whole file.
fn pieces(file: &DiskFile, length: u64) -> io::Result<(u64, Vec<u8>)> {
    let mut assembler = Assembler::default();
    let mut magic = [0; MAGIC.len()];
    if length < MAGIC.len() as u64 || file.read_exact_at(&mut magic, 0).is_err() || magic != *MAGIC {
        return Ok((0, Vec::new()));
    }
    // The offset at which the search for the end of a piece continues when more of it was read.
    let mut searched = 0;
    let end = scan(file, length, MAGIC.len() as u64, &mut |bytes| {
        while let Some(at) = find(bytes, searched) {
            searched = at + 1;
            let end = at + PIECE_END.len();
            if piece_of(&bytes[..end]).is_some_and(|piece| assembler.add(&piece).is_ok()) {
                searched = 0;
                return Found::Complete(end);
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

//! Headers of ELF files of this machine (elf(5)).
use std::io::{self, ErrorKind};

/// The error for anything else.
pub fn damaged() -> io::Error {
    io::Error::new(ErrorKind::InvalidData, "not a whole ELF file")
}

/// Positions of the headers in a file.
pub struct Layout {
    pub wide: bool,
    /// Program headers: begin and length in bytes.
    pub segments: (u64, u64),
    /// Section headers: begin, length of each in bytes, and how many.
    pub sections: (u64, u64, u16),
}

impl Layout {
    /// Reads Elf64_Ehdr or Elf32_Ehdr in this machine's byte order.
    pub fn parse(head: &[u8; 64]) -> io::Result<Self> {
        let wide = head[4] == 2;
        if &head[..4] != b"\x7fELF"
            || !(wide || head[4] == 1)
            || head[5] != if cfg!(target_endian = "little") { 1 } else { 2 }
        {
            return Err(damaged());
        }
        let (segments_at, sections_at, counts) = if wide {
            (long(head, 32), long(head, 40), 54)
        } else {
            (word(head, 28).into(), word(head, 32).into(), 42)
        };
        let count = |n: usize| u16::from_ne_bytes([head[counts + 2 * n], head[counts + 2 * n + 1]]);
        let segments = (segments_at, u64::from(count(0)) * u64::from(count(1)));
        Ok(Self { wide, segments, sections: (sections_at, count(2).into(), count(3)) })
    }

    /// Begin and length in the file of a section, from its header.
    pub fn section(&self, header: &[u8; 64]) -> (u64, u64) {
        if self.wide {
            (long(header, 24), long(header, 32))
        } else {
            (word(header, 16).into(), word(header, 20).into())
        }
    }
}

/// The 32-bit number at an offset.
pub fn word(bytes: &[u8; 64], at: usize) -> u32 {
    u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// The 64-bit number at an offset.
pub fn long(bytes: &[u8; 64], at: usize) -> u64 {
    let mut eight = [0; 8];
    eight.copy_from_slice(&bytes[at..at + 8]);
    u64::from_ne_bytes(eight)
}

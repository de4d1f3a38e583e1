//! Reads what a code object says of its function: name, file and lines.
//!
//! All of it is another process's memory. What is read has a limit, and what cannot be is left out.
use parshall_evidence::Interpreted;

use super::layout::{BYTES_DATA, BYTES_SIZE, Instruction, Offsets, STRING_LENGTH, STRING_STATE};
use super::lines;
use super::memory::Memory;

/// Characters of a name that are read.
const NAME_MAX: u64 = 512;
/// Characters of the name of a file that are kept, from its end on.
const FILE_MAX: usize = 255;
/// Characters of a path that are read, from its end on.
const PATH_MAX: u64 = 4096;
/// Bytes of a line table that are read: those of some 20,000 lines.
const TABLE_MAX: u64 = 64 << 10;

/// A function at an instruction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Function {
    /// `view_orders (app.py:42)`
    pub name: String,
    #[allow(missing_docs)]
    pub from: Interpreted,
}

/// The function of a code object, at an instruction as the frame has it. None if this is no code object that can be read.
pub fn function(memory: &mut impl Memory, of: &Offsets, code: u64, instruction: u64) -> Option<Function> {
    let field = |offset: u32| code.checked_add(offset.into());
    let name = memory.word(field(of.code_name)?)?;
    let name = string(memory, of, name, NAME_MAX, End::Last)?;
    let path = memory.word(field(of.code_file)?)?;
    let path = string(memory, of, path, PATH_MAX, End::First)?;
    if name.is_empty() {
        return None;
    }
    let first = i32::from_ne_bytes(memory.bytes(field(of.code_first_line)?)?);
    let table = memory.word(field(of.code_lines)?).and_then(|table| table_at(memory, table));
    let line = table.and_then(|table| lines::line(of.lines, &table, first, offset(of, code, instruction)?));
    let line = line.filter(|line| *line > 0).unwrap_or(first);
    Some(Function { name: format!("{name} ({}:{line})", short(&path)), from: from(&path) })
}

/// The place of an instruction, in bytes from the begin of the code. None before the first one.
fn offset(of: &Offsets, code: u64, instruction: u64) -> Option<u32> {
    match of.instruction {
        Instruction::Number(unit) => u32::try_from((instruction as u32).cast_signed()).ok()?.checked_mul(unit),
        Instruction::Address(begin) => u32::try_from(instruction.checked_sub(code)?).ok()?.checked_sub(begin),
    }
}

fn table_at(memory: &mut impl Memory, bytes: u64) -> Option<Vec<u8>> {
    let length = memory.word(bytes.checked_add(BYTES_SIZE.into())?)?.min(TABLE_MAX);
    let mut table = vec![0; length as usize];
    memory.read(bytes.checked_add(BYTES_DATA.into())?, &mut table)?;
    Some(table)
}

/// What of a string is left out where it is too long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    First,
    Last,
}

/// `PyASCIIObject.state`: two bits that do not matter, the bytes of a character in three, whether the characters are behind the object, and
/// whether all are ASCII.
fn string(memory: &mut impl Memory, of: &Offsets, at: u64, most: u64, left_out: End) -> Option<String> {
    let length = memory.word(at.checked_add(STRING_LENGTH.into())?)?;
    let state = u32::from_ne_bytes(memory.bytes(at.checked_add(STRING_STATE.into())?)?);
    let (width, compact, ascii) = (state >> 2 & 7, state & 1 << 5 != 0, state & 1 << 6 != 0);
    if !compact || !matches!(width, 1 | 2 | 4) {
        return None;
    }
    let kept = length.min(most);
    let skipped = if left_out == End::First { length - kept } else { 0 };
    let begin = at.checked_add(if ascii { of.ascii_bytes } else { of.compact_bytes }.into())?;
    let mut bytes = vec![0; (kept * u64::from(width)) as usize];
    memory.read(begin.checked_add(skipped.checked_mul(width.into())?)?, &mut bytes)?;
    let character = |bytes: &[u8]| {
        let mut four = [0; 4];
        four[..bytes.len()].copy_from_slice(bytes);
        char::from_u32(u32::from_le_bytes(four)).unwrap_or(char::REPLACEMENT_CHARACTER)
    };
    Some(bytes.chunks_exact(width as usize).map(character).collect())
}

/// The name of a file; with its directory where all packages have a file of that name.
fn short(path: &str) -> &str {
    let last = |parts: usize| path.rmatch_indices('/').nth(parts - 1).map_or(path, |(at, _)| &path[at + 1..]);
    let file = match last(1) {
        "__init__.py" | "__main__.py" => last(2),
        file => file,
    };
    file.char_indices().rev().nth(FILE_MAX - 1).map_or(file, |(at, _)| &file[at..])
}

fn from(path: &str) -> Interpreted {
    const PACKAGES: [&str; 2] = ["/site-packages/", "/dist-packages/"];
    const LIBRARY: [&str; 2] = ["/lib/python3", "/lib64/python3"];
    if PACKAGES.iter().any(|part| path.contains(part)) {
        Interpreted::Package
    } else if path.starts_with("<frozen ") || LIBRARY.iter().any(|part| path.contains(part)) {
        Interpreted::Library
    } else {
        Interpreted::Application
    }
}

#[cfg(test)]
mod tests;

//! Copies the parts of an ELF file that hold its symbols.
//!
//! blazesym maps the files that it reads. If the owner of a file truncates it meanwhile, the process is killed by SIGBUS; if the
//! owner writes to it, the data changes during parsing. So blazesym gets a sealed copy, with the headers and symbol tables at the
//! same offsets and a hole in place of the rest.
use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileExt;

use parshall_sys::memory_file;

use super::elf::{Layout, damaged, word};

/// Kinds of sections (elf(5)) that hold names: SHT_SYMTAB, SHT_STRTAB, SHT_DYNSYM.
const KINDS: [u32; 3] = [2, 3, 11];
/// Bytes copied at once.
const BLOCK: usize = 64 << 10;

/// Copies headers and symbol tables of `file`. `budget` is how many bytes may still be copied; the copied bytes are subtracted.
///
/// # Errors
/// If it is not an ELF file of this machine, is truncated, exceeds `budget`, or cannot be read.
pub fn copy(file: &File, budget: &mut u64) -> io::Result<File> {
    memory_file::sealed(c"parshall-symbols", |to| {
        let mut copier = Copier { from: file, to, budget };
        let mut head = [0; 64];
        file.read_exact_at(&mut head, 0)?;
        let layout = Layout::parse(&head)?;
        copier.copy(0, 64)?;
        copier.copy(layout.segments.0, layout.segments.1)?;
        copier.copy(layout.sections.0, layout.sections.1 * u64::from(layout.sections.2))?;
        for index in 0..u64::from(layout.sections.2) {
            let at = layout.sections.0.checked_add(index * layout.sections.1).ok_or_else(damaged)?;
            let header = read_some(to, at)?;
            let (begin, length) = layout.section(&header);
            if KINDS.contains(&word(&header, 4)) {
                copier.copy(begin, length)?;
            }
        }
        Ok(())
    })
}

/// Reads up to 64 bytes; what lies beyond the end is zero.
fn read_some(file: &File, at: u64) -> io::Result<[u8; 64]> {
    let mut bytes = [0; 64];
    file.read_at(&mut bytes, at)?;
    Ok(bytes)
}

struct Copier<'a> {
    from: &'a File,
    to: &'a File,
    budget: &'a mut u64,
}

impl Copier<'_> {
    fn copy(&mut self, begin: u64, length: u64) -> io::Result<()> {
        let end = begin.checked_add(length).ok_or_else(damaged)?;
        *self.budget = self.budget.checked_sub(length).ok_or_else(|| io::Error::from(ErrorKind::FileTooLarge))?;
        let mut block = vec![0; BLOCK];
        let mut at = begin;
        while at < end {
            let part = &mut block[..BLOCK.min((end - at) as usize)];
            self.from.read_exact_at(part, at)?;
            self.to.write_all_at(part, at)?;
            at += part.len() as u64;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own() -> File {
        File::open("/proc/self/exe").expect("our own program")
    }

    #[test]
    fn the_copy_holds_the_names_and_is_smaller() {
        let mut budget = 256 << 20;
        let copied = copy(&own(), &mut budget).expect("our own program is an ELF file");
        let taken = (256 << 20) - budget;
        assert!((10_000..own().metadata().expect("open").len()).contains(&taken), "{taken}");
        let (mut ours, mut theirs) = ([0; 64], [1; 64]);
        own().read_exact_at(&mut ours, 0).expect("readable");
        copied.read_exact_at(&mut theirs, 0).expect("readable");
        assert_eq!(ours, theirs);
    }

    #[test]
    fn more_than_there_is_room_for_is_refused() {
        assert_eq!(copy(&own(), &mut 5_000).map(drop).expect_err("too large").kind(), ErrorKind::FileTooLarge);
    }

    #[test]
    fn damaged_files_are_refused_or_copied_but_never_panic() {
        let whole = std::fs::read("/proc/self/exe").expect("our own program");
        let file = tempfile::tempfile().expect("a file");
        for seed in 0..400_u64 {
            let mut head = whole[..4096].to_vec();
            for n in 0..8 {
                let at = (seed * 8 + n).wrapping_mul(0x9e37_79b9_7f4a_7c15);
                // The magic number stays, so that the rest is read.
                head[4 + (at % 60) as usize] = (at >> 32) as u8;
            }
            file.set_len(0).and_then(|()| file.write_all_at(&head, 0)).expect("writable");
            let mut budget = 1 << 20;
            drop(copy(&file, &mut budget));
        }
        for length in 0..200 {
            file.set_len(0).and_then(|()| file.write_all_at(&whole[..length], 0)).expect("writable");
            assert!(copy(&file, &mut (1 << 20)).is_err(), "{length}");
        }
    }
}

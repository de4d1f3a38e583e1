//! Addresses of exported variables and functions of an ELF file, which stripped files keep.
use std::fs::File;
use std::os::unix::fs::FileExt;

use super::elf::{Layout, long, word};

/// SHT_DYNSYM (elf.h).
const DYNAMIC_SYMBOLS: u32 = 11;
/// Size of Elf64_Sym.
const SYMBOL_BYTES: usize = 24;
/// Bytes that are read at most of the table, and of the names.
const TABLE_MAX: u64 = 8 << 20;

/// The address of each name in the file, None of those that it does not export. Addresses are those of its program headers.
pub fn find<const N: usize>(file: &File, names: [&str; N]) -> Option<[Option<u64>; N]> {
    let mut head = [0; 64];
    file.read_exact_at(&mut head, 0).ok()?;
    let layout = Layout::parse(&head).ok().filter(|layout| layout.wide)?;
    let header = |index: u64| {
        let at = layout.sections.0.checked_add(index.checked_mul(layout.sections.1)?)?;
        let mut header = [0; 64];
        file.read_exact_at(&mut header, at).ok()?;
        Some(header)
    };
    let section = |header: &[u8; 64]| {
        let (begin, length) = layout.section(header);
        let mut bytes = vec![0; usize::try_from(length).ok().filter(|_| length <= TABLE_MAX)?];
        file.read_exact_at(&mut bytes, begin).ok()?;
        Some(bytes)
    };
    let mut headers = (0..u64::from(layout.sections.2)).filter_map(header);
    let of_symbols = headers.find(|header| word(header, 4) == DYNAMIC_SYMBOLS)?;
    let symbols = section(&of_symbols)?;
    // sh_link: the section with the names.
    let text = section(&header(word(&of_symbols, 40).into())?)?;
    let mut found = [None; N];
    for symbol in symbols.chunks_exact(SYMBOL_BYTES) {
        let mut entry = [0; 64];
        entry[..SYMBOL_BYTES].copy_from_slice(symbol);
        // Without an address it is another file's.
        let (name, address) = (text.get(word(&entry, 0) as usize..), long(&entry, 8));
        let Some(name) = name.filter(|_| address != 0) else { continue };
        for (wanted, found) in names.iter().zip(&mut found) {
            if name.strip_prefix(wanted.as_bytes()).is_some_and(|rest| rest.first() == Some(&0)) {
                *found = Some(address);
            }
        }
    }
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::super::maps;
    use super::*;

    /// libc, which every build of this test that has one loads.
    fn libc() -> Option<File> {
        let maps = maps::all(std::process::id());
        let libc = maps.iter().find(|mapping| mapping.module().starts_with("libc.so"))?;
        File::open(&libc.path).ok()
    }

    #[test]
    fn exported_names_have_addresses() {
        let Some(libc) = libc() else { return parshall_testkit::skip("symbols of libc", "this program is static") };
        let found = find(&libc, ["getpid", "getpi", "environ", "no_such_function"]).expect("a library");
        assert!(found[0].is_some() && found[2].is_some() && found[0] != found[2], "{found:?}");
        assert_eq!((found[1], found[3]), (None, None));
    }

    #[test]
    fn damaged_files_have_none_or_some_but_never_panic() {
        let Some(libc) = libc() else { return parshall_testkit::skip("symbols of libc", "this program is static") };
        let mut whole = vec![0; libc.metadata().expect("open").len() as usize];
        libc.read_exact_at(&mut whole, 0).expect("readable");
        let sections = u64::from_ne_bytes(whole[40..48].try_into().expect("eight")) as usize;
        let file = tempfile::tempfile().expect("a file");
        let mut lost = 0;
        for seed in 0..200_usize {
            let mut damaged = whole.clone();
            for n in 0..16 {
                let random = (seed * 16 + n).wrapping_mul(0x9e37_79b9_7f4a_7c15);
                // In the section headers, which lead to all else.
                let at = sections + random % (damaged.len() - sections);
                damaged[at] = (random >> 32) as u8;
            }
            file.set_len(0).and_then(|()| file.write_all_at(&damaged, 0)).expect("writable");
            lost += u32::from(find(&file, ["getpid"]).is_none_or(|found| found[0].is_none()));
        }
        assert!(lost > 0, "some had their table damaged");
    }
}

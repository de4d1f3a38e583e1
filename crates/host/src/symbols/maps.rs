//! /proc/PID/maps: the files that are mapped into the memory of a process.
//!
//! Any process can map a file 65,530 times whose path is as long as it likes: gigabytes of text. So only the mappings that are
//! needed are kept, and both what is read and what is kept has a limit.
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::ops::{ControlFlow, Range};

use parshall_evidence::Frame;

use crate::bounded_file::{self, Ended};
use crate::left_out;

/// Bytes that are read of one process: those of 300,000 mappings of files with ordinary paths.
const READ_MAX: u64 = 32 << 20;
/// Bytes of a line that are kept. A longer one has a path that no system call accepts.
const LINE_MAX: u64 = libc::PATH_MAX as u64 + 128;

/// One line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mapping {
    /// The addresses of the mapping.
    pub range: Range<u64>,
    /// Whether it holds code.
    pub executable: bool,
    /// The offset in the file at which it begins, in bytes.
    pub offset: u64,
    /// Major and minor number of the file system's device.
    pub device: (u32, u32),
    /// Inode; 0 without a file.
    pub inode: u64,
    /// The file's path, a name such as `[vdso]`, or nothing.
    pub path: String,
}

impl Mapping {
    /// The offset in the file of an address of this mapping.
    pub fn file_offset(&self, address: u64) -> u64 {
        (address - self.range.start).wrapping_add(self.offset)
    }

    /// The file's name without its directory, also of a deleted file.
    pub fn module(&self) -> String {
        let path = self.path.strip_suffix(" (deleted)").unwrap_or(&self.path);
        path.rsplit('/').next().unwrap_or(path).to_owned()
    }

    /// A frame for an address without a symbol: the file and the offset in it, which are the same in every process that runs it.
    pub fn file_frame(&self, address: u64) -> Option<Frame> {
        let name = format!("{:#x}", self.file_offset(address));
        (!self.path.is_empty()).then(|| Frame { name, module: self.module(), kernel: false })
    }
}

/// The most bytes that the stored mappings may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Budget(pub u64);

/// The mappings of a process that `wanted` asks for, ascending; none when it is gone. Their size is taken from `budget`, and
/// mappings beyond a limit are reported as left out.
pub fn read(tgid: u32, budget: &mut Budget, wanted: impl Fn(&Range<u64>, bool) -> bool) -> Vec<Mapping> {
    let Ok(file) = File::open(format!("/proc/{tgid}/maps")) else { return Vec::new() };
    let (maps, whole) = parse_all(BufReader::new(file), budget, wanted);
    if !whole {
        left_out::add(format!(
            "the memory map of process {tgid} is too long and was read in part: names of its functions may be missing"
        ));
    }
    maps
}

/// The wanted mappings, and whether these are all.
fn parse_all(
    file: impl BufRead,
    budget: &mut Budget,
    wanted: impl Fn(&Range<u64>, bool) -> bool,
) -> (Vec<Mapping>, bool) {
    let (mut maps, mut whole, mut left) = (Vec::new(), true, READ_MAX);
    let ended = bounded_file::lines(file, LINE_MAX, &mut left, |line, is_whole| {
        // A file name may hold any bytes.
        let line = String::from_utf8_lossy(line);
        let Some(mut mapping) = parse(&line).filter(|mapping| wanted(&mapping.range, mapping.executable)) else {
            return ControlFlow::Continue(());
        };
        if !is_whole {
            // The rest of the path would be another file's.
            mapping.path.clear();
        }
        mapping.path.shrink_to_fit();
        let bytes = (size_of::<Mapping>() + mapping.path.len()) as u64;
        whole = bytes <= budget.0;
        if !whole {
            return ControlFlow::Break(());
        }
        budget.0 -= bytes;
        maps.push(mapping);
        ControlFlow::Continue(())
    });
    (maps, whole && ended != Ended::AtTheLimit)
}

/// Whether one of the addresses, which are in ascending order, is in the range.
pub fn holds_any(range: &Range<u64>, addresses: &[u64]) -> bool {
    addresses.get(addresses.partition_point(|address| *address < range.start)).is_some_and(|first| *first < range.end)
}

/// All mappings of a process, for tests of processes that mean no harm.
#[cfg(test)]
pub fn all(tgid: u32) -> Vec<Mapping> {
    read(tgid, &mut Budget(u64::MAX), |_, _| true)
}

/// The mapping that holds an address.
pub fn find(maps: &[Mapping], address: u64) -> Option<&Mapping> {
    let after = maps.partition_point(|mapping| mapping.range.start <= address);
    maps[..after].last().filter(|mapping| mapping.range.contains(&address))
}

/// `55d0c0de1000-55d0c0de2000 r-xp 00001000 fd:00 1234   /usr/bin/program`
fn parse(line: &str) -> Option<Mapping> {
    let hex = |text: &str| u64::from_str_radix(text, 16).ok();
    let mut words = line.splitn(6, ' ');
    let (begin, end) = words.next()?.split_once('-')?;
    let executable = words.next()?.contains('x');
    let offset = hex(words.next()?)?;
    let (major, minor) = words.next()?.split_once(':')?;
    let device = (u32::from_str_radix(major, 16).ok()?, u32::from_str_radix(minor, 16).ok()?);
    let inode = words.next()?.parse().ok()?;
    let path = words.next().unwrap_or_default().trim_start().to_owned();
    Some(Mapping { range: hex(begin)?..hex(end)?, executable, offset, device, inode, path })
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: &str =
        "55d0c0de1000-55d0c0de2000 r-xp 00001000 fd:1f 1234                       /usr/bin/a program (deleted)";

    #[test]
    fn an_address_without_a_name_becomes_an_offset_in_its_file() {
        let maps = vec![parse(LINE).expect("a mapping")];
        assert_eq!((maps[0].device, maps[0].inode), ((0xfd, 0x1f), 1234));
        let frame = find(&maps, 0x55d0c0de1206).and_then(|mapping| mapping.file_frame(0x55d0c0de1206)).expect("inside");
        assert_eq!((frame.name.as_str(), frame.module.as_str(), frame.kernel), ("0x1206", "a program", false));
        assert!(find(&maps, 0x55d0c0de2000).is_none() && find(&maps, 0x55d0c0de0fff).is_none());
        assert!(find(&[], 1).is_none());
    }

    #[test]
    fn a_mapping_without_a_file_has_no_frame() {
        let mapping = parse("7f00-8000 rw-p 00000000 00:00 0").expect("a mapping");
        assert_eq!((mapping.path.as_str(), mapping.file_frame(0x7f10)), ("", None));
        assert_eq!(parse("no mapping"), None);
    }

    #[test]
    fn our_own_program_is_mapped() {
        let maps = all(std::process::id());
        assert!(maps.iter().any(|mapping| mapping.module().starts_with("parshall")));
        assert!(maps.is_sorted_by_key(|mapping| mapping.range.start));
        assert!(all(u32::MAX).is_empty());
    }

    #[test]
    fn a_map_without_end_is_read_to_the_limits() {
        let line = b"1000-2000 r-xp 0 fd:1f 1234 /a/b\n";
        let endless =
            |line: &[u8]| BufReader::new(std::io::Cursor::new(line.repeat(READ_MAX as usize / line.len() + 2)));
        let mut budget = Budget(1000);
        let (maps, whole) = parse_all(endless(line), &mut budget, |_, _| true);
        let one = (size_of::<Mapping>() + 4) as u64;
        assert_eq!((maps.len() as u64, whole, budget.0), (1000 / one, false, 1000 % one));
        let (maps, whole) = parse_all(endless(line), &mut Budget(1000), |range, _| range.start != 0x1000);
        assert_eq!((maps.len(), whole), (0, false), "none is wanted, and the file is longer than what is read");
        assert!(parse_all(&line[..], &mut Budget(1000), |_, _| true).1);
        // A path that is longer than a system call takes: the mapping is known, its name is not.
        let long = [&b"1000-2000 r-xp 0 fd:1f 1234 /"[..], &vec![b'x'; 1 << 20], b"/a\n", line].concat();
        let (maps, whole) = parse_all(&long[..], &mut Budget(1000), |_, _| true);
        let paths: Vec<(&str, u64)> = maps.iter().map(|mapping| (mapping.path.as_str(), mapping.inode)).collect();
        assert_eq!((paths, whole), (vec![("", 1234), ("/a/b", 1234)], true));
    }

    #[test]
    fn ranges_hold_addresses_from_their_begin_to_before_their_end() {
        let holds = |range: Range<u64>| holds_any(&range, &[10, 20]);
        assert!(holds(10..11) && holds(5..21) && holds(20..30));
        assert!(!holds(5..10) && !holds(11..20) && !holds(21..30) && !holds_any(&(0..9), &[]));
    }
}

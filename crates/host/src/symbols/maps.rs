//! /proc/PID/maps: the files that are mapped into the memory of a process.
use std::fs;
use std::ops::Range;

use parshall_evidence::Frame;

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

/// The mappings of a process, ascending; none when it is gone.
pub fn read(tgid: u32) -> Vec<Mapping> {
    // A file name may hold any bytes.
    let bytes = fs::read(format!("/proc/{tgid}/maps")).unwrap_or_default();
    String::from_utf8_lossy(&bytes).lines().filter_map(parse).collect()
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
        let maps = read(std::process::id());
        assert!(maps.iter().any(|mapping| mapping.module().starts_with("parshall")));
        assert!(maps.is_sorted_by_key(|mapping| mapping.range.start));
        assert!(read(u32::MAX).is_empty());
    }
}

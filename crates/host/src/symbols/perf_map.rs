//! /tmp/perf-PID.map: names of compiled code, written by the runtime that compiled it (the kernel's
//! tools/perf/Documentation/jit-interface.txt).
//!
//! Any user may create a file of that name in /tmp, so it is read only if it is a regular file that belongs to the process's user
//! or to root, and only up to a limit.
use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;

use crate::foreign_file::open_regular;
use crate::proc_fs::status_field;

/// The most bytes that are read.
const BYTES_MAX: u64 = 64 << 20;

/// The names of `addresses`, in ascending order, as far as the map of a process has them.
pub fn names(tgid: u32, addresses: &[u64]) -> HashMap<u64, String> {
    let Some(status) = std::fs::read_to_string(format!("/proc/{tgid}/status")).ok() else { return HashMap::new() };
    let Some((path, owner)) = path_and_owner(tgid, &status) else { return HashMap::new() };
    open_regular(&path, Some(owner)).map(|file| read(file.take(BYTES_MAX), addresses)).unwrap_or_default()
}

/// The path of the map, and its required owner. The process wrote it into its own /tmp, under its id in its own pid namespace.
fn path_and_owner(tgid: u32, status: &str) -> Option<(PathBuf, u32)> {
    let known_as = status_field(status, "NStgid").and_then(|ids| ids.split_whitespace().next_back()).map(str::to_owned);
    let known_as: u32 = known_as.unwrap_or_else(|| tgid.to_string()).parse().ok()?;
    // The real, effective, saved and file system user; the last one owns new files.
    let owner = status_field(status, "Uid")?.split_whitespace().nth(3)?.parse().ok()?;
    Some((PathBuf::from(format!("/proc/{tgid}/root/tmp/perf-{known_as}.map")), owner))
}

/// Lines of `BEGIN LENGTH NAME`, the numbers hexadecimal. Of two lines for the same code the later one holds; malformed lines are skipped.
fn read(map: impl Read, addresses: &[u64]) -> HashMap<u64, String> {
    let mut found = HashMap::new();
    let mut lines = BufReader::new(map);
    let mut line = Vec::new();
    while lines.read_until(b'\n', &mut line).is_ok_and(|length| length > 0) {
        if let Some((begin, end, name)) = parse(&line) {
            let from = addresses.partition_point(|&address| address < begin);
            for &address in addresses[from..].iter().take_while(|&&address| address < end) {
                found.insert(address, name.to_owned());
            }
        }
        line.clear();
    }
    found
}

fn parse(line: &[u8]) -> Option<(u64, u64, &str)> {
    let mut words = std::str::from_utf8(line.trim_ascii_end()).ok()?.splitn(3, ' ');
    let mut hex = || u64::from_str_radix(words.next()?, 16).ok();
    let (begin, length) = (hex()?, hex()?);
    Some((begin, begin.checked_add(length)?, words.next()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_by_address() {
        let map = b"1000 10 first\nnonsense\n2000 8 two words\n\xff\n1008 4 again\nffffffffffffffff 2 over\n3000 5";
        let found = read(&map[..], &[0xfff, 0x1000, 0x1009, 0x100c, 0x1010, 0x2007, 0x3001]);
        let name = |address: u64| found.get(&address).map(String::as_str);
        assert_eq!(name(0xfff), None);
        assert_eq!((name(0x1000), name(0x1009), name(0x100c)), (Some("first"), Some("again"), Some("first")));
        assert_eq!((name(0x1010), name(0x2007), name(0x3001)), (None, Some("two words"), None));
    }

    #[test]
    fn the_map_is_where_the_process_wrote_it() {
        let status = "Name:\tnode\nUid:\t0\t0\t0\t1000\nNStgid:\t4120\t7\n";
        assert_eq!(path_and_owner(4120, status), Some((PathBuf::from("/proc/4120/root/tmp/perf-7.map"), 1000)));
        assert_eq!(path_and_owner(7, "Uid:\t1\t2\t3\t4\n"), Some((PathBuf::from("/proc/7/root/tmp/perf-7.map"), 4)));
        assert_eq!(path_and_owner(7, ""), None);
    }
}

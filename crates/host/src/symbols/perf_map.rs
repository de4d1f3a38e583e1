//! /tmp/perf-PID.map: names of compiled code, written by the runtime that compiled it (the kernel's
//! tools/perf/Documentation/jit-interface.txt).
//!
//! Any user may create a file of that name in /tmp, so it is read only if it is a regular file that belongs to the process's user
//! or to root, and only up to a limit.
use std::borrow::Cow;
use std::collections::HashMap;
use std::io::{BufReader, Read};
use std::ops::ControlFlow;
use std::path::PathBuf;

use super::frame::shortened;
use crate::bounded_file::{self, Ended};
use crate::foreign_file::open_regular;
use crate::left_out;
use crate::proc_fs::status_field;

/// The most bytes that are read.
const BYTES_MAX: u64 = 64 << 20;
/// Bytes of a line that are kept: its two numbers, and more of the name than is stored.
const LINE_MAX: u64 = 4096;

/// The names of `addresses`, in ascending order, as far as the map of a process has them.
pub fn names(tgid: u32, addresses: &[u64]) -> HashMap<u64, String> {
    let Ok(status) = bounded_file::text(format!("/proc/{tgid}/status")) else { return HashMap::new() };
    let Some((path, owner)) = path_and_owner(tgid, &status) else { return HashMap::new() };
    let Ok(file) = open_regular(&path, Some(owner)) else { return HashMap::new() };
    let (names, whole) = read(file, addresses);
    if !whole {
        left_out::add(format!(
            "the perf map of process {tgid} is longer than 64 MiB: names of its compiled code are missing"
        ));
    }
    names
}

/// The path of the map, and its required owner. The process wrote it into its own /tmp, under its id in its own pid namespace.
fn path_and_owner(tgid: u32, status: &str) -> Option<(PathBuf, u32)> {
    let known_as = status_field(status, "NStgid").and_then(|ids| ids.split_whitespace().next_back()).map(str::to_owned);
    let known_as: u32 = known_as.unwrap_or_else(|| tgid.to_string()).parse().ok()?;
    // The real, effective, saved and file system user; the last one owns new files.
    let owner = status_field(status, "Uid")?.split_whitespace().nth(3)?.parse().ok()?;
    Some((PathBuf::from(format!("/proc/{tgid}/root/tmp/perf-{known_as}.map")), owner))
}

/// Lines of `BEGIN LENGTH NAME`, the numbers hexadecimal. Of two lines for the same code the later one holds; malformed lines are
/// skipped. Also whether the whole map was read.
fn read(map: impl Read, addresses: &[u64]) -> (HashMap<u64, String>, bool) {
    let (mut found, mut left) = (HashMap::new(), BYTES_MAX);
    let ended = bounded_file::lines(BufReader::new(map), LINE_MAX, &mut left, |line, _| {
        if let Some((begin, end, name)) = parse(line) {
            let from = addresses.partition_point(|&address| address < begin);
            for &address in addresses[from..].iter().take_while(|&&address| address < end) {
                found.insert(address, shortened(&name));
            }
        }
        ControlFlow::Continue(())
    });
    (found, ended != Ended::AtTheLimit)
}

fn parse(line: &[u8]) -> Option<(u64, u64, Cow<'_, str>)> {
    let mut words = line.trim_ascii_end().splitn(3, |byte| *byte == b' ');
    let mut hex = || u64::from_str_radix(std::str::from_utf8(words.next()?).ok()?, 16).ok();
    let (begin, length) = (hex()?, hex()?);
    Some((begin, begin.checked_add(length)?, String::from_utf8_lossy(words.next()?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_by_address() {
        let map = b"1000 10 first\nnonsense\n2000 8 two words\n\xff\n1008 4 again\nffffffffffffffff 2 over\n3000 5";
        let (found, _) = read(&map[..], &[0xfff, 0x1000, 0x1009, 0x100c, 0x1010, 0x2007, 0x3001]);
        let name = |address: u64| found.get(&address).map(String::as_str);
        assert_eq!(name(0xfff), None);
        assert_eq!((name(0x1000), name(0x1009), name(0x100c)), (Some("first"), Some("again"), Some("first")));
        assert_eq!((name(0x1010), name(0x2007), name(0x3001)), (None, Some("two words"), None));
    }

    #[test]
    fn a_long_name_costs_each_address_no_more_than_what_is_kept() {
        let map = [&b"0 ffffffff "[..], &vec![b'x'; 1 << 20], b"\n5 1 five\n"].concat();
        let (found, whole) = read(&map[..], &(0..1000).collect::<Vec<u64>>());
        assert_eq!(
            (found.len(), found[&7].len(), found[&5].as_str(), whole),
            (1000, super::super::frame::NAME_MAX, "five", true)
        );
        let (found, whole) = read(std::io::repeat(b'x'), &[1]);
        assert_eq!((found.len(), whole), (0, false), "a map without end");
    }

    #[test]
    fn the_map_is_where_the_process_wrote_it() {
        let status = "Name:\tnode\nUid:\t0\t0\t0\t1000\nNStgid:\t4120\t7\n";
        assert_eq!(path_and_owner(4120, status), Some((PathBuf::from("/proc/4120/root/tmp/perf-7.map"), 1000)));
        assert_eq!(path_and_owner(7, "Uid:\t1\t2\t3\t4\n"), Some((PathBuf::from("/proc/7/root/tmp/perf-7.map"), 4)));
        assert_eq!(path_and_owner(7, ""), None);
    }
}

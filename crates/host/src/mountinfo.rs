//! Parses mount tables (/proc/PID/mountinfo, man 5 proc_pid_mountinfo). They may hold any bytes, because the owner of a mount
//! namespace chooses its paths.
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

use crate::bounded_file::{self, Ended};
use crate::left_out;

/// The most bytes of a line. A longer one has a path that no system call accepts: each byte may be escaped as four.
const LINE_BYTES_MAX: u64 = 5 * libc::PATH_MAX as u64;

/// One line of a mount table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mount<'a> {
    /// Major and minor number of the device.
    pub device: Option<(u32, u32)>,
    /// The root of the mount within its file system, still escaped: a path, or a name such as `net:[4026531840]`.
    pub root: &'a [u8],
    /// The type of the file system.
    pub kind: &'a [u8],
    point: &'a [u8],
    options: &'a [u8],
}

impl<'a> Mount<'a> {
    /// Parses one line. `None` if it is not a line of a mount table.
    pub fn parse(line: &'a [u8]) -> Option<Self> {
        let mut fields = line.split(|byte| *byte == b' ');
        let device = parse_device(fields.nth(2)?);
        let (root, point) = (fields.next()?, fields.next()?);
        let mut source = fields.skip_while(|field| *field != b"-").skip(1);
        let kind = source.next()?;
        Some(Self { device, root, kind, point, options: source.nth(1).unwrap_or_default() })
    }

    /// The mount point.
    pub fn point(&self) -> PathBuf {
        path(self.point)
    }

    /// [`Mount::root`] as a path.
    pub fn root_path(&self) -> PathBuf {
        path(self.root)
    }

    /// Whether this is among the options of the file system, such as the controllers of a control group hierarchy.
    pub fn has_option(&self, option: &str) -> bool {
        self.options.split(|byte| *byte == b',').any(|found| found == option.as_bytes())
    }
}

fn parse_device(field: &[u8]) -> Option<(u32, u32)> {
    let (major, minor) = std::str::from_utf8(field).ok()?.split_once(':')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

/// The most bytes that [`read`] returns: 1,000 containers have a tenth of it.
const OWN_TABLE_MAX: u64 = 16 << 20;

/// Reads our own mount table. Empty if it cannot be read.
pub fn read() -> Vec<u8> {
    let (table, whole) = bounded_file::bytes("/proc/self/mountinfo", OWN_TABLE_MAX).unwrap_or((Vec::new(), true));
    if !whole {
        left_out::add("the mount table is longer than 16 MiB: later mounts were not seen".to_owned());
    }
    table
}

/// The first mount of a device in the table of a process (`self`, or a process id), as far as `left` bytes reach; these are
/// reduced by what was read. `None` if the device has no mount there.
///
/// # Errors
/// `FileTooLarge` if the limit was reached before it, or its line is longer than a path of a system call makes it.
pub fn with_device<T>(
    process: &str,
    device: (u32, u32),
    left: &mut u64,
    take: impl Fn(&Mount<'_>) -> T,
) -> io::Result<Option<T>> {
    let Ok(table) = File::open(format!("/proc/{process}/mountinfo")) else { return Ok(None) };
    find_device(BufReader::new(table), device, left, take)
}

fn find_device<T>(
    table: impl BufRead,
    device: (u32, u32),
    left: &mut u64,
    take: impl Fn(&Mount<'_>) -> T,
) -> io::Result<Option<T>> {
    let mut found = Ok(None);
    let ended = bounded_file::lines(table, LINE_BYTES_MAX, left, |line, whole| {
        if line.split(|byte| *byte == b' ').nth(2).and_then(parse_device) != Some(device) {
            return ControlFlow::Continue(());
        }
        found = match Mount::parse(line).filter(|_| whole) {
            Some(mount) => Ok(Some(take(&mount))),
            None => Err(io::ErrorKind::FileTooLarge.into()),
        };
        ControlFlow::Break(())
    });
    if ended == Ended::AtTheLimit { Err(io::ErrorKind::FileTooLarge.into()) } else { found }
}

/// The mounts of a table.
pub fn mounts(table: &[u8]) -> impl Iterator<Item = Mount<'_>> {
    table.split(|byte| *byte == b'\n').filter_map(Mount::parse)
}

/// Calls `take` for each mount of a table whose length another user controls. Reads it line by line, skips lines that are too
/// long, and returns how many bytes were read.
pub fn for_each(table: impl BufRead, take: &mut dyn FnMut(&Mount<'_>)) -> u64 {
    let mut left = u64::MAX;
    bounded_file::lines(table, LINE_BYTES_MAX, &mut left, |line, whole| {
        if let Some(mount) = Mount::parse(line).filter(|_| whole) {
            take(&mount);
        }
        ControlFlow::Continue(())
    });
    u64::MAX - left
}

fn path(text: &[u8]) -> PathBuf {
    PathBuf::from(OsString::from_vec(unescaped(text)))
}

/// The kernel writes space, tab, newline and backslash as `\` and three octal digits.
fn unescaped(text: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut at = 0;
    while at < text.len() {
        let digits = text.get(at + 1..at + 4).filter(|digits| digits.iter().all(|d| (b'0'..b'8').contains(d)));
        match digits.filter(|digits| text[at] == b'\\' && digits[0] < b'4') {
            Some(digits) => {
                bytes.push(digits.iter().fold(0, |value: u8, digit| value << 3 | (digit - b'0')));
                at += 4;
            }
            None => {
                bytes.push(text[at]);
                at += 1;
            }
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_table_is_read_as_the_kernel_writes_it() {
        let table = b"41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n\
            90 23 0:4 net:[4026532001] /run/netns/a\\040b rw shared:5 - nsfs nsfs rw\n\
            92 23 8:1 net:[4026532003] /a/directory rw - ext4 /dev/sda rw,errors=remount-ro\n\
            93 23 0:4 net:[4026532004] /run/x\\134y rw - nsfs nsfs rw\n\
            94 23 0:4 net:[broken\n";
        let mut seen = Vec::new();
        let read = for_each(&table[..], &mut |mount| {
            seen.push((mount.device, mount.root.to_vec(), mount.point(), mount.kind.to_vec(), mount.has_option("rw")));
        });
        let row = |device, root: &str, point: &str, kind: &str| {
            (Some(device), root.as_bytes().to_vec(), PathBuf::from(point), kind.as_bytes().to_vec(), true)
        };
        assert_eq!(
            seen,
            [
                row((0, 38), "/", "/sys/fs/cgroup/unified", "cgroup2"),
                row((0, 4), "net:[4026532001]", "/run/netns/a b", "nsfs"),
                row((8, 1), "net:[4026532003]", "/a/directory", "ext4"),
                row((0, 4), "net:[4026532004]", "/run/x\\y", "nsfs"),
            ]
        );
        assert_eq!(read, table.len() as u64);
        assert_eq!(mounts(table).count(), 4);
    }

    #[test]
    fn a_line_that_is_too_long_costs_no_memory_and_no_other_line() {
        let good = b"90 23 0:4 net:[4026532001] /run/netns/a rw - nsfs nsfs rw\n";
        let long = [&b"90 23 0:4 net:[4026532002] /"[..], &vec![b'x'; 1 << 20], b" rw - nsfs nsfs rw\n"].concat();
        let table = [&good[..], &long, good].concat();
        let mut seen = Vec::new();
        assert_eq!(for_each(&table[..], &mut |mount| seen.push(mount.point())), table.len() as u64);
        assert_eq!(seen, [PathBuf::from("/run/netns/a"), PathBuf::from("/run/netns/a")]);
    }

    #[test]
    fn a_device_is_found_or_the_answer_is_an_error() {
        let long = format!("9 2 0:9 / /{} rw - fuse x rw\n", "x".repeat(30_000));
        let table = format!("1 2 0:7 / /a rw - ext4 x rw\n{long}3 2 0:8 / /b rw - fuse y rw\n");
        let kind = |minor: u32, mut left: u64| {
            find_device(table.as_bytes(), (0, minor), &mut left, |mount| mount.kind.to_vec()).map_err(|e| e.kind())
        };
        assert_eq!(kind(7, 1 << 20), Ok(Some(b"ext4".to_vec())));
        assert_eq!(kind(8, 1 << 20), Ok(Some(b"fuse".to_vec())));
        assert_eq!(kind(6, 1 << 20), Ok(None));
        assert_eq!(kind(9, 1 << 20), Err(io::ErrorKind::FileTooLarge), "a path that hides what is mounted there");
        assert_eq!(kind(8, 20_000), Err(io::ErrorKind::FileTooLarge));
    }

    #[test]
    fn a_source_that_looks_like_an_option_is_none() {
        let mount = Mount::parse(b"36 35 0:52 / /mnt rw - fuse.app user_id=0 rw,user_id=1000").expect("a mount");
        assert!(!mount.has_option("user_id=0") && mount.has_option("user_id=1000"));
    }
}

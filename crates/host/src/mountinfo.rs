//! Parses mount tables (/proc/PID/mountinfo, man 5 proc_pid_mountinfo). They may hold any bytes, because the owner of a mount
//! namespace chooses its paths.
use std::ffi::OsString;
use std::io::{BufRead, Read};
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

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
        let device = std::str::from_utf8(fields.nth(2)?).ok().and_then(|text| {
            let (major, minor) = text.split_once(':')?;
            Some((major.parse().ok()?, minor.parse().ok()?))
        });
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

/// Reads the mount table of a process (`self`, or a process id). Empty if it cannot be read.
pub fn read(process: &str) -> Vec<u8> {
    std::fs::read(format!("/proc/{process}/mountinfo")).unwrap_or_default()
}

/// The mounts of a table.
pub fn mounts(table: &[u8]) -> impl Iterator<Item = Mount<'_>> {
    table.split(|byte| *byte == b'\n').filter_map(Mount::parse)
}

/// Calls `take` for each mount of a table whose length another user controls. Reads it line by line, skips lines that are too
/// long, and returns how many bytes were read.
pub fn for_each(mut table: impl BufRead, take: &mut dyn FnMut(&Mount<'_>)) -> u64 {
    let (mut read, mut line) = (0, Vec::new());
    loop {
        line.clear();
        // A read error counts as the end of the table.
        match table.by_ref().take(LINE_BYTES_MAX).read_until(b'\n', &mut line) {
            Ok(0) | Err(_) => return read,
            Ok(bytes) => read += bytes as u64,
        }
        if line.pop_if(|last| *last == b'\n').is_none() && line.len() as u64 == LINE_BYTES_MAX {
            read += table.skip_until(b'\n').unwrap_or(0) as u64;
        } else if let Some(mount) = Mount::parse(&line) {
            take(&mount);
        }
    }
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
    fn a_source_that_looks_like_an_option_is_none() {
        let mount = Mount::parse(b"36 35 0:52 / /mnt rw - fuse.app user_id=0 rw,user_id=1000").expect("a mount");
        assert!(!mount.has_option("user_id=0") && mount.has_option("user_id=1000"));
    }
}

//! Reads files whose length somebody else chooses, up to a limit: those of /proc have the paths, threads and mappings of other users'
//! processes in them.
//!
//! `std::fs::read` and `std::fs::read_to_string` have no limit, so `clippy.toml` forbids them in the crates that read the host.
use std::fs::File;
use std::io::{self, BufRead, ErrorKind, Read};
use std::ops::ControlFlow;
use std::path::Path;

use crate::left_out;

/// The most bytes of a text that is read as a whole. The longest ones that the kernel writes of an ordinary process are a `status` with
/// 65,536 groups and a `cgroup` with a long path for each of its hierarchies.
pub const TEXT_MAX: u64 = 1 << 20;

/// The text of a file. Bytes that are not UTF-8 are replaced.
///
/// # Errors
/// Those of open(2) and read(2); `FileTooLarge` beyond [`TEXT_MAX`], which is reported as left out.
pub fn text(path: impl AsRef<Path>) -> io::Result<String> {
    let path = path.as_ref();
    let (bytes, whole) = bytes(path, TEXT_MAX)?;
    if !whole {
        left_out::add(format!("{} is longer than 1 MiB and was not read", path.display()));
        return Err(io::Error::from(ErrorKind::FileTooLarge));
    }
    Ok(String::from_utf8(bytes).unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned()))
}

/// The first `max` bytes of a file, and whether these are all.
///
/// # Errors
/// Those of open(2) and read(2).
pub fn bytes(path: impl AsRef<Path>, max: u64) -> io::Result<(Vec<u8>, bool)> {
    let mut bytes = Vec::new();
    File::open(path)?.take(max + 1).read_to_end(&mut bytes)?;
    let whole = bytes.len() as u64 <= max;
    bytes.truncate(max as usize);
    Ok((bytes, whole))
}

/// How a reading by lines ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// At the end of the file; a read error counts as one.
    AtTheEnd,
    /// Its limit was reached.
    AtTheLimit,
    /// The caller had what it wanted.
    AsAsked,
}

/// Calls `take` with each line, without its newline and at most `line_max` bytes of it, and whether that is the whole line. Reads at
/// most `left` bytes, from which it subtracts what it has read.
pub fn lines(
    mut file: impl BufRead,
    line_max: u64,
    left: &mut u64,
    mut take: impl FnMut(&[u8], bool) -> ControlFlow<()>,
) -> Ended {
    let mut line = Vec::new();
    loop {
        if *left == 0 {
            return Ended::AtTheLimit;
        }
        line.clear();
        let most = line_max.saturating_add(1).min(*left);
        match file.by_ref().take(most).read_until(b'\n', &mut line) {
            Ok(0) | Err(_) => return Ended::AtTheEnd,
            Ok(read) => *left -= read as u64,
        }
        let whole = line.pop_if(|last| *last == b'\n').is_some() || (line.len() as u64) < most;
        if !whole {
            line.truncate(line_max as usize);
            skip_line(&mut file, left);
        }
        if take(&line, whole).is_break() {
            return Ended::AsAsked;
        }
    }
}

fn skip_line(file: &mut impl BufRead, left: &mut u64) {
    *left -= file.by_ref().take(*left).skip_until(b'\n').unwrap_or(0) as u64;
}

#[cfg(test)]
mod tests {
    use std::io::BufReader;

    use super::*;

    fn all(file: &[u8], line_max: u64, mut left: u64) -> (Vec<(String, bool)>, Ended, u64) {
        let mut seen = Vec::new();
        let ended = lines(file, line_max, &mut left, |line, whole| {
            seen.push((String::from_utf8_lossy(line).into_owned(), whole));
            ControlFlow::Continue(())
        });
        (seen, ended, left)
    }

    #[test]
    fn lines_are_bounded_one_by_one_and_in_all() {
        let whole = |text: &str| (text.to_owned(), true);
        assert_eq!(
            all(b"a\nbc\n\nd", 3, 100),
            ([whole("a"), whole("bc"), whole(""), whole("d")].into(), Ended::AtTheEnd, 93)
        );
        assert_eq!(all(b"abc\ndefg\nh\n", 3, 100).0, [whole("abc"), ("def".into(), false), whole("h")]);
        assert_eq!(all(b"ab\ncdef", 3, 5), ([whole("ab"), ("cd".into(), false)].into(), Ended::AtTheLimit, 0));
        assert_eq!(all(b"ab\n", 3, 3), ([whole("ab")].into(), Ended::AtTheLimit, 0));
        assert_eq!(all(b"", 3, 3).1, Ended::AtTheEnd);
    }

    #[test]
    fn a_line_without_end_costs_neither_memory_nor_time() {
        let mut left = 1 << 20;
        let endless = BufReader::new(io::repeat(b'x'));
        let mut seen = 0;
        let ended = lines(endless, 4096, &mut left, |line, whole| {
            assert!(!whole && line.len() == 4096);
            seen += 1;
            ControlFlow::Continue(())
        });
        assert_eq!((ended, seen, left), (Ended::AtTheLimit, 1, 0));
    }

    #[test]
    fn a_file_beyond_the_limit_is_no_text() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), b"a\xffb").expect("writable");
        assert_eq!(text(file.path()).expect("short"), "a\u{fffd}b");
        assert_eq!(bytes(file.path(), 2).expect("readable"), (b"a\xff".to_vec(), false));
        assert!(bytes(file.path(), 3).expect("readable").1);
        std::fs::write(file.path(), vec![b' '; TEXT_MAX as usize + 1]).expect("writable");
        assert_eq!(text(file.path()).expect_err("long").kind(), ErrorKind::FileTooLarge);
    }

    #[test]
    fn a_file_without_end_is_read_to_the_limit() {
        assert_eq!(text("/dev/zero").expect_err("endless").kind(), ErrorKind::FileTooLarge);
    }
}

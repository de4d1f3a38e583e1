//! Lines of the service's own logs (`--log`): where they are looked for, and how writes become lines.
use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use parshall_bpf::diagnose::log::{self, Chunk, FILES_MAX, To, Wanted};
use parshall_core::sorting::StableSort as _;
use parshall_core::text::quote;
use parshall_evidence::{Log, LogLine};
use parshall_host::error::UserError;

use crate::observed::{Names, observed};
use crate::subject::Resolved;

/// Bytes of a line.
const LINE_MAX: usize = 200;
/// Lines in a second of the window, and in all of it.
const LINES_PER_S: u64 = 200;
const LINES_MAX: usize = 5_000;
/// A part of a line that nothing follows for so long is a line.
const GOES_ON_NS: u64 = 1_000_000_000;

/// The logs of which lines are kept.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Logs {
    /// Writes to stdout and stderr.
    streams: bool,
    /// Files with their inode numbers.
    files: Vec<(PathBuf, u64)>,
}

/// The value of `--log` without a file, and as one: it stands for stdout and stderr.
pub const STREAMS: &str = "-";

/// The logs of `--log`, each once. None without any.
pub fn find(given: Vec<PathBuf>) -> Result<Option<Logs>, UserError> {
    if given.is_empty() {
        return Ok(None);
    }
    let mut logs = Logs::default();
    for path in given {
        if path == Path::new(STREAMS) {
            logs.streams = true;
            continue;
        }
        let inode = inode(&path)?;
        if logs.files.iter().all(|(_, known)| *known != inode) {
            logs.files.push((path, inode));
        }
    }
    if logs.files.len() > FILES_MAX {
        let what = format!("{} files of log lines are given, and at most {FILES_MAX} are looked at", logs.files.len());
        return Err(UserError::new(what, "name those that matter"));
    }
    Ok(Some(logs))
}

fn inode(path: &Path) -> Result<u64, UserError> {
    let shown = quote(&path.display().to_string());
    let metadata = std::fs::metadata(path).map_err(|error| {
        let hint = "the service must have made the file before; `--log` without a file takes what it writes to stdout and stderr";
        UserError::new(format!("the log {shown} cannot be found: {error}"), hint)
    })?;
    if metadata.is_dir() {
        return Err(UserError::new(format!("the log {shown} is a directory"), "name a file in it"));
    }
    Ok(metadata.ino())
}

impl Logs {
    fn wanted(&self) -> Wanted {
        Wanted { streams: self.streams, inodes: self.files.iter().map(|(_, inode)| *inode).collect() }
    }

    fn name(&self, to: To) -> String {
        match to {
            To::Stdout => "stdout".to_owned(),
            To::Stderr => "stderr".to_owned(),
            To::File(at) => self.files.get(at).map_or_else(String::new, |(path, _)| path.display().to_string()),
        }
    }
}

/// Programs that keep writes. They are attached within windows only.
pub struct LogWatch {
    probes: log::Log,
    logs: Logs,
}

impl LogWatch {
    /// Loads the programs.
    pub fn load(logs: &Logs, resolved: &Resolved) -> Result<Self, log::Error> {
        let probes = log::Log::load(&logs.wanted(), resolved.select.follows_children())?;
        Ok(Self { probes, logs: logs.clone() })
    }

    /// A window begins.
    pub fn begin(&mut self, resolved: &Resolved) -> Result<(), log::Error> {
        self.probes.begin(&observed(resolved))
    }

    /// The window is over.
    pub fn stop(&mut self) {
        self.probes.stop();
    }

    /// The lines since `begin_ns` of the monotonic clock, and the nanoseconds that keeping them took.
    pub fn lines(&mut self, begin_ns: u64) -> (Log, u64) {
        let (chunks, left_out, took_ns) = self.probes.end();
        let mut log = lines(chunks, begin_ns, |to| self.logs.name(to));
        log.left_out += left_out;
        let mut names = Names::default();
        for line in &mut log.lines {
            line.process = names.of(line.pid);
        }
        (log, took_ns)
    }
}

/// The begin of a line whose end has not come.
struct Begun {
    at: u64,
    tid: u32,
    bytes: Vec<u8>,
}

/// Puts lines together. A line may be written in parts, and a write may have several lines.
fn lines(chunks: Vec<Chunk>, begin_ns: u64, name: impl Fn(To) -> String) -> Log {
    let mut begun: BTreeMap<(u32, To), Begun> = BTreeMap::new();
    let mut done: Vec<(To, u32, Begun, bool)> = Vec::new();
    let mut left_out = 0;
    for chunk in chunks {
        let key = (chunk.tgid, chunk.to);
        if let Some(old) = begun.remove(&key) {
            match chunk.at.saturating_sub(old.at) > GOES_ON_NS {
                true => done.push((chunk.to, chunk.tgid, old, false)),
                false => drop(begun.insert(key, old)),
            }
        }
        let mut parts = chunk.bytes.split(|byte| *byte == b'\n').peekable();
        while let Some(part) = parts.next() {
            let fresh = || Begun { at: chunk.at, tid: chunk.tid, bytes: Vec::new() };
            let mut line = begun.remove(&key).unwrap_or_else(fresh);
            // A byte more than is kept says that there was more.
            let room = (LINE_MAX + 1).saturating_sub(line.bytes.len());
            line.bytes.extend(part.iter().take(room));
            if parts.peek().is_some() {
                done.push((chunk.to, chunk.tgid, line, false));
            } else if !line.bytes.is_empty() {
                begun.insert(key, line);
            }
        }
        if chunk.length > chunk.bytes.len() as u64 {
            // The rest is not known: more of this line, and perhaps more lines.
            left_out += u64::from(chunk.bytes.contains(&b'\n'));
            done.extend(begun.remove(&key).map(|line| (chunk.to, chunk.tgid, line, true)));
        }
    }
    done.extend(begun.into_iter().map(|((pid, to), line)| (to, pid, line, false)));
    done.stable_sort_by_key(|(_, pid, line, _)| (line.at, *pid));
    let mut log = Log { lines: Vec::new(), left_out };
    let (mut second, mut of_second) = (0, 0);
    for (to, pid, Begun { at, tid, bytes }, is_cut) in done {
        let Some((text, cut)) = text(&bytes) else { continue };
        let at_ns = at.saturating_sub(begin_ns);
        if at_ns / 1_000_000_000 != second {
            (second, of_second) = (at_ns / 1_000_000_000, 0);
        }
        of_second += 1;
        if of_second > LINES_PER_S || log.lines.len() >= LINES_MAX {
            log.left_out += 1;
            continue;
        }
        let cut = cut || is_cut;
        log.lines.push(LogLine { at_ns, pid, tid, process: String::new(), to: name(to), text, cut });
    }
    log
}

/// A line of at most [`LINE_MAX`] bytes, and whether it was longer; None for an empty one.
fn text(bytes: &[u8]) -> Option<(String, bool)> {
    let bytes = bytes.strip_suffix(b"\r").unwrap_or(bytes);
    let kept = &bytes[..bytes.len().min(LINE_MAX)];
    let mut text = String::from_utf8_lossy(kept).into_owned();
    let cut = bytes.len() > LINE_MAX;
    // A character that the limit has cut is not known.
    if cut && text.ends_with(char::REPLACEMENT_CHARACTER) {
        text.pop();
    }
    (!text.trim().is_empty()).then_some((text, cut))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn chunk(at: u64, to: To, text: &str) -> Chunk {
        Chunk { at, tgid: 7, tid: 8, to, length: text.len() as u64, bytes: text.as_bytes().to_vec() }
    }

    fn made(chunks: Vec<Chunk>) -> Vec<(u64, String, bool)> {
        let log = lines(chunks, 100, |to| format!("{to:?}"));
        log.lines.into_iter().map(|line| (line.at_ns, line.text, line.cut)).collect()
    }

    fn of(at: u64, text: &str) -> (u64, String, bool) {
        (at, text.to_owned(), false)
    }

    #[test]
    fn lines_are_put_together_and_taken_apart() {
        use To::{Stderr, Stdout};
        let several = made(vec![chunk(100, Stdout, "one\ntwo\r\n\nthree\n")]);
        assert_eq!(several, [of(0, "one"), of(0, "two"), of(0, "three")]);
        let parts = vec![
            chunk(110, Stderr, "a "),
            chunk(115, Stdout, "x\n"),
            chunk(120, Stderr, "line"),
            chunk(130, Stderr, "\n"),
        ];
        assert_eq!(made(parts), [of(10, "a line"), of(15, "x")], "each descriptor has lines of its own");
        let late = vec![chunk(100, Stderr, "prompt> "), chunk(100 + 2 * SECOND, Stderr, "next\n")];
        assert_eq!(made(late), [of(0, "prompt> "), of(2 * SECOND, "next")]);
        assert_eq!(made(vec![chunk(100, Stderr, "no end")]), [of(0, "no end")]);
    }

    #[test]
    fn long_lines_are_cut_between_characters() {
        let long = "é".repeat(LINE_MAX);
        let lines = made(vec![chunk(100, To::Stdout, &format!("x{long}\nnext\n"))]);
        assert_eq!((lines[0].1.len(), lines[0].2), (LINE_MAX - 1, true));
        assert_eq!(lines[1], of(0, "next"));
        let mut unknown = chunk(100, To::Stdout, "short\nthe rest is n");
        unknown.length = 9_000;
        let log = super::lines(vec![unknown], 0, |_| String::new());
        assert_eq!((log.lines[1].cut, log.left_out), (true, 1));
    }

    #[test]
    fn a_service_that_writes_much_has_some_lines_of_each_second() {
        let chunks = (0..3_000).map(|at| chunk(100 + at * SECOND / 1_000, To::Stdout, "again\n")).collect();
        let log = lines(chunks, 100, |_| String::new());
        assert_eq!((log.lines.len() as u64, log.left_out), (3 * LINES_PER_S, 3_000 - 3 * LINES_PER_S));
        assert_eq!(log.lines.last().map(|line| line.at_ns / SECOND), Some(2));
        let chunks = (0..9_000).map(|at| chunk(100 + at * SECOND / 100, To::Stdout, "again\n")).collect();
        let log = lines(chunks, 100, |_| String::new());
        assert_eq!((log.lines.len(), log.left_out), (LINES_MAX, 4_000));
    }

    #[test]
    fn any_bytes_become_text() {
        let bytes = vec![0xff, 0x1b, b'[', b'm', 0, b'\n', 0xc3];
        let chunk = Chunk { length: 7, bytes, ..chunk(100, To::Stdout, "") };
        let texts: Vec<String> = made(vec![chunk]).into_iter().map(|(_, text, _)| text).collect();
        assert_eq!(texts, ["\u{fffd}\u{1b}[m\0", "\u{fffd}"]);
    }

    #[test]
    fn a_log_that_is_not_there_is_an_error_of_the_user() {
        let error =
            find(vec![PathBuf::from(STREAMS), PathBuf::from("/nowhere/app.log")]).expect_err("it does not exist");
        assert!(error.what.contains("`/nowhere/app.log`") && error.hint.contains("--log"), "{error:?}");
        assert!(find(vec![PathBuf::from("/tmp")]).is_err());
        assert_eq!(find(Vec::new()).expect("nothing is asked for"), None);
        let both = find(vec![PathBuf::from(STREAMS), PathBuf::from("/proc/self/exe"), PathBuf::from("/proc/self/exe")]);
        let both = both.expect("it exists").expect("something is asked for");
        assert_eq!((both.streams, both.files.len()), (true, 1), "each once");
    }
}

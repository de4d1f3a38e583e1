//! Saved cases: a capture in a file, written by `--save` and read by `show`. JSON, compressed by zstd; earlier versions did not compress.
use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::path::Path;

use anyhow::Context;
use parshall_core::critical_path::reduced;
use parshall_evidence::{CAPTURE_SCHEMA, Capture, Timeline, compat};
use parshall_host::error::UserError;
use parshall_host::private_file::PrivateFile;
use serde::de::DeserializeOwned;

/// Size of the largest file that is read, and of the largest JSON in one, in bytes. The limits of an observation (500,000 events,
/// 200,000 stalls of flows and of threads each, 20,000 stacks, some 12,000 flows) bound the JSON that `--save` makes to about half
/// of it.
const CASE_BYTES_MAX: u64 = 512 << 20;
/// A case with more events keeps only those that its requests have to do with: some 10 bytes are one.
const EVENTS_WHOLE_MAX: usize = 50_000;
/// The level of compression: higher ones take twice the time for a tenth of the size.
const LEVEL: i32 = 5;
/// The first bytes of a zstd frame (RFC 8878, 3.1.1).
const ZSTD_MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];

/// A case file that is written once, at the end.
pub fn create(path: &Path) -> Result<PrivateFile, UserError> {
    PrivateFile::create(path, "--save")
}

/// Writes a capture as a case.
pub fn write(mut capture: Capture, file: PrivateFile) -> anyhow::Result<()> {
    let is_large = |timeline: &Timeline| timeline.events() > EVENTS_WHOLE_MAX;
    capture.timeline = capture.timeline.map(|timeline| if is_large(&timeline) { reduced(timeline) } else { timeline });
    let bytes = packed(&capture).context("the capture as JSON")?;
    Ok(file.write(&bytes)?)
}

fn packed(capture: &Capture) -> anyhow::Result<Vec<u8>> {
    let mut encoder = BufWriter::new(zstd::Encoder::new(Vec::new(), LEVEL)?);
    serde_json::to_writer(&mut encoder, capture)?;
    encoder.flush()?;
    Ok(encoder.into_inner().map_err(io::IntoInnerError::into_error)?.finish()?)
}

/// Reads a case again, and refuses those of formats that are not known.
pub fn read(path: &Path) -> anyhow::Result<Capture> {
    let bytes = read_bounded(path, CASE_BYTES_MAX).map_err(|error| unreadable(path, &error))?;
    let Some(bytes) = bytes else { return Err(too_large(path, "is").into()) };
    let capture: Capture = unpacked(&bytes, CASE_BYTES_MAX).map_err(|error| refused(path, &bytes, &error))?;
    if !compat::is_known(&capture.schema) {
        return Err(unknown_format(path, &capture.schema).into());
    }
    Ok(compat::migrate(capture))
}

/// The JSON in a file, compressed or not, as a value. JSON of more than `max` bytes is refused.
fn unpacked<T: DeserializeOwned>(bytes: &[u8], max: u64) -> serde_json::Result<T> {
    // One type of reader for both: the code that reads a capture is there once for each type, and takes 100 KB.
    let json: Box<dyn Read + '_> = if bytes.starts_with(&ZSTD_MAGIC) {
        Box::new(zstd::Decoder::with_buffer(bytes).map_err(serde_json::Error::io)?)
    } else {
        Box::new(bytes)
    };
    serde_json::from_reader(BufReader::new(Limited { inner: json, left: max }))
}

/// A reader that fails once more than a number of bytes were read.
struct Limited<R> {
    inner: R,
    left: u64,
}

impl<R: Read> Read for Limited<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(buffer)?;
        self.left = self.left.checked_sub(read as u64).ok_or(io::ErrorKind::FileTooLarge)?;
        Ok(read)
    }
}

const HINT: &str = "give a file that `parshall attach --save FILE` or `parshall run --save FILE` has written";

fn unreadable(path: &Path, error: &io::Error) -> UserError {
    let hint = match error.kind() {
        io::ErrorKind::PermissionDenied => {
            format!("only its owner may read it: `sudo chown \"$USER\" {}` makes it yours", path.display())
        }
        _ => HINT.to_owned(),
    };
    UserError::new(format!("{} could not be read: {error}", path.display()), hint)
}

fn too_large(path: &Path, is: &str) -> UserError {
    let what = format!("{} {is} larger than any saved case ({} MiB)", path.display(), CASE_BYTES_MAX >> 20);
    UserError::new(what, HINT)
}

fn unknown_format(path: &Path, schema: &str) -> UserError {
    UserError::new(
        format!(
            "{} has the format {schema:?}; this parshall reads {CAPTURE_SCHEMA:?} and earlier ones",
            path.display()
        ),
        "use the parshall version that wrote it, or observe again",
    )
}

/// Why a file is no case: too large, of another format, or no JSON of ours.
fn refused(path: &Path, bytes: &[u8], error: &serde_json::Error) -> UserError {
    if error.io_error_kind() == Some(io::ErrorKind::FileTooLarge) {
        return too_large(path, "is, once uncompressed,");
    }
    match unpacked::<Head>(bytes, CASE_BYTES_MAX) {
        Ok(head) if !compat::is_known(&head.schema) => {
            other_document(path, &head.schema).unwrap_or_else(|| unknown_format(path, &head.schema))
        }
        Ok(_) => UserError::new(format!("{} is damaged: {error}", path.display()), HINT),
        Err(error) => other_lines(path, bytes)
            .or_else(|| other_file(path, bytes))
            .unwrap_or_else(|| UserError::new(format!("{} is not a saved case: {error}", path.display()), HINT)),
    }
}

/// The fields that every document of parshall begins with.
#[derive(serde::Deserialize)]
struct Head {
    schema: String,
}

/// Documents that stand one on each line.
fn other_lines(path: &Path, bytes: &[u8]) -> Option<UserError> {
    let first = serde_json::Deserializer::from_slice(bytes).into_iter::<Head>().next()?.ok()?;
    other_document(path, &first.schema)
}

/// Documents of parshall that hold no evidence.
fn other_document(path: &Path, schema: &str) -> Option<UserError> {
    let kind = schema.strip_prefix("parshall.")?.split('/').next()?;
    let (made_by, hint) = match kind {
        "verdict" => (
            "is a report of --format json, which has the answer without its evidence",
            "read it with `jq .verdict FILE`; observe with `--save slow.json` next time: `show` makes any report of that",
        ),
        "trial" => ("is the result of `parshall try`", "read it with `jq .outcome FILE`; it has no evidence to show"),
        "doctor" => ("is what `parshall doctor` found", "read it with `jq . FILE`; it has no evidence to show"),
        "tunnel" => ("is what `parshall tunnel show` printed", "read it with `jq . FILE`"),
        kind if kind.starts_with("lab-results") => {
            ("has results of an experiment", "`parshall lab compare FILE` compares its runs")
        }
        kind if kind.starts_with("lab") || kind == "load" => {
            ("is what `parshall lab` printed", "read it with `jq . FILE`")
        }
        _ => return None,
    };
    let name = path.display().to_string();
    Some(UserError::new(format!("{name} {made_by} ({schema})"), hint.replace("FILE`", &format!("{name}`"))))
}

/// Files that are taken for a case: a report for people, a page, and what other tools record.
fn other_file(path: &Path, bytes: &[u8]) -> Option<UserError> {
    let name = path.display();
    let begins = |with: &[&[u8]]| with.iter().any(|with| bytes.starts_with(with));
    let (is, hint) = if bytes.is_empty() {
        ("is empty", HINT.to_owned())
    } else if begins(&[b"<!doctype html", b"<!DOCTYPE html"]) {
        ("is a page, such as --html writes", format!("open it in a browser: `xdg-open {name}`"))
    } else if begins(&["parshall ·".as_bytes(), b"parshall - "]) {
        ("is a report as text", format!("read it with `less {name}`; {HINT}"))
    } else if begins(&[&[0xd4, 0xc3, 0xb2, 0xa1], &[0xa1, 0xb2, 0xc3, 0xd4], &[0x0a, 0x0d, 0x0d, 0x0a]]) {
        ("is a capture of packets, and parshall keeps none", HINT.to_owned())
    } else if begins(&[b"PERFILE2"]) {
        ("is a recording of perf", HINT.to_owned())
    } else {
        return None;
    };
    Some(UserError::new(format!("{name} {is}"), hint))
}

/// The content of a file; None when it has more than `max` bytes. Pipes and devices are read too, up to that size.
fn read_bounded(path: &Path, max: u64) -> io::Result<Option<Vec<u8>>> {
    let file = File::open(path)?;
    if file.metadata()?.len() > max {
        return Ok(None);
    }
    let mut bytes = Vec::new();
    file.take(max + 1).read_to_end(&mut bytes)?;
    Ok((bytes.len() as u64 <= max).then_some(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(content: &[u8]) -> UserError {
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), content).expect("writable");
        read(file.path()).expect_err("refused").downcast().expect("for the user")
    }

    fn recorded() -> Capture {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../parshall/tests/recordings/timer-wait.json");
        read(&path).expect("a case of the first format")
    }

    #[test]
    fn a_case_of_the_first_format_becomes_one_of_todays() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("redis.case");
        let old = recorded();
        assert!(old.schema == CAPTURE_SCHEMA && old.timeline.is_none() && !old.services.is_empty());
        let timeline = Some(Timeline { slices: vec![(0, 5)], ..Timeline::default() });
        let with_timeline = Capture { timeline, ..old };
        write(with_timeline.clone(), create(&path).expect("a file")).expect("saved");
        let read = read(&path).expect("a case");
        assert_eq!(read, Capture { services: Vec::new(), ..with_timeline });
    }

    #[test]
    fn a_full_disk_is_said() {
        let error = write(recorded(), create(Path::new("/dev/full")).expect("a device")).expect_err("it is full");
        assert!(error.to_string().contains("/dev/full cannot be written: No space left"), "{error}");
    }

    #[test]
    fn a_file_larger_than_any_case_is_not_read() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        // Sparse: it takes no space, and reading it would take that much memory.
        file.as_file().set_len(CASE_BYTES_MAX + 1).expect("a length");
        let error = read(file.path()).expect_err("too large");
        let error = error.downcast_ref::<UserError>().expect("for the user");
        assert!(error.what.ends_with("is larger than any saved case (512 MiB)"), "{error:?}");
        assert!(error.hint.contains("--save FILE"), "{error:?}");
    }

    #[test]
    fn a_small_file_with_more_json_than_any_case_is_refused() {
        // White space within a document is JSON.
        let bomb = |spaces| {
            let mut encoder = zstd::Encoder::new(Vec::new(), 1).expect("an encoder");
            encoder.write_all(b"[").expect("memory");
            io::copy(&mut io::repeat(b' ').take(spaces), &mut encoder).expect("memory");
            encoder.write_all(b"]").expect("memory");
            encoder.finish().expect("memory")
        };
        assert!(unpacked::<Vec<u8>>(&bomb(1 << 20), (1 << 20) + 2).expect("just small enough").is_empty());
        let error = unpacked::<Vec<u8>>(&bomb(1 << 20), (1 << 20) + 1).expect_err("too large");
        let refused = refused(Path::new("bomb.case"), &[], &error);
        assert_eq!(refused.what, "bomb.case is, once uncompressed, larger than any saved case (512 MiB)");
    }

    #[test]
    fn a_truncated_or_newer_case_is_refused() {
        let newer = b"{\"schema\":\"parshall.capture/99\"}";
        let what = refusal(newer).what;
        assert!(what.ends_with("this parshall reads \"parshall.capture/2\" and earlier ones"), "{what}");
        let compressed = zstd::encode_all(&newer[..], 1).expect("memory");
        assert!(refusal(&compressed).what.contains("capture/99"));
        assert!(refusal(&compressed[..compressed.len() - 8]).what.contains("is not a saved case"));
        assert!(refusal(b"{\"schema\":\"parshall.capture/2\"}").what.contains("is damaged: missing field"));
    }

    #[test]
    fn other_files_are_named() {
        let report = refusal(b"{\"schema\":\"parshall.verdict/1\"}");
        assert!(report.what.contains("is a report of --format json"), "{report:?}");
        assert!(report.hint.contains("`jq .verdict /") && report.hint.contains("`--save slow.json`"), "{report:?}");
        for (content, what) in [
            (&b"{\"schema\":\"parshall.lab-experiment/1\"}"[..], "is what `parshall lab` printed"),
            (b"{\"schema\":\"parshall.lab-results/1\"}\n{\"record\":\"trial\"}\n", "has results of an experiment"),
            (b"", "is empty"),
            (b"<!doctype html><html>", "is a page"),
            ("parshall · port 7000\n".as_bytes(), "is a report as text"),
            (&[0xd4, 0xc3, 0xb2, 0xa1, 2, 0], "is a capture of packets"),
            (b"hello", "is not a saved case"),
        ] {
            assert!(refusal(content).what.contains(what), "{:?}", refusal(content));
        }
    }

    #[test]
    fn what_has_no_length_is_read_up_to_the_limit() {
        assert_eq!(read_bounded(Path::new("/dev/zero"), 100).expect("readable"), None);
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), [7; 100]).expect("writable");
        assert_eq!(read_bounded(file.path(), 100).expect("readable"), Some(vec![7; 100]));
        assert_eq!(read_bounded(file.path(), 99).expect("readable"), None);
    }
}

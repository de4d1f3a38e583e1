//! Saved cases: a capture in a file, written by `--save` and read by `show`.
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use anyhow::Context;
use parshall_evidence::{CAPTURE_SCHEMA, Capture};
use parshall_host::error::UserError;
use parshall_host::private_file::PrivateFile;

/// Size of the largest case that is read, in bytes. The limits of an observation (200,000 stalls of flows and of threads each,
/// 20,000 stacks, some 12,000 flows) bound what `--save` writes to about half of it.
const CASE_BYTES_MAX: u64 = 512 << 20;

/// A case file that is written once, at the end.
pub fn create(path: &Path) -> Result<PrivateFile, UserError> {
    PrivateFile::create(path, "--save")
}

/// Writes a capture as a case.
pub fn write(capture: &Capture, file: PrivateFile) -> anyhow::Result<()> {
    let json = serde_json::to_vec(capture).context("the capture as JSON")?;
    Ok(file.write(&json)?)
}

/// Reads a case again, and refuses those of other formats.
pub fn read(path: &Path) -> anyhow::Result<Capture> {
    let hint = "give a file that `parshall attach --save FILE` or `parshall run --save FILE` has written";
    let bytes = read_bounded(path, CASE_BYTES_MAX).map_err(|e| {
        let what = format!("{} could not be read: {e}", path.display());
        match e.kind() {
            io::ErrorKind::PermissionDenied => {
                let own =
                    format!("only its owner may read it: `sudo chown \"$USER\" {}` makes it yours", path.display());
                UserError::new(what, own)
            }
            _ => UserError::new(what, hint),
        }
    })?;
    let Some(bytes) = bytes else {
        let what = format!("{} is larger than any saved case ({} MiB)", path.display(), CASE_BYTES_MAX >> 20);
        return Err(UserError::new(what, hint).into());
    };
    #[derive(serde::Deserialize)]
    struct Head {
        schema: String,
    }
    let head: Head = serde_json::from_slice(&bytes)
        .map_err(|e| UserError::new(format!("{} is not a saved case: {e}", path.display()), hint))?;
    if head.schema != CAPTURE_SCHEMA {
        return Err(UserError::new(
            format!("{} has the format {:?}; this parshall reads {CAPTURE_SCHEMA:?}", path.display(), head.schema),
            "use the parshall version that wrote it, or observe again",
        )
        .into());
    }
    let capture = serde_json::from_slice(&bytes)
        .map_err(|e| UserError::new(format!("{} is damaged: {e}", path.display()), hint))?;
    Ok(capture)
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
    fn what_has_no_length_is_read_up_to_the_limit() {
        assert_eq!(read_bounded(Path::new("/dev/zero"), 100).expect("readable"), None);
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), [7; 100]).expect("writable");
        assert_eq!(read_bounded(file.path(), 100).expect("readable"), Some(vec![7; 100]));
        assert_eq!(read_bounded(file.path(), 99).expect("readable"), None);
    }
}

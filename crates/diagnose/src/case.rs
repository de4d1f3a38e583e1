//! Saved cases: a capture in a file, written by `--save` and read by `show`.
use std::fs;
use std::io;
use std::path::Path;

use anyhow::Context;
use parshall_evidence::{CAPTURE_SCHEMA, Capture};
use parshall_host::error::UserError;
use parshall_host::private_file::PrivateFile;

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
    let bytes = fs::read(path).map_err(|e| {
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

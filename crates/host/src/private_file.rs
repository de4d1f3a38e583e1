//! Files for reports and saved cases: only their owner can read them, and they are replaced atomically.
//!
//! They are opened before the observation, so that a wrong path is reported at once.
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;

use crate::error::UserError;

/// A file that will be written once. If it is dropped unwritten, the old file stays.
#[derive(Debug)]
pub struct PrivateFile {
    path: PathBuf,
    /// The option that named the path, for hints.
    option: &'static str,
    /// The temporary file that will replace it. None for pipes and devices, which are written in place.
    partial: Option<NamedTempFile>,
}

impl PrivateFile {
    /// Prepares the file at `path`, the value of `option`. A file that exists keeps its content until [`Self::write`].
    pub fn create(path: &Path, option: &'static str) -> Result<Self, UserError> {
        let partial = match fs::metadata(path) {
            Ok(found) if found.is_dir() => return Err(cannot(path, option, "it is a directory")),
            // A path to a descriptor of this process is written through that descriptor.
            Ok(found) if !found.is_file() || path.starts_with("/dev/fd") || path.starts_with("/proc") => Ok(None),
            Ok(_) => fs::canonicalize(path).and_then(|real| beside(&real)).map(Some),
            Err(_) => beside(path).map(Some),
        };
        match partial {
            Ok(partial) => Ok(Self { path: path.to_owned(), option, partial }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                Err(cannot(path, option, "its directory does not exist"))
            }
            Err(error) => Err(cannot(path, option, &error.to_string())),
        }
    }

    /// Replaces the file by one with this content and mode 0600.
    pub fn write(self, content: &[u8]) -> Result<(), UserError> {
        let Self { path, option, partial } = self;
        let written = match partial {
            Some(partial) => replace(partial, &path, content),
            None => OpenOptions::new().write(true).open(&path).and_then(|mut file| file.write_all(content)),
        };
        written.map_err(|error| cannot(&path, option, &error.to_string()))
    }
}

/// A new file in the directory of `path`. tempfile makes it with mode 0600.
fn beside(path: &Path) -> io::Result<NamedTempFile> {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    tempfile::Builder::new().prefix(".parshall-").suffix(".partial").tempfile_in(directory)
}

fn replace(mut partial: NamedTempFile, path: &Path, content: &[u8]) -> io::Result<()> {
    partial.write_all(content)?;
    // Synced before the rename, so that a crash does not leave an empty file in place of the old one.
    partial.as_file().sync_data()?;
    let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    partial.persist(path)?;
    Ok(())
}

fn cannot(path: &Path, option: &str, why: &str) -> UserError {
    UserError::new(
        format!("{} cannot be written: {why}", path.display()),
        format!("give {option} a path in a directory that exists and that you may write to"),
    )
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).expect("it exists").permissions().mode() & 0o777
    }

    fn names(directory: &Path) -> Vec<String> {
        let entries = fs::read_dir(directory).expect("a directory");
        let mut names: Vec<String> =
            entries.map(|e| e.expect("an entry").file_name().into_string().expect("UTF-8")).collect();
        names.sort();
        names
    }

    #[test]
    fn only_the_owner_may_read_it_even_if_others_could_before() {
        let scratch = tempfile::tempdir().expect("a directory");
        let (new, old) = (scratch.path().join("new"), scratch.path().join("old"));
        fs::write(&old, "before").expect("written");
        fs::set_permissions(&old, fs::Permissions::from_mode(0o666)).expect("ours");
        for path in [&new, &old] {
            PrivateFile::create(path, "-o").expect("writable").write(b"after").expect("written");
            assert_eq!((fs::read(path).expect("readable"), mode(path)), (b"after".to_vec(), 0o600));
        }
        assert_eq!(names(scratch.path()), ["new", "old"]);
    }

    #[test]
    fn the_old_content_stays_until_the_new_one_is_written() {
        let scratch = tempfile::tempdir().expect("a directory");
        let path = scratch.path().join("case");
        fs::write(&path, "before").expect("written");
        drop(PrivateFile::create(&path, "--save").expect("writable"));
        assert_eq!(fs::read(&path).expect("readable"), b"before");
        assert_eq!(names(scratch.path()), ["case"]);
    }

    #[test]
    fn a_link_leads_to_its_file_and_a_device_is_written_in_place() {
        let scratch = tempfile::tempdir().expect("a directory");
        let (link, file) = (scratch.path().join("link"), scratch.path().join("file"));
        fs::write(&file, "before").expect("written");
        symlink(&file, &link).expect("a link");
        PrivateFile::create(&link, "-o").expect("writable").write(b"after").expect("written");
        assert!(fs::symlink_metadata(&link).expect("it exists").is_symlink());
        assert_eq!(fs::read(&file).expect("readable"), b"after");
        PrivateFile::create(Path::new("/dev/null"), "-o").expect("writable").write(b"x").expect("written");
        assert_eq!(mode(Path::new("/dev/null")), 0o666);
    }

    #[test]
    fn a_wrong_path_is_reported_with_its_option() {
        let error = PrivateFile::create(Path::new("/no/such/directory/x"), "--save").expect_err("no directory");
        assert!(error.what.contains("its directory does not exist") && error.hint.contains("--save"), "{error:?}");
        let error = PrivateFile::create(Path::new("/tmp"), "-o").expect_err("a directory");
        assert!(error.what.contains("it is a directory") && error.hint.contains("-o"), "{error:?}");
    }
}

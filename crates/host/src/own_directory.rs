//! Directories, such as those in `/run`, whose files only one user may make, change or remove: control sockets, pid files, and
//! records that this program acts on later.
use std::fs::{self, DirBuilder, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};

use parshall_sys::privileges::{User, current};

/// Makes a directory of `owner` with this mode, unless it is there. Its parent must be one that no third user may write to.
///
/// # Errors
/// `PermissionDenied` if what is there is no directory, belongs to another user, or may be written by others; and those of the
/// system calls.
pub fn make(directory: &Path, mode: u32, owner: &User) -> io::Result<()> {
    let made = match DirBuilder::new().mode(mode).create(directory) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => false,
        made => made.map(|()| true)?,
    };
    if made && *owner != current() {
        chown(directory, Some(owner.uid), Some(owner.gid))?;
    }
    check(directory, owner.uid)?;
    // The umask may have removed permissions.
    if mode & 0o077 != 0 { fs::set_permissions(directory, Permissions::from_mode(mode)) } else { Ok(()) }
}

/// Refuses what [`is_safe`] does not hold for, with words for the user.
///
/// # Errors
/// `PermissionDenied`, or `NotFound` if there is nothing.
pub fn check(directory: &Path, uid: u32) -> io::Result<()> {
    fs::symlink_metadata(directory)?;
    if is_safe(directory, uid) {
        return Ok(());
    }
    let what = format!("{} belongs to someone else, or others may write to it", directory.display());
    Err(io::Error::new(io::ErrorKind::PermissionDenied, what))
}

/// Whether it is a directory of this user in which no other user can make files. A link to one is not.
pub fn is_safe(directory: &Path, uid: u32) -> bool {
    fs::symlink_metadata(directory).is_ok_and(|m| m.is_dir() && m.uid() == uid && m.mode() & 0o022 == 0)
}

/// Replaces a file as a whole, with mode 0600: a reader, and the next start after a crash, finds the old content or the new. A
/// link of that name is replaced and not followed. One caller at a time.
///
/// # Errors
/// Those of the system calls.
pub fn replace(path: &Path, content: &[u8]) -> io::Result<()> {
    let mut partial = path.as_os_str().to_owned();
    partial.push(".new");
    let partial = PathBuf::from(partial);
    fs::remove_file(&partial)
        .or_else(|error| if error.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(error) })?;
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&partial)?;
    file.write_all(content).and_then(|()| fs::rename(&partial, path)).inspect_err(|_| {
        fs::remove_file(&partial).ok();
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_directory_that_others_may_write_to_is_refused() {
        let scratch = tempfile::tempdir().expect("a directory");
        let (path, us) = (scratch.path().join("d"), current());
        make(&path, 0o700, &us).expect("made");
        make(&path, 0o700, &us).expect("it is there");
        assert!(is_safe(&path, us.uid) && !is_safe(&path, us.uid + 1));
        for mode in [0o770, 0o702] {
            fs::set_permissions(&path, Permissions::from_mode(mode)).expect("ours");
            let error = make(&path, 0o700, &us).expect_err("others may write to it");
            assert_eq!(error.kind(), io::ErrorKind::PermissionDenied, "{mode:o}");
        }
        fs::set_permissions(&path, Permissions::from_mode(0o700)).expect("ours");
        let link = scratch.path().join("link");
        symlink(&path, &link).expect("a link");
        make(&link, 0o700, &us).expect_err("a link");
        assert_eq!(check(&scratch.path().join("none"), 0).expect_err("nothing").kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn a_directory_of_another_user_is_refused() {
        if !parshall_testkit::root("directories of other users") {
            return;
        }
        let scratch = tempfile::tempdir().expect("a directory");
        let (path, other) = (scratch.path().join("d"), User { uid: 65_534, gid: 65_534 });
        make(&path, 0o755, &other).expect("made for another user");
        let metadata = fs::metadata(&path).expect("there");
        assert_eq!((metadata.uid(), metadata.mode() & 0o777), (other.uid, 0o755));
        make(&path, 0o755, &current()).expect_err("of another user");
    }

    #[test]
    fn a_link_is_replaced_and_its_file_stays() {
        let scratch = tempfile::tempdir().expect("a directory");
        let [victim, link, partial] = ["victim", "link", "link.new"].map(|name| scratch.path().join(name));
        fs::write(&victim, "precious").expect("written");
        for planted in [&link, &partial] {
            symlink(&victim, planted).expect("a link");
        }
        for content in ["one", "two"] {
            replace(&link, content.as_bytes()).expect("written");
            assert_eq!(fs::read_to_string(&link).expect("there"), content);
        }
        assert_eq!(fs::symlink_metadata(&link).expect("there").mode() & 0o7777, 0o600);
        assert!(fs::symlink_metadata(&link).expect("there").is_file() && !partial.exists());
        assert_eq!(fs::read_to_string(&victim).expect("there"), "precious");
    }
}

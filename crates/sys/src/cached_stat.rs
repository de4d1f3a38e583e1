//! A file's metadata as the kernel has it, without asking the server of its file system.
use std::io;
use std::path::Path;

use rustix::fs::{AtFlags, CWD, StatxFlags, statx};

/// Type and permissions of a file (`st_mode`). A FUSE server that does not answer makes stat(2) wait for ever; with
/// AT_STATX_DONT_SYNC the kernel returns what it knows, and the type of an open file never changes.
///
/// Resolving a path on NFS may still wait for the server.
pub fn mode(path: &Path) -> io::Result<u32> {
    let found = statx(CWD, path, AtFlags::STATX_DONT_SYNC, StatxFlags::TYPE | StatxFlags::MODE)?;
    Ok(found.stx_mode.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mode_is_that_of_stat() {
        for (path, kind) in [("/dev/null", libc::S_IFCHR), ("/proc", libc::S_IFDIR)] {
            assert_eq!(mode(Path::new(path)).expect("it exists") & libc::S_IFMT, kind);
        }
        assert_eq!(mode(Path::new("/nowhere")).expect_err("absent").kind(), io::ErrorKind::NotFound);
    }
}

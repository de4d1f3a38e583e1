//! Files in memory that are sealed against changes (memfd_create(2)).
use std::ffi::CStr;
use std::fs::File;
use std::io;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};

/// Makes a file in memory, has `write` fill it, and seals it: from then on it neither shrinks, grows nor changes, so a mapping of
/// it cannot fault. It has no name but `/proc/self/fd/N` and is gone with its last descriptor and mapping. `name` is what
/// /proc/PID/maps shows.
///
/// # Errors
/// The error of the kernel or of `write`.
pub fn sealed(name: &CStr, write: impl FnOnce(&File) -> io::Result<()>) -> io::Result<File> {
    let file = File::from(memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?);
    write(&file)?;
    fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE | SealFlags::SEAL)?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;

    #[test]
    fn a_sealed_file_keeps_its_bytes() {
        let file = sealed(c"parshall-test", |file| file.write_all_at(b"evidence", 0)).expect("memfd");
        assert!(file.write_all_at(b"x", 0).is_err());
        assert!(file.set_len(0).is_err());
        assert!(file.set_len(100).is_err());
        let mut bytes = [0; 8];
        file.read_exact_at(&mut bytes, 0).expect("readable");
        assert_eq!(&bytes, b"evidence");
    }

    #[test]
    fn what_the_writer_says_comes_back() {
        let refused = sealed(c"parshall-test", |_| Err(io::Error::from_raw_os_error(libc::EDOM)));
        assert_eq!(refused.map(drop).expect_err("the writer failed").raw_os_error(), Some(libc::EDOM));
    }
}

//! Files that live in memory and that nobody can change once they are made.
use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd};

/// Makes a file in memory, has `write` fill it, and seals it: from then on it neither shrinks, grows nor changes, so a mapping of
/// it cannot fault. It has no name but `/proc/self/fd/N` and is gone with its last descriptor and mapping. `name` is what
/// /proc/PID/maps shows.
///
/// # Errors
/// What the kernel or `write` returned.
pub fn sealed(name: &CStr, write: impl FnOnce(&File) -> io::Result<()>) -> io::Result<File> {
    // SAFETY: `name` is NUL-terminated and lives across the call; the kernel answers with a new descriptor or -1.
    let fd = unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel just returned this descriptor to us and nothing else owns it.
    let file = unsafe { File::from_raw_fd(fd) };
    write(&file)?;
    let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_WRITE | libc::F_SEAL_SEAL;
    // SAFETY: the descriptor is open, and this command takes a plain number.
    if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) } < 0 {
        return Err(io::Error::last_os_error());
    }
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

//! A lock on a file that goes with its holder: flock(2).
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

/// Locks a file for this open description alone, without waiting: false if another holds it. The lock goes when the file
/// is closed, also when the process is killed.
pub fn try_exclusive(file: &File) -> io::Result<bool> {
    // SAFETY: flock takes a descriptor and a number, and the descriptor is open as long as `file` is borrowed.
    if unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } == 0 {
        return Ok(true);
    }
    let error = io::Error::last_os_error();
    if error.raw_os_error() == Some(libc::EWOULDBLOCK) { Ok(false) } else { Err(error) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_holder_waits_for_the_first_to_go() {
        let path = std::env::temp_dir().join(format!("parshall-lock-{}", std::process::id()));
        let first = File::create(&path).unwrap();
        let second = File::open(&path).unwrap();
        assert!(try_exclusive(&first).unwrap());
        assert!(!try_exclusive(&second).unwrap());
        drop(first);
        assert!(try_exclusive(&second).unwrap());
        std::fs::remove_file(&path).unwrap();
    }
}

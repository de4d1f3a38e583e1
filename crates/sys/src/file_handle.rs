//! Opens control groups by their id: the file handle of a control group is its id.
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// Handle type of kernfs, and so of cgroupfs (`FILEID_KERNFS` of include/linux/exportfs.h).
const KERNFS: i32 = 0xfe;

#[repr(C)]
struct Handle {
    bytes: u32,
    kind: i32,
    id: [u8; 8],
}

/// Opens (O_PATH) the control group with this id, of the hierarchy that `mount` is a directory of. ESTALE when it was removed,
/// EPERM without CAP_DAC_READ_SEARCH.
pub fn open_cgroup(mount: BorrowedFd<'_>, id: u64) -> io::Result<OwnedFd> {
    let mut handle = Handle { bytes: 8, kind: KERNFS, id: id.to_ne_bytes() };
    let flags = libc::O_PATH | libc::O_CLOEXEC;
    // SAFETY: `handle` is laid out as struct file_handle with its 8 bytes behind it, and lives across the call; the call
    // returns a new descriptor or -1.
    let fd = unsafe { libc::syscall(libc::SYS_open_by_handle_at, mount.as_raw_fd(), &raw mut handle, flags) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel just returned this descriptor to us and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::fd::AsFd;

    #[test]
    fn a_directory_elsewhere_has_no_control_groups() {
        let root = File::open("/proc").expect("/proc opens");
        let error = open_cgroup(root.as_fd(), 1).expect_err("procfs takes no such handles");
        assert_ne!(error.raw_os_error(), Some(libc::EFAULT));
    }
}

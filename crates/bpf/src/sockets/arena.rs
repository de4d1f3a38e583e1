//! The memory of an array map, shared with the kernel. What it holds is not known here.
use std::io;
use std::os::fd::AsRawFd;
use std::ptr::NonNull;

use libbpf_rs::MapCore;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// The values of an array map (BPF_F_MMAPABLE) as a slice of `T`.
#[derive(Debug)]
pub struct Arena<T> {
    at: NonNull<T>,
    len: usize,
}

// SAFETY: the mapping belongs to the arena alone and is as good on one thread as on another.
unsafe impl<T: Send> Send for Arena<T> {}

impl<T: FromBytes + IntoBytes + Immutable> Arena<T> {
    /// Maps `len` values of type `T`, which the map must hold.
    pub fn map(map: &impl MapCore, len: usize) -> io::Result<Self> {
        let bytes = map.max_entries() as usize * (map.value_size() as usize).next_multiple_of(8);
        assert!(len * size_of::<T>() <= bytes && align_of::<T>() <= 4096, "as the map was declared");
        // SAFETY: a new mapping at an address that the kernel chooses; the map is that large, as was just checked.
        let at = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                len * size_of::<T>(),
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                map.as_fd().as_raw_fd(),
                0,
            )
        };
        if at == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let at = NonNull::new(at.cast()).ok_or_else(|| io::Error::other("a mapping at address zero"))?;
        Ok(Self { at, len })
    }

    /// The values. Only while no program runs that writes them: the owner of the programs sees to that.
    pub fn values(&self) -> &[T] {
        // SAFETY: mapped for as long as the arena lives, aligned to a page, and any bytes are a value of `T`.
        unsafe { std::slice::from_raw_parts(self.at.as_ptr(), self.len) }
    }

    /// The values, to be changed, under the same condition.
    pub fn values_mut(&mut self) -> &mut [T] {
        // SAFETY: as above, and the borrow of the arena makes it the only one.
        unsafe { std::slice::from_raw_parts_mut(self.at.as_ptr(), self.len) }
    }
}

impl<T> Drop for Arena<T> {
    fn drop(&mut self) {
        // SAFETY: the mapping is the arena's own and nothing borrows from it any more.
        unsafe { libc::munmap(self.at.as_ptr().cast(), self.len * size_of::<T>()) };
    }
}

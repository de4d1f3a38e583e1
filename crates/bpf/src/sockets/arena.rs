//! The memory of an array map, mapped into this process. Its content is not interpreted here.
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

// SAFETY: the arena owns the mapping, which is not tied to a thread.
unsafe impl<T: Send> Send for Arena<T> {}

impl<T: FromBytes + IntoBytes + Immutable> Arena<T> {
    /// Maps `len` values of type `T`. Panics if the map is smaller, because its size is fixed in the C source.
    pub fn map(map: &impl MapCore, len: usize) -> io::Result<Self> {
        let bytes = map.max_entries() as usize * (map.value_size() as usize).next_multiple_of(8);
        assert!(len * size_of::<T>() <= bytes && align_of::<T>() <= 4096, "the map is declared large enough");
        // SAFETY: this makes a new mapping at an address that the kernel chooses, and the map is large enough (checked above).
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

    /// The values. The caller must not run a program that writes them while the slice is borrowed.
    pub fn values(&self) -> &[T] {
        // SAFETY: the mapping lives as long as the arena, is aligned to a page, and any bytes are a valid `T`.
        unsafe { std::slice::from_raw_parts(self.at.as_ptr(), self.len) }
    }

    /// The values, mutable, under the same condition.
    pub fn values_mut(&mut self) -> &mut [T] {
        // SAFETY: as above, and the mutable borrow of the arena excludes other slices.
        unsafe { std::slice::from_raw_parts_mut(self.at.as_ptr(), self.len) }
    }
}

impl<T> Drop for Arena<T> {
    fn drop(&mut self) {
        // SAFETY: the arena owns the mapping, and no slice of it is borrowed any more.
        unsafe { libc::munmap(self.at.as_ptr().cast(), self.len * size_of::<T>()) };
    }
}

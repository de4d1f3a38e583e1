//! Arrays at a fixed address, for memory to which the kernel holds pointers.

/// A fixed array behind a raw pointer. Message headers point into it as long as it lives. A `Box` or `Vec` would claim
/// exclusive access to its memory whenever it is mutably borrowed.
#[derive(Debug)]
pub(crate) struct Fixed<T: Copy> {
    start: *mut T,
    len: usize,
}

// SAFETY: a `Fixed` owns its memory as a Box does; nothing of it is shared, and T is plain data or a pointer into a
// neighbour that moves to the other thread together with it.
unsafe impl<T: Copy> Send for Fixed<T> {}

impl Fixed<u8> {
    /// An array of zero bytes, which takes no physical memory before it is written.
    pub(crate) fn zeroed(len: usize) -> Self {
        // vec![0; n] asks for zeroed pages, which the kernel supplies on first touch.
        Self::own(vec![0_u8; len].into_boxed_slice())
    }
}

impl<T: Copy> Fixed<T> {
    /// `len` copies of a value.
    pub(crate) fn new(value: T, len: usize) -> Self {
        Self::own(vec![value; len].into_boxed_slice())
    }

    fn own(memory: Box<[T]>) -> Self {
        let len = memory.len();
        Self { start: Box::into_raw(memory).cast(), len }
    }

    /// The address of an element.
    pub(crate) fn at(&self, index: usize) -> *mut T {
        assert!(index < self.len, "index {index} of {}", self.len);
        // SAFETY: within the allocation, as just checked.
        unsafe { self.start.add(index) }
    }

    /// A copy of an element.
    pub(crate) fn get(&self, index: usize) -> T {
        // SAFETY: `at` gives a valid element, and every one is initialised.
        unsafe { *self.at(index) }
    }

    /// Replaces an element.
    pub(crate) fn set(&mut self, index: usize, value: T) {
        // SAFETY: `at` gives a valid element, and `&mut self` excludes other accesses.
        unsafe { *self.at(index) = value }
    }
}

impl<T: Copy> Drop for Fixed<T> {
    fn drop(&mut self) {
        // SAFETY: start and len come from Box::into_raw of a boxed slice, and are given back once.
        drop(unsafe { Box::from_raw(std::ptr::slice_from_raw_parts_mut(self.start, self.len)) });
    }
}

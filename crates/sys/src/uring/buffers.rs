//! A group of provided buffers (IORING_REGISTER_PBUF_RING): the memory, the list from which the kernel takes buffers, and
//! which buffers are lent to the caller.
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::sync::atomic::{AtomicU16, Ordering};

use io_uring::types::BufRingEntry;

/// Bytes received into one buffer. The buffer belongs to the caller until the chunk is given back, so a chunk cannot be
/// copied.
#[derive(Debug)]
pub struct Chunk {
    /// The number of the ring that the chunk belongs to.
    pub(super) ring: u32,
    /// The group within that ring.
    pub(super) group: u16,
    /// The buffer within that group.
    id: u16,
    len: u32,
}

impl Chunk {
    /// Number of bytes.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.len as usize
    }
}

/// Page-aligned zeroed memory.
#[derive(Debug)]
struct Pages {
    start: *mut u8,
    layout: Layout,
}

impl Pages {
    fn new(bytes: usize) -> Self {
        // The kernel takes a list at the begin of a page only, which has up to 64 KiB (io_register_pbuf_ring() of io_uring/kbuf.c).
        let page = rustix::param::page_size();
        let layout = Layout::from_size_align(bytes.max(page), page).expect("a few MiB fit the address space");
        // SAFETY: the layout is not empty.
        let start = unsafe { alloc_zeroed(layout) };
        if start.is_null() {
            handle_alloc_error(layout);
        }
        Self { start, layout }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout, and freed once.
        unsafe { dealloc(self.start, self.layout) }
    }
}

/// The buffers of a group. Those in the list belong to the kernel, those that were taken to the caller.
#[derive(Debug)]
pub(super) struct Group {
    ring: u32,
    id: u16,
    count: u16,
    bytes: u32,
    list: Pages,
    memory: Pages,
    /// The list position of the next buffer that is given back, modulo the length of the list.
    tail: u16,
}

// SAFETY: the pages are owned and reached through `&mut self` only, but for chunks, whose bytes the kernel has done with.
unsafe impl Send for Group {}

impl Group {
    /// Allocates a group. Its list is not registered with the kernel yet.
    pub(super) fn new(ring: u32, id: u16, count: u16, bytes: u32) -> Self {
        assert!(count.is_power_of_two() && count <= 1 << 15, "the length of a list is a power of two, 32,768 at most");
        let places = usize::from(count);
        Self {
            ring,
            id,
            count,
            bytes,
            list: Pages::new(places * size_of::<BufRingEntry>()),
            memory: Pages::new(places * bytes as usize),
            tail: 0,
        }
    }

    pub(super) fn list_address(&mut self) -> u64 {
        self.list.start as u64
    }

    /// Gives the kernel all buffers.
    pub(super) fn fill(&mut self) {
        for id in 0..self.count {
            self.put(Chunk { ring: self.ring, group: self.id, id, len: 0 });
        }
        self.publish();
    }

    /// The buffer of a completion, of which `bytes` are filled.
    pub(super) fn take(&self, id: u16, bytes: u32) -> Chunk {
        assert!(id < self.count, "buffer {id} of {}", self.count);
        Chunk { ring: self.ring, group: self.id, id, len: bytes.min(self.bytes) }
    }

    /// The address and the number of a chunk's bytes.
    pub(super) fn place(&self, chunk: &Chunk) -> (*mut u8, usize) {
        debug_assert!((chunk.ring, chunk.group) == (self.ring, self.id), "the chunk is of another group");
        // SAFETY: chunks are made by `take` and `fill` alone, from numbers below `count`; the memory has that many buffers.
        // The chunk is of this group: `Ring` checks its ring and then looks up the group by its number.
        (unsafe { self.memory.start.add(usize::from(chunk.id) * self.bytes as usize) }, chunk.len as usize)
    }

    pub(super) fn bytes(&self, chunk: &Chunk) -> &[u8] {
        let (start, len) = self.place(chunk);
        // SAFETY: `len` is at most a buffer's size. The kernel took the buffer out of the list when it filled it and does
        // not write to it again before it is put back, which takes the chunk away from the caller.
        unsafe { std::slice::from_raw_parts(start, len) }
    }

    pub(super) fn bytes_mut(&mut self, chunk: &Chunk) -> &mut [u8] {
        let (start, len) = self.place(chunk);
        // SAFETY: as in `bytes`; `&mut self` excludes other accesses.
        unsafe { std::slice::from_raw_parts_mut(start, len) }
    }

    /// Writes a buffer into the list.
    pub(super) fn put(&mut self, chunk: Chunk) {
        let place = self.tail & (self.count - 1);
        let (start, _) = self.place(&chunk);
        // SAFETY: the place is below `count`, and free: the list has as many places as there are buffers, and this one
        // stood in none. The kernel does not read it before the tail is moved past it. Only address, length and number
        // are written, for the first entry shares its last field with the tail.
        let entry = unsafe { &mut *self.list.start.cast::<BufRingEntry>().add(usize::from(place)) };
        entry.set_addr(start as u64);
        entry.set_len(self.bytes);
        entry.set_bid(chunk.id);
        self.tail = self.tail.wrapping_add(1);
    }

    /// Moves the list's tail, so that the kernel may take the buffers that were put before.
    pub(super) fn publish(&mut self) {
        // SAFETY: the list begins with an entry whose last field is the tail, aligned to two bytes; the kernel only reads
        // it, as an atomic.
        let tail = unsafe { &*BufRingEntry::tail(self.list.start.cast()).cast::<AtomicU16>() };
        tail.store(self.tail, Ordering::Release);
    }
}

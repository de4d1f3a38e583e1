//! A group of provided buffers: the memory, the list through which the kernel takes buffers, and who has which.
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::sync::atomic::{AtomicU16, Ordering};

use io_uring::types::BufRingEntry;

/// The kernel wants the list to begin on a page.
const PAGE: usize = 4096;

/// Bytes received into one buffer. It stays the caller's until it is given back, so it cannot be copied.
#[derive(Debug)]
pub struct Chunk {
    /// The number of the ring that it belongs to.
    pub(super) ring: u32,
    /// Its group in that ring.
    pub(super) group: u16,
    /// Its buffer in that group.
    id: u16,
    len: u32,
}

impl Chunk {
    /// Bytes in it.
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
        let layout = Layout::from_size_align(bytes.max(PAGE), PAGE).expect("a few MiB fit the address space");
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

/// The buffers of a group. The kernel owns those that stand in the list, the caller those that were taken.
#[derive(Debug)]
pub(super) struct Group {
    ring: u32,
    id: u16,
    count: u16,
    bytes: u32,
    list: Pages,
    memory: Pages,
    /// Next place to put a buffer; counts on past the end of the list.
    tail: u16,
    /// Which buffer stands at a place, and at which place a buffer stands: several buffers of one completion are
    /// neighbours in the list.
    at: Vec<u16>,
    place_of: Vec<u16>,
    lent: usize,
}

// SAFETY: the pages are owned and reached through `&mut self` only, but for chunks, whose bytes the kernel has done with.
unsafe impl Send for Group {}

impl Group {
    /// Buffers that the kernel does not know yet.
    pub(super) fn new(ring: u32, id: u16, count: u16, bytes: u32) -> Self {
        assert!(count.is_power_of_two() && count <= 1 << 15, "a list has a power of two of places, 32,768 at most");
        let places = usize::from(count);
        Self {
            ring,
            id,
            count,
            bytes,
            list: Pages::new(places * size_of::<BufRingEntry>()),
            memory: Pages::new(places * bytes as usize),
            tail: 0,
            at: vec![0; places],
            place_of: vec![0; places],
            lent: 0,
        }
    }

    pub(super) fn list_address(&mut self) -> u64 {
        self.list.start as u64
    }

    /// Gives the kernel all buffers.
    pub(super) fn fill(&mut self) {
        self.lent = usize::from(self.count);
        for id in 0..self.count {
            self.put(Chunk { ring: self.ring, group: self.id, id, len: 0 });
        }
        self.publish();
    }

    pub(super) fn lent(&self) -> usize {
        self.lent
    }

    /// The buffers of a completion: `first` and as many of its neighbours in the list as `bytes` fill.
    pub(super) fn take(&mut self, first: u16, bytes: u32, out: &mut Vec<Chunk>) {
        let (mask, mut place, mut left) = (self.count - 1, self.place_of[usize::from(first)], bytes);
        loop {
            let len = left.min(self.bytes);
            out.push(Chunk { ring: self.ring, group: self.id, id: self.at[usize::from(place)], len });
            self.lent += 1;
            left -= len;
            if left == 0 {
                return;
            }
            place = place.wrapping_add(1) & mask;
        }
    }

    /// Where a chunk's bytes are, and how many.
    pub(super) fn place(&self, chunk: &Chunk) -> (*mut u8, usize) {
        debug_assert!((chunk.ring, chunk.group) == (self.ring, self.id), "the ring looks for the group by the chunk");
        // SAFETY: chunks are made by `take` and `fill` alone, from numbers below `count`; the memory has that many buffers.
        // It is one of this group's: `Ring` finds the group by the chunk, whose ring it has checked.
        (unsafe { self.memory.start.add(usize::from(chunk.id) * self.bytes as usize) }, chunk.len as usize)
    }

    pub(super) fn bytes(&self, chunk: &Chunk) -> &[u8] {
        let (start, len) = self.place(chunk);
        // SAFETY: `len` is at most a buffer's size. The kernel took the buffer out of the list when it filled it and does
        // not write to it again before it is put back, which takes the chunk away from the caller.
        unsafe { std::slice::from_raw_parts(start, len) }
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
        self.at[usize::from(place)] = chunk.id;
        self.place_of[usize::from(chunk.id)] = place;
        self.tail = self.tail.wrapping_add(1);
        self.lent -= 1;
    }

    /// Moves the list's tail: the kernel may take what was put before.
    pub(super) fn publish(&mut self) {
        // SAFETY: the list begins with an entry whose last field is the tail, aligned to two bytes; the kernel only reads
        // it, as an atomic.
        let tail = unsafe { &*BufRingEntry::tail(self.list.start.cast()).cast::<AtomicU16>() };
        tail.store(self.tail, Ordering::Release);
    }
}

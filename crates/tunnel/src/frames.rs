//! Frames that were read from the TUN device and are not sealed yet. A loop reads more of them than it seals in an iteration, so that they
//! wait in a [`FairQueue`] and not in the device, where all flows have one queue.
use std::io::{self, Read};

use parshall_core::tunnel::{FairQueue, VIRTIO_HEADER_LEN};
use parshall_sys::clock::boottime_ns;
use parshall_sys::uring::ReadBuffer;

use crate::data_path::HostDataPath;

/// The longest frame that a TUN device passes, with its header.
pub const FRAME_BYTES: usize = 65_536 + VIRTIO_HEADER_LEN;

/// The most bytes that are sealed before what has come meanwhile is read. Bytes are what takes time: acknowledgements are many and small, and where as many
/// of them as of superframes were taken, they waited for each other until a connection's whole window did.
pub const SEAL_BYTES: usize = 4 << 16;

/// The most bytes that are read before [`SEAL_BYTES`] are sealed: more, so that the device does not fill, and not much more, because reading what is dropped
/// then costs time.
const READ_BYTES: usize = 2 * SEAL_BYTES;

/// Memory that a frame is read into.
pub trait Buffer {
    /// One of [`FRAME_BYTES`].
    fn allocate() -> Self;

    /// Its first `len` bytes.
    fn bytes(&self, len: usize) -> &[u8];
}

impl Buffer for Box<[u8]> {
    fn allocate() -> Self {
        vec![0; FRAME_BYTES].into()
    }

    fn bytes(&self, len: usize) -> &[u8] {
        &self[..len]
    }
}

impl Buffer for ReadBuffer {
    fn allocate() -> Self {
        Self::new(FRAME_BYTES)
    }

    fn bytes(&self, len: usize) -> &[u8] {
        Self::bytes(self, len)
    }
}

/// A frame, its header included.
#[derive(Debug)]
pub struct Frame<B> {
    buffer: B,
    len: usize,
}

impl<B: Buffer> Frame<B> {
    /// Takes the first `len` bytes of `buffer`.
    pub fn new(buffer: B, len: usize) -> Self {
        Self { buffer, len }
    }

    /// The bytes that were read.
    pub fn bytes(&self) -> &[u8] {
        self.buffer.bytes(self.len)
    }
}

/// The frames, in an order that is fair to flows.
#[derive(Debug)]
pub struct Frames<B> {
    queue: FairQueue,
    /// By the numbers that the queue knows them by.
    held: Vec<Option<Frame<B>>>,
    numbers: Vec<usize>,
    /// Buffers without a frame. There are as many buffers as were needed at once, and the system gives memory only to what was used. The last
    /// one that became free is used first: it is in the CPU's cache.
    free: Vec<B>,
    /// Used again by [`Frames::pop`].
    dropped: Vec<usize>,
}

impl<B> Default for Frames<B> {
    fn default() -> Self {
        Self {
            queue: FairQueue::default(),
            held: Vec::new(),
            numbers: Vec::new(),
            free: Vec::new(),
            dropped: Vec::new(),
        }
    }
}

impl<B: Buffer> Frames<B> {
    /// Nothing waits to be sealed.
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Whether another frame can be read: the device keeps the others.
    pub fn takes(&self) -> bool {
        self.queue.takes()
    }

    /// A buffer to read into.
    pub fn buffer(&mut self) -> B {
        self.free.pop().unwrap_or_else(B::allocate)
    }

    /// Takes back the buffer of a frame that was sealed, or into which nothing was read.
    pub fn give_back(&mut self, buffer: B) {
        self.free.push(buffer);
    }

    /// As [`Frames::give_back`].
    pub fn sealed(&mut self, frame: Frame<B>) {
        self.give_back(frame.buffer);
    }

    /// Adds a frame. Where there is no space, another one is dropped for it, and counted.
    pub fn push(&mut self, data_path: &HostDataPath, frame: Frame<B>) {
        let number = self.numbers.pop().unwrap_or_else(|| {
            self.held.push(None);
            self.held.len() - 1
        });
        let packet = frame.bytes().get(VIRTIO_HEADER_LEN..).unwrap_or_default();
        let dropped = self.queue.push(boottime_ns(), number, frame.len, packet);
        self.held[number] = Some(frame);
        dropped.into_iter().for_each(|number| self.drop_frame(data_path, number));
    }

    /// Takes the frame that is next. Those before it that are dropped, because their flow's queue stays too long, are counted.
    pub fn pop(&mut self, data_path: &HostDataPath) -> Option<Frame<B>> {
        let mut dropped = std::mem::take(&mut self.dropped);
        let next = self.queue.pop(boottime_ns(), &mut dropped);
        dropped.drain(..).for_each(|number| self.drop_frame(data_path, number));
        self.dropped = dropped;
        next.and_then(|number| self.take(number))
    }

    fn take(&mut self, number: usize) -> Option<Frame<B>> {
        self.numbers.push(number);
        self.held[number].take()
    }

    fn drop_frame(&mut self, data_path: &HostDataPath, number: usize) {
        if let Some(frame) = self.take(number) {
            data_path.drop_frame(frame.bytes());
            self.sealed(frame);
        }
    }
}

impl Frames<Box<[u8]>> {
    /// Reads what the TUN device has, until enough to be sealed for a while waits.
    pub fn read(&mut self, data_path: &HostDataPath) -> io::Result<()> {
        let mut bytes = 0;
        while bytes < READ_BYTES && self.takes() {
            let mut buffer = self.buffer();
            match (&data_path.tun).read(&mut buffer) {
                Ok(len) => {
                    bytes += len;
                    self.push(data_path, Frame::new(buffer, len));
                }
                Err(error) => {
                    self.give_back(buffer);
                    match error.kind() {
                        io::ErrorKind::WouldBlock => break,
                        io::ErrorKind::Interrupted => {}
                        _ => return Err(error),
                    }
                }
            }
        }
        Ok(())
    }
}

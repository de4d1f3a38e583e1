//! Memory that requests receive into: the header of a multishot recvmsg with the layout of its buffers, and buffers of reads.
use crate::udp_batch::address::Name;
use crate::udp_batch::control::Control;
use crate::udp_batch::memory::Fixed;

/// `struct io_uring_recvmsg_out`: the lengths of the name, of the control messages and of the payload, and flags; 32 bits each.
pub(super) const OUT_LEN: usize = 16;
/// The place of the name. It is longer than any name, so that the control messages behind it are aligned.
pub(super) const NAME_LEN: usize = 32;
/// Bytes in front of the payload in a buffer.
pub const DATAGRAM_HEADER_LEN: usize = OUT_LEN + NAME_LEN + Control::BYTES;
const _: () = assert!(size_of::<Name>() <= NAME_LEN && (OUT_LEN + NAME_LEN).is_multiple_of(8));

/// The header that a multishot recvmsg is made with: only its lengths are used.
pub(super) struct Template(libc::msghdr);

// SAFETY: all pointers of the header are null.
unsafe impl Send for Template {}

impl Template {
    pub(super) fn new() -> Box<Self> {
        // SAFETY: null pointers and zero lengths are a valid msghdr.
        let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
        header.msg_namelen = NAME_LEN as libc::socklen_t;
        header.msg_controllen = Control::BYTES as _;
        Box::new(Self(header))
    }

    pub(super) fn header(&self) -> *const libc::msghdr {
        &raw const self.0
    }
}

/// Memory that one read after another fills.
#[derive(Debug)]
pub struct ReadBuffer {
    memory: Fixed<u8>,
    len: usize,
}

impl ReadBuffer {
    /// A buffer of `len` zero bytes.
    pub fn new(len: usize) -> Self {
        Self { memory: Fixed::zeroed(len), len }
    }

    /// Its first `len` bytes.
    ///
    /// # Panics
    /// If it is not that long.
    pub fn bytes(&self, len: usize) -> &[u8] {
        assert!(len <= self.len, "{len} of {} bytes", self.len);
        // SAFETY: the bytes are initialised and inside the buffer. The kernel writes only while a request owns the buffer.
        unsafe { std::slice::from_raw_parts(self.memory.at(0), len) }
    }

    /// The address that a read writes to, and the most bytes.
    pub(super) fn place(&self) -> (*mut u8, u32) {
        (self.memory.at(0), self.len as u32)
    }
}

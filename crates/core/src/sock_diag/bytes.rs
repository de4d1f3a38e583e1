//! Reading numbers and attributes out of netlink messages, whose bytes may be anything.

/// Bytes in native order. Bytes beyond the end read as 0: the kernel's structures grow at their end, and those of older
/// kernels are shorter.
#[derive(Debug, Clone, Copy)]
pub struct Bytes<'a>(pub &'a [u8]);

impl<'a> Bytes<'a> {
    fn array<const N: usize>(self, at: usize) -> [u8; N] {
        self.0.get(at..at + N).and_then(|bytes| bytes.try_into().ok()).unwrap_or([0; N])
    }

    pub(super) fn u8(self, at: usize) -> u8 {
        self.0.get(at).copied().unwrap_or(0)
    }

    pub(super) fn u16(self, at: usize) -> u16 {
        u16::from_ne_bytes(self.array(at))
    }

    /// The number at this place.
    pub fn u32(self, at: usize) -> u32 {
        u32::from_ne_bytes(self.array(at))
    }

    /// The number at this place.
    pub fn u64(self, at: usize) -> u64 {
        u64::from_ne_bytes(self.array(at))
    }

    /// A port in network order.
    pub(super) fn port(self, at: usize) -> u16 {
        u16::from_be_bytes(self.array(at))
    }

    /// Two halves, the lower first, as cookies are written.
    pub(super) fn halves(self, at: usize) -> u64 {
        u64::from(self.u32(at)) | u64::from(self.u32(at + 4)) << 32
    }

    pub(super) fn address(self, at: usize) -> [u8; 16] {
        self.array(at)
    }

    /// The attributes that these bytes are made of.
    pub fn attributes(self) -> Attributes<'a> {
        Attributes(self.0)
    }
}

/// Attributes (`struct nlattr`: length and kind of two bytes each, padded to four). Ends at the first with an invalid
/// length.
#[derive(Debug)]
pub struct Attributes<'a>(&'a [u8]);

/// The kind without the bits that say "nested" and "in network order".
const KIND: u16 = 0x3fff;

impl<'a> Iterator for Attributes<'a> {
    type Item = (u16, Bytes<'a>);

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        let all = self.0;
        let head = all.get(..4)?;
        let len = usize::from(u16::from_ne_bytes([head[0], head[1]]));
        let kind = u16::from_ne_bytes([head[2], head[3]]) & KIND;
        let Some(value) = all.get(4..len) else {
            self.0 = &[];
            return None;
        };
        self.0 = all.get(len.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, Bytes(value)))
    }
}

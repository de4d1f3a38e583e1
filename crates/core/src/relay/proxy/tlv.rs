//! The TLVs (type, length, value) that follow the addresses in version 2 (section 2.2, "TLV vectors").
//!
//! They are kept as they were received, so that TLVs of unknown types are passed on unchanged.

/// The length of the type and length before a value.
pub(super) const HEAD_BYTES: usize = 3;
/// The longest unique id (section 2.2.5).
pub(super) const UNIQUE_ID_MAX_BYTES: usize = 128;

/// The type of a TLV.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Kind(pub u8);

impl Kind {
    /// The checksum of the header, which the encoder computes.
    pub const CRC32C: Self = Self(0x03);
    /// An id of the connection, at most 128 bytes.
    pub const UNIQUE_ID: Self = Self(0x05);
}

/// One TLV.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tlv<'a> {
    /// Its type.
    pub kind: Kind,
    /// Its value.
    pub value: &'a [u8],
}

/// A TLV that cannot be added: a value longer than 65,535 bytes, a unique id longer than 128, or a CRC32C.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a TLV of type {kind:#04x} cannot have {bytes} bytes here")]
pub struct TlvRefused {
    /// The type.
    pub kind: u8,
    /// The value's length.
    pub bytes: usize,
}

/// A well-formed list of TLVs without the CRC32C. An empty one allocates nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tlvs(Vec<u8>);

impl Tlvs {
    /// The bytes of the list, as in a header.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Whether there is no TLV.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The TLVs in their order.
    pub fn iter(&self) -> impl Iterator<Item = Tlv<'_>> {
        list(&self.0)
    }

    /// The value of the first one of a type.
    pub fn get(&self, kind: Kind) -> Option<&[u8]> {
        self.iter().find(|tlv| tlv.kind == kind).map(|tlv| tlv.value)
    }

    /// Appends a TLV.
    pub fn push(&mut self, kind: Kind, value: &[u8]) -> Result<(), TlvRefused> {
        let refused = TlvRefused { kind: kind.0, bytes: value.len() };
        let length = u16::try_from(value.len()).map_err(|_| refused)?;
        if kind == Kind::CRC32C || (kind == Kind::UNIQUE_ID && value.len() > UNIQUE_ID_MAX_BYTES) {
            return Err(refused);
        }
        self.0.push(kind.0);
        self.0.extend_from_slice(&length.to_be_bytes());
        self.0.extend_from_slice(value);
        Ok(())
    }

    /// Allocates for this many further bytes at once.
    pub(super) fn reserve(&mut self, bytes: usize) {
        self.0.reserve_exact(bytes);
    }

    /// Appends a TLV that was read, with its type and length.
    pub(super) fn append(&mut self, whole: &[u8]) {
        self.0.extend_from_slice(whole);
    }
}

/// The first TLV of a list; None if it is cut off or the list is empty.
pub(super) fn first(bytes: &[u8]) -> Option<Tlv<'_>> {
    let (&[kind, high, low], rest) = bytes.split_first_chunk::<HEAD_BYTES>()?;
    let value = rest.get(..usize::from(u16::from_be_bytes([high, low])))?;
    Some(Tlv { kind: Kind(kind), value })
}

fn list(mut bytes: &[u8]) -> impl Iterator<Item = Tlv<'_>> {
    std::iter::from_fn(move || {
        let tlv = first(bytes)?;
        bytes = &bytes[HEAD_BYTES + tlv.value.len()..];
        Some(tlv)
    })
}

/// Whether the bytes are a complete list of TLVs.
pub(super) fn well_formed(bytes: &[u8]) -> bool {
    list(bytes).map(|tlv| HEAD_BYTES + tlv.value.len()).sum::<usize>() == bytes.len()
}

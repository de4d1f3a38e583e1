//! BPF objects as the binary contains them: compressed by the build script, and unpacked when they are first opened. All of them take
//! 1.6 MB, and a fifth of that compressed.

use std::sync::OnceLock;

use flate2::{Decompress, FlushDecompress, Status};
use zerocopy::IntoBytes;

/// An object of the build.
pub struct Packed {
    compressed: &'static [u8],
    /// Bytes of the object.
    size: usize,
    /// The object once it was asked for, in words: libelf wants it aligned as its structures are.
    unpacked: OnceLock<Box<[u64]>>,
}

impl Packed {
    /// Takes what the build script compressed from `size` bytes.
    pub const fn new(compressed: &'static [u8], size: usize) -> Self {
        Self { compressed, size, unpacked: OnceLock::new() }
    }

    /// The object. The first call takes a millisecond or two.
    pub fn bytes(&'static self) -> &'static [u8] {
        let words = self.unpacked.get_or_init(|| {
            let mut words = vec![0_u64; self.size.div_ceil(8)].into_boxed_slice();
            let into = &mut words.as_mut_bytes()[..self.size];
            let mut unpacker = Decompress::new(false);
            let status = unpacker.decompress(self.compressed, into, FlushDecompress::Finish);
            assert_eq!(status.expect("the build compressed it"), Status::StreamEnd, "all of it is there");
            assert_eq!(unpacker.total_out(), self.size as u64, "the build wrote this size");
            words
        });
        &words.as_bytes()[..self.size]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_is_unpacked_as_it_was_compiled() {
        static PACKED: Packed = include!(concat!(env!("OUT_DIR"), "/older/probes.packed.rs"));
        let compiled = include_bytes!(concat!(env!("OUT_DIR"), "/older/probes.bpf.o"));
        assert!(PACKED.bytes() == compiled, "{} bytes, not {}", PACKED.bytes().len(), compiled.len());
        assert_eq!(PACKED.bytes().as_ptr().align_offset(8), 0);
    }
}

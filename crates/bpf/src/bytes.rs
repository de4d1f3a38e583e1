//! Plain structures and names from bytes that the kernel side wrote. Any bytes are accepted.
use zerocopy::FromBytes;

/// Reads a record from the beginning of `bytes`.
pub(crate) fn read<T: FromBytes>(bytes: &[u8]) -> Option<T> {
    T::read_from_prefix(bytes).ok().map(|(value, _)| value)
}

/// Splits the output of an iterator into its records; a torn last one is dropped.
pub(crate) fn read_all<T: FromBytes>(bytes: &[u8]) -> Vec<T> {
    bytes.chunks_exact(size_of::<T>()).filter_map(read).collect()
}

/// A name in a fixed array (`task_struct.comm`), up to its first zero byte.
pub fn comm(bytes: &[u8; 16]) -> String {
    let end = bytes.iter().position(|&b| b == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

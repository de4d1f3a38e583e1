//! Limits of stacks and names, and frames without a name.
use parshall_evidence::Frame;

/// The most frames of a stack that are kept.
pub const FRAMES_MAX: usize = 48;
/// Bytes of a function's name that are kept.
pub const NAME_MAX: usize = 1024;

/// A frame that has no name.
pub fn hex_frame(tgid: u32, address: u64) -> Frame {
    Frame { name: format!("{address:#x}"), module: String::new(), kernel: tgid == 0 }
}

/// The begin of a name that a process chose.
pub fn shortened(name: &str) -> String {
    let end = (0..=NAME_MAX.min(name.len())).rev().find(|&end| name.is_char_boundary(end)).unwrap_or(0);
    name[..end].to_owned()
}

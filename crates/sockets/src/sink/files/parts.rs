//! The parts of a file that can be read by themselves.

/// The parts of a file, each complete by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Parts {
    /// Messages, each preceded by its length.
    Messages,
    /// zstd frames.
    Frames,
    /// Row groups, each followed by a footer.
    Pieces,
}

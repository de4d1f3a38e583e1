//! Values with their positions in the text.

/// A value, and the byte offset in the text at which it begins (0 without a text).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct At<T> {
    /// The value.
    pub value: T,
    /// The byte offset.
    pub at: usize,
}

impl<T> At<T> {
    /// A value at a byte offset.
    pub fn new(value: T, at: usize) -> Self {
        Self { value, at }
    }
}

/// A list of values with their byte offsets.
pub type Places<T> = Vec<At<T>>;

/// A word and its byte offset.
pub type Word<'t> = At<&'t str>;

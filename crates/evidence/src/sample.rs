//! CPU samples and stacks.
use serde::{Deserialize, Serialize};

/// One frame of a stack.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Frame {
    /// Demangled function name, or `0x..` and the module when no symbol was found.
    pub name: String,
    /// The object it lies in; `[kernel]` for the kernel.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub module: String,
    /// In the kernel.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub kernel: bool,
}

impl Frame {
    /// Whether a symbol was found for it.
    pub fn is_named(&self) -> bool {
        !is_address(&self.name)
    }
}

/// Whether the name of a frame is its address, because no symbol was found.
pub fn is_address(name: &str) -> bool {
    name.starts_with("0x")
}

/// A stack, innermost frame first: kernel frames, then user frames.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Stack {
    /// The frames.
    pub frames: Vec<Frame>,
}

/// CPU samples with the same thread and stack.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CpuSample {
    /// The thread.
    pub tid: u32,
    /// It was in user mode.
    pub user: bool,
    /// The system call it was in, or [`crate::NO_SYSCALL`].
    pub syscall: i32,
    /// The name of that call, empty outside of one.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub syscall_name: String,
    /// Index into [`crate::Capture::stacks`].
    pub stack: Option<u32>,
    /// How many samples.
    pub count: u64,
}

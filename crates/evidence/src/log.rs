//! Lines that observed processes wrote to their logs, which are kept only because the user asked for them (`--log`).
use serde::{Deserialize, Serialize};

/// The lines of a window. They are content of the service: control characters are in them as they came.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Log {
    /// In the order of time.
    pub lines: Vec<LogLine>,
    /// Lines, or writes of which no line is known, that are not kept because there were too many.
    #[serde(default)]
    pub left_out: u64,
}

/// A line.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogLine {
    /// When the call that wrote it began, in nanoseconds since the window began.
    pub at_ns: u64,
    /// The process.
    pub pid: u32,
    /// The thread.
    pub tid: u32,
    /// The name of the process.
    #[serde(default)]
    pub process: String,
    /// Where it went: `stdout`, `stderr`, or the file as the user named it.
    pub to: String,
    /// The line without its end.
    pub text: String,
    /// It was longer.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub cut: bool,
}

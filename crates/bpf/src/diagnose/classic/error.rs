//! The reasons for which the classic probes cannot be used.
/// Why the classic probes could not be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Tracefs, which has the layouts, is not mounted, and this process may not mount it.
    #[error("tracefs is not mounted or cannot be read")]
    NoTracefs,
    /// A tracepoint is missing, or its layout cannot be read.
    #[error("the tracepoint {name} cannot be used: {source}")]
    Tracepoint {
        /// The tracepoint.
        name: &'static str,
        /// The error of reading its `format` file.
        source: std::io::Error,
    },
    /// A field is missing or has another size than the programs expect.
    #[error("the tracepoint {name} has an unexpected layout: field {field}")]
    Layout {
        /// The tracepoint.
        name: &'static str,
        /// The field.
        field: &'static str,
    },
    /// The kernel refused to load them.
    #[error("the kernel refused the classic probes: {0}")]
    Load(String),
    /// The kernel refused to attach one of them.
    #[error("the probe {name} could not be attached: {source}")]
    Attach {
        /// The program.
        name: &'static str,
        /// The kernel's error.
        source: std::io::Error,
    },
}

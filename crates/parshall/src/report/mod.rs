//! How a report is printed: one file per format.
use parshall_evidence::Report;

/// How text is drawn.
#[derive(Debug, Clone, Copy)]
pub struct TextStyle {
    /// Colours and bold by ANSI escapes.
    pub color: bool,
    /// Columns of the terminal.
    pub width: usize,
}

/// The report for a terminal.
pub fn text(_report: &Report, _style: TextStyle) -> String {
    String::new()
}

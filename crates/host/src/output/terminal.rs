//! Width, colours and characters of the destination of a report.
use std::io::IsTerminal;
use std::os::fd::AsFd;
use std::path::PathBuf;

use super::charset::Charset;

/// Columns without a terminal: fits a page, an issue and a mail.
const PLAIN_WIDTH: usize = 100;
/// The least width, also on narrower terminals.
const MIN_WIDTH: usize = 60;
/// The largest width: longer lines are hard to read.
const MAX_WIDTH: usize = 120;

/// The style of text.
#[derive(Debug, Clone, Copy, Default)]
pub struct TextStyle {
    /// Colours and bold by ANSI escapes.
    pub color: bool,
    /// Columns of the terminal.
    pub width: usize,
    /// Characters that it shows.
    pub charset: Charset,
}

/// The destination of a report.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Destination {
    /// Standard output.
    Stdout,
    /// Standard error: stdout belongs to the command that is diagnosed.
    Stderr,
    /// A file that only its owner may read.
    File(PathBuf),
}

/// The style for stdout; `color` overrides what the terminal and the environment say.
pub fn style(color: Option<bool>) -> TextStyle {
    style_for(&Destination::Stdout, color)
}

/// The style for a destination; files are plain.
pub fn style_for(to: &Destination, color: Option<bool>) -> TextStyle {
    match to {
        Destination::Stdout => on(std::io::stdout(), color),
        Destination::Stderr => on(std::io::stderr(), color),
        Destination::File(_) => {
            TextStyle { color: color.unwrap_or(false), width: width(None), charset: Charset::of_environment(false) }
        }
    }
}

fn on(stream: impl IsTerminal + AsFd, color: Option<bool>) -> TextStyle {
    let terminal = terminal_size::terminal_size_of(&stream).map(|(columns, _)| usize::from(columns.0));
    TextStyle {
        color: color.unwrap_or_else(|| wants_color(&stream)),
        width: width(terminal),
        charset: Charset::of_environment(stream.is_terminal()),
    }
}

/// Whether to use colours: on a terminal, unless NO_COLOR is set (<https://no-color.org>).
fn wants_color(stream: &impl IsTerminal) -> bool {
    stream.is_terminal()
        && std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty())
        && std::env::var_os("TERM").is_none_or(|t| t != "dumb")
}

/// The width: of `COLUMNS`, else of the terminal, else the default.
fn width(terminal: Option<usize>) -> usize {
    let columns = std::env::var("COLUMNS").ok().and_then(|c| c.parse().ok());
    columns.or(terminal).map_or(PLAIN_WIDTH, |w: usize| w.clamp(MIN_WIDTH, MAX_WIDTH))
}

//! What stdout is: a terminal of some width, with colours or without.
use std::io::IsTerminal;

use super::TextStyle;

/// Columns when stdout is no terminal: fits a page, an issue and a mail.
const PLAIN_WIDTH: usize = 100;
/// Narrower terminals get lines of this width.
const MIN_WIDTH: usize = 60;
/// Longer lines are hard to read.
const MAX_WIDTH: usize = 120;

/// The style for stdout; `color` overrides what the terminal and the environment say.
pub fn style(color: Option<bool>) -> TextStyle {
    TextStyle { color: color.unwrap_or_else(wants_color), width: width() }
}

/// <https://no-color.org>: a terminal, and no wish against it.
fn wants_color() -> bool {
    std::io::stdout().is_terminal()
        && std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty())
        && std::env::var_os("TERM").is_none_or(|t| t != "dumb")
}

/// `COLUMNS`, then the terminal, then a page.
fn width() -> usize {
    let columns = std::env::var("COLUMNS").ok().and_then(|c| c.parse().ok());
    let terminal = || terminal_size::terminal_size_of(std::io::stdout()).map(|(w, _)| usize::from(w.0));
    columns.or_else(terminal).map_or(PLAIN_WIDTH, |w: usize| w.clamp(MIN_WIDTH, MAX_WIDTH))
}

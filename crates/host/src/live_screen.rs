//! A page of text that is drawn again and again on the alternate screen of the terminal, until the user or a signal ends it.
use std::io::{self, IsTerminal, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use parshall_sys::terminal::Raw;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

/// The size of a terminal that does not report one.
const WIDTH: usize = 100;
const HEIGHT: usize = 24;

const CLEAR_REST: &str = "\x1b[J";
const CLEAR_LINE: &str = "\x1b[K";
const HOME: &str = "\x1b[H";
/// Switches to the alternate screen without a cursor; and back.
const ENTER: &str = "\x1b[?1049h\x1b[?25l";
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";

/// The keys that end it: q, Ctrl-C, Ctrl-D and Escape.
const QUITS: [u8; 5] = [b'q', b'Q', 3, 4, 27];

/// The terminal in raw mode on the alternate screen. It is restored when this is dropped, also on an error.
#[derive(Debug)]
pub struct LiveScreen {
    raw: Raw<io::Stdin>,
    ended: Arc<AtomicBool>,
}

impl LiveScreen {
    /// Whether stdout and stdin are terminals.
    pub fn is_possible() -> bool {
        io::stdout().is_terminal() && io::stdin().is_terminal()
    }

    /// Takes the terminal. From now on SIGHUP, SIGINT and SIGTERM end [`Self::quits_before`] instead of the process.
    ///
    /// # Errors
    /// Standard input is no terminal.
    pub fn enter() -> io::Result<Self> {
        let ended = Arc::new(AtomicBool::new(false));
        for signal in [SIGHUP, SIGINT, SIGTERM] {
            signal_hook::flag::register(signal, ended.clone())?;
        }
        let screen = Self { raw: Raw::enter(io::stdin())?, ended };
        write(ENTER)?;
        Ok(screen)
    }

    /// Columns and lines of the terminal.
    pub fn size(&self) -> (usize, usize) {
        let size = terminal_size::terminal_size();
        size.map_or((WIDTH, HEIGHT), |(w, h)| (usize::from(w.0), usize::from(h.0)))
    }

    /// Draws a page of at most that size.
    ///
    /// # Errors
    /// The terminal cannot be written to.
    pub fn show(&self, text: &str) -> io::Result<()> {
        write(&page(text))
    }

    /// Waits until this time. Returns true at once when the user or a signal ends the view.
    ///
    /// # Errors
    /// The terminal cannot be read from.
    pub fn quits_before(&self, time: Instant) -> io::Result<bool> {
        while let Some(left) = time.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) {
            let quits = self.raw.key(left)?.is_some_and(|key| QUITS.contains(&key));
            if quits || self.ended.load(Ordering::Relaxed) {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

impl Drop for LiveScreen {
    fn drop(&mut self) {
        // A terminal that was closed needs no restoring.
        write(LEAVE).ok();
    }
}

/// Draws over the last page without clearing it first, which would flicker.
fn page(text: &str) -> String {
    let body = text.replace('\n', &format!("{CLEAR_LINE}\n"));
    format!("{HOME}{body}{CLEAR_REST}")
}

fn write(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_clears_the_rest_of_each_line_and_of_the_screen() {
        assert_eq!(page("one\ntwo\n"), "\x1b[Hone\x1b[K\ntwo\x1b[K\n\x1b[J");
    }
}

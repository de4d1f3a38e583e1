//! `parshall relay top`: a live view of the running relay in the terminal. Where stdout is no terminal, and in JSON, it
//! prints one snapshot and ends.
mod client;
mod view;

use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parshall_sys::terminal::Raw;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use self::client::Client;
use crate::control::snapshot::Snapshot;
use parshall_host::output::{self, Charset, Format, Output};

/// The interval of the live view.
const REFRESH: Duration = Duration::from_secs(1);
/// The time between the two snapshots of a single print: rates need two.
const BRIEF: Duration = Duration::from_millis(500);
/// The size of a terminal that does not report one.
const WIDTH: usize = 100;
const HEIGHT: usize = 24;

const CLEAR_REST: &str = "\x1b[J";
const CLEAR_LINE: &str = "\x1b[K";
const HOME: &str = "\x1b[H";
/// Switches to the alternate screen without a cursor; and back.
const ENTER: &str = "\x1b[?1049h\x1b[?25l";
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";

/// Shows the relay that answers at `control`, or the only one of this user.
pub fn top(control: Option<PathBuf>, output: &Output) -> anyhow::Result<ExitCode> {
    let mut client = Client::connect(control)?;
    match output.format {
        Format::Json => {
            io::stdout().write_all(output::json(&client.snapshot()?)?.as_bytes())?;
        }
        Format::Text if io::stdout().is_terminal() && io::stdin().is_terminal() => {
            live(&mut client, output.style.charset)?
        }
        Format::Text => once(&mut client, output.style.charset)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn once(client: &mut Client, charset: Charset) -> anyhow::Result<()> {
    let before = client.snapshot()?;
    std::thread::sleep(BRIEF);
    let now = client.snapshot()?;
    let text = view::text(&before, &now, BRIEF, None);
    Ok(io::stdout().write_all(charset.text(&text).as_bytes())?)
}

fn live(client: &mut Client, charset: Charset) -> anyhow::Result<()> {
    let ended = Arc::new(AtomicBool::new(false));
    for signal in [SIGHUP, SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, ended.clone())?;
    }
    let mut before = client.snapshot()?;
    let mut taken = Instant::now();
    let screen = Screen::enter()?;
    // The first page has no rates.
    screen.show(&charset.text(&view::text(&before, &before, REFRESH, Some(size()))))?;
    loop {
        let next = taken + REFRESH;
        while let Some(left) = next.checked_duration_since(Instant::now()).filter(|l| !l.is_zero()) {
            // 3 and 4 are Ctrl-C and Ctrl-D, 27 is Escape.
            let quit = matches!(screen.raw.key(left)?, Some(b'q' | b'Q' | 3 | 4 | 27));
            if quit || ended.load(Ordering::Relaxed) {
                return Ok(());
            }
        }
        let now: Snapshot = client.snapshot()?;
        let elapsed = taken.elapsed();
        taken = Instant::now();
        screen.show(&charset.text(&view::text(&before, &now, elapsed, Some(size()))))?;
        before = now;
    }
}

/// The terminal in raw mode on the alternate screen. It is restored when this is dropped, also on an error.
struct Screen {
    raw: Raw<io::Stdin>,
}

impl Screen {
    fn enter() -> io::Result<Self> {
        let raw = Raw::enter(io::stdin())?;
        let screen = Self { raw };
        screen.write(ENTER)?;
        Ok(screen)
    }

    /// Draws over the last page without clearing it, which would flicker.
    fn show(&self, text: &str) -> io::Result<()> {
        let body = text.replace('\n', &format!("{CLEAR_LINE}\n"));
        self.write(&format!("{HOME}{body}{CLEAR_REST}"))
    }

    fn write(&self, text: &str) -> io::Result<()> {
        let mut out = io::stdout().lock();
        out.write_all(text.as_bytes())?;
        out.flush()
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // A terminal that was closed needs no restoring.
        self.write(LEAVE).ok();
    }
}

fn size() -> (usize, usize) {
    let size = terminal_size::terminal_size();
    size.map_or((WIDTH, HEIGHT), |(w, h)| (usize::from(w.0), usize::from(h.0)))
}

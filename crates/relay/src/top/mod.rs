//! `parshall relay top`: a live view of the running relay in the terminal. Where stdout is no terminal, and in JSON, it
//! prints one snapshot and ends.
mod client;
mod view;

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use self::client::Client;
use crate::control::snapshot::Snapshot;
use parshall_host::live_screen::LiveScreen;
use parshall_host::output::{self, Charset, Format, Output};

/// The interval of the live view.
const REFRESH: Duration = Duration::from_secs(1);
/// The time between the two snapshots of a single print: rates need two.
const BRIEF: Duration = Duration::from_millis(500);
/// Shows the relay that answers at `control`, or the only one of this user.
pub fn top(control: Option<PathBuf>, output: &Output) -> anyhow::Result<ExitCode> {
    let mut client = Client::connect(control)?;
    match output.format {
        Format::Json => {
            io::stdout().write_all(output::json(&client.snapshot()?)?.as_bytes())?;
        }
        Format::Text if LiveScreen::is_possible() => live(&mut client, output.style.charset)?,
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
    let mut before = client.snapshot()?;
    let mut taken = Instant::now();
    let screen = LiveScreen::enter()?;
    // The first page has no rates.
    screen.show(&charset.text(&view::text(&before, &before, REFRESH, Some(screen.size()))))?;
    while !screen.quits_before(taken + REFRESH)? {
        let now: Snapshot = client.snapshot()?;
        let elapsed = taken.elapsed();
        taken = Instant::now();
        screen.show(&charset.text(&view::text(&before, &now, elapsed, Some(screen.size()))))?;
        before = now;
    }
    Ok(())
}

//! Output of the lab on a terminal.
use std::io::{IsTerminal, Write};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

use parshall_host::output::{TextStyle, columns};

/// Prints a line on stdout. Returns an error when the reader has closed it, where `println!` would panic.
pub fn line(text: &str) -> anyhow::Result<()> {
    let mut stdout = std::io::stdout().lock();
    stdout.write_all(text.as_bytes())?;
    stdout.write_all(b"\n")?;
    Ok(stdout.flush()?)
}

/// Prints a text that ends with a line feed, as [`line`].
pub fn text(text: &str) -> anyhow::Result<()> {
    line(text.strip_suffix('\n').unwrap_or(text))
}

/// A line in bold.
pub fn heading(text: &str, style: TextStyle) -> String {
    if style.color { format!("\x1b[1m{text}\x1b[0m") } else { text.to_owned() }
}

/// A number in colour.
pub fn good(text: &str, style: TextStyle) -> String {
    if style.color { format!("\x1b[1;32m{text}\x1b[0m") } else { text.to_owned() }
}

/// Rows of cells under each other, indented by two: the first `left` columns to the left, the others to the right. Columns that do not
/// fit into `width` are left out.
pub fn aligned<R: AsRef<[String]>>(rows: &[R], left: usize, width: usize) -> Vec<String> {
    const GAP: usize = 3;
    let cell = |row: &R, i: usize| row.as_ref().get(i).cloned().unwrap_or_default();
    let count = rows.iter().map(|row| row.as_ref().len()).max().unwrap_or(0);
    let widest = |i: usize| rows.iter().map(|row| columns(&cell(row, i))).max().unwrap_or(0);
    let mut used = 0;
    let widths: Vec<usize> = (0..count)
        .map(widest)
        .take_while(|column| {
            used += column + GAP;
            // Before the first column the gap is smaller.
            used <= width.saturating_add(1)
        })
        .collect();
    let line = |row: &R| {
        let cells = widths.iter().enumerate().map(|(i, width)| {
            let (text, blanks) = (cell(row, i), " ".repeat(width - columns(&cell(row, i))));
            if i < left { format!("{text}{blanks}") } else { format!("{blanks}{text}") }
        });
        format!("  {}", cells.collect::<Vec<_>>().join(&" ".repeat(GAP))).trim_end().to_owned()
    };
    rows.iter().map(line).collect()
}

/// A spinner on stderr while the lab works; nothing when stderr is no terminal.
pub struct Progress {
    bar: ProgressBar,
}

impl Progress {
    pub fn start(what: &str) -> Self {
        let bar = if std::io::stderr().is_terminal() { ProgressBar::new_spinner() } else { ProgressBar::hidden() };
        if let Ok(style) = ProgressStyle::with_template("{spinner} {prefix} · {msg}") {
            bar.set_style(style);
        }
        bar.set_prefix(what.to_owned());
        bar.set_message("setting up");
        bar.enable_steady_tick(Duration::from_millis(100));
        Self { bar }
    }

    /// Prints a line on stdout, with the spinner hidden meanwhile.
    pub fn line(&self, text: &str) -> anyhow::Result<()> {
        self.bar.suspend(|| line(text))
    }

    /// Shows what the lab is doing now.
    pub fn show(&self, what: &str) {
        self.bar.set_message(what.to_owned());
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

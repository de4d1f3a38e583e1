//! A configuration read from a file, and its mistakes told.
use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;
use parshall_core::relay::config::{self, Config, ConfigError, Language};

use parshall_host::error::UserError;
use parshall_host::output::clean;

/// A file that was read.
#[derive(Debug)]
pub struct Loaded {
    /// The language it was taken for.
    pub language: Language,
    /// What it says, or every mistake in it.
    pub config: Result<Config, Vec<ConfigError>>,
}

/// Larger files are no configuration.
const MAX_BYTES: u64 = 16 << 20;

/// Reads a file. An error is one of the file system; mistakes of the text are in the result.
pub fn load(path: &Path) -> anyhow::Result<Loaded> {
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|file| file.take(MAX_BYTES + 1).read_to_end(&mut bytes));
    read.with_context(|| format!("cannot read {}", path.display()))?;
    if bytes.len() as u64 > MAX_BYTES {
        let what = format!("{} is larger than 16 MiB", path.display());
        return Err(UserError::new(what, "name a configuration file").into());
    }
    Ok(understand(&bytes))
}

/// Reads a file that is in use: its mistakes are told on stderr, and the error says that there are some.
pub fn read_again(path: &Path) -> anyhow::Result<Config> {
    load(path)?.config.map_err(|mistakes| {
        tell(path, &mistakes);
        let what = format!("{} has mistakes", path.display());
        UserError::new(what, format!("`parshall relay check {}` tells them too", path.display())).into()
    })
}

/// What the bytes of a file say.
pub fn understand(bytes: &[u8]) -> Loaded {
    match std::str::from_utf8(bytes) {
        Ok(text) => Loaded { language: config::language(text), config: config::parse(text) },
        Err(error) => {
            let before = String::from_utf8_lossy(&bytes[..error.valid_up_to()]);
            let line = before.matches('\n').count() + 1;
            let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
            let mistake = ConfigError {
                line: u32::try_from(line).unwrap_or(u32::MAX),
                column: u32::try_from(column).unwrap_or(u32::MAX),
                what: "this byte is not UTF-8".to_owned(),
                hint: "save the file as UTF-8".to_owned(),
            };
            Loaded { language: config::language(&before), config: Err(vec![mistake]) }
        }
    }
}

/// Prints mistakes on stderr. The answer is the exit code of wrong usage.
pub fn tell(path: &Path, mistakes: &[ConfigError]) -> ExitCode {
    // Nothing is left to do if that fails too.
    std::io::stderr().write_all(lines(path, mistakes).as_bytes()).ok();
    ExitCode::from(2)
}

/// `FILE:LINE:COLUMN: what` and `hint: ...` for each, in the form that editors jump to.
pub fn lines(path: &Path, mistakes: &[ConfigError]) -> String {
    let file = clean(&path.display().to_string());
    let line =
        |m: &ConfigError| format!("{file}:{}:{}: {}\nhint: {}\n", m.line, m.column, clean(&m.what), clean(&m.hint));
    mistakes.iter().map(line).collect()
}

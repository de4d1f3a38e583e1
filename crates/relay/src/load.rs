//! Reads a configuration from a file, and prints its errors.
use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;
use parshall_core::relay::config::{self, Config, ConfigError, Language};

use parshall_host::error::UserError;
use parshall_host::output::clean;

#[derive(Debug)]
pub struct Loaded {
    pub language: Language,
    /// The configuration, or every error in the file.
    pub config: Result<Config, Vec<ConfigError>>,
}

/// A larger file is refused: it is no configuration.
const MAX_BYTES: u64 = 16 << 20;

/// Reads a file. The error is one of the file system; errors in the text are in [`Loaded`].
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

/// Reads the file of the running relay anew. Errors in it are printed on stderr, and the returned error says so.
pub fn read_again(path: &Path) -> anyhow::Result<Config> {
    load(path)?.config.map_err(|errors| {
        print_errors(path, &errors);
        let what = format!("{} has errors", path.display());
        UserError::new(what, format!("`parshall relay check {}` prints them too", path.display())).into()
    })
}

/// Parses the bytes of a file, which may not be UTF-8.
pub fn understand(bytes: &[u8]) -> Loaded {
    match std::str::from_utf8(bytes) {
        Ok(text) => Loaded { language: config::language(text), config: config::parse(text) },
        Err(error) => {
            let before = String::from_utf8_lossy(&bytes[..error.valid_up_to()]);
            let line = before.matches('\n').count() + 1;
            let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
            let error = ConfigError {
                line: u32::try_from(line).unwrap_or(u32::MAX),
                column: u32::try_from(column).unwrap_or(u32::MAX),
                what: "this byte is not UTF-8".to_owned(),
                hint: "save the file as UTF-8".to_owned(),
            };
            Loaded { language: config::language(&before), config: Err(vec![error]) }
        }
    }
}

/// Prints the errors of a file on stderr, and returns the exit code of wrong usage.
pub fn print_errors(path: &Path, errors: &[ConfigError]) -> ExitCode {
    // Where stderr cannot be written there is nowhere to report that.
    std::io::stderr().write_all(lines(path, errors).as_bytes()).ok();
    ExitCode::from(2)
}

/// `FILE:LINE:COLUMN: what` and `hint: ...` for each error. Editors open files at positions written so.
pub fn lines(path: &Path, errors: &[ConfigError]) -> String {
    let file = clean(&path.display().to_string());
    let line =
        |m: &ConfigError| format!("{file}:{}:{}: {}\nhint: {}\n", m.line, m.column, clean(&m.what), clean(&m.hint));
    errors.iter().map(line).collect()
}

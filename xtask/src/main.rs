//! Tasks of the repository's maintenance. `cargo xtask` is an alias in `.cargo/config.toml`.
#![forbid(unsafe_code)]

mod tidy;

use std::path::PathBuf;
use std::process::ExitCode;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["tidy"] => tidy::run(&root(), false),
        ["tidy", "--bless"] => tidy::run(&root(), true),
        ["tidy", "--commits", base] => tidy::commits::run(&root(), base),
        _ => {
            eprintln!("error: unknown task\nhint: cargo xtask tidy [--bless | --commits BASE]");
            ExitCode::from(2)
        }
    }
}

/// The root of the repository: the parent of this crate's directory.
fn root() -> PathBuf {
    let here = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    here.parent().map_or(here.clone(), PathBuf::from)
}

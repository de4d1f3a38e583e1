//! Chores of the repository. `cargo xtask tidy` (an alias in `.cargo/config.toml`) checks what clippy cannot.
#![forbid(unsafe_code)]

mod tidy;

use std::path::PathBuf;
use std::process::ExitCode;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["tidy"] => tidy::run(&root()),
        _ => {
            eprintln!("error: no such chore\nhint: cargo xtask tidy");
            ExitCode::from(2)
        }
    }
}

/// The root of the repository: the parent of this crate.
fn root() -> PathBuf {
    let here = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    here.parent().map_or(here.clone(), PathBuf::from)
}

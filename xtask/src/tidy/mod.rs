//! `cargo xtask tidy`: rules that neither rustc nor clippy checks.
//!
//! `rules.rs` checks single files and `repo.rs` several together. `imports.rs` reads which module imports which, and
//! `layers.rs` checks and draws that. `links.rs` checks the links of Markdown files, `commits.rs` commit messages, `sentences.rs`
//! the sentences of reports, and `allow.rs` holds the list of exceptions.
mod allow;
pub mod commits;
mod imports;
mod layers;
mod links;
mod repo;
mod rules;
mod sentences;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// The file that lists the exceptions.
const ALLOW_FILE: &str = "xtask/tidy-allow.txt";
/// Directories that are not read.
const SKIPPED_DIRS: [&str; 4] = ["target", ".git", "node_modules", "__pycache__"];
/// Extensions of the files that are read. All others are data.
const EXTENSIONS: [&str; 9] = ["rs", "toml", "md", "c", "h", "sh", "py", "txt", "yml"];

/// Checks the repository and prints a line for each complaint. With `bless` it first updates the drawing of the imports.
pub fn run(root: &Path, bless: bool) -> ExitCode {
    let mut complaints = Vec::new();
    let files = match read_all(root) {
        Ok(files) => files,
        Err(error) => {
            eprintln!("error: cannot read the repository: {error}");
            return ExitCode::FAILURE;
        }
    };
    let allow_text = fs::read_to_string(root.join(ALLOW_FILE)).unwrap_or_default();
    let mut allowed = allow::parse(&allow_text, &mut complaints);
    for (path, text) in &files {
        rules::check(path, text, &mut allowed, &mut complaints);
        sentences::check(path, text, &mut complaints);
    }
    if let Err(error) = check_imports(root, bless, &files, &mut allowed, &mut complaints) {
        eprintln!("error: cannot read the imports: {error}");
        return ExitCode::FAILURE;
    }
    allowed.complain_unused(&mut complaints);
    links::check(&files, &|path| root.join(path).exists(), &mut complaints);
    let notes = repo::check(&files, &mut complaints);
    for note in notes {
        println!("tidy: skipped: {note}");
    }
    for complaint in &complaints {
        println!("tidy: {complaint}");
    }
    println!("tidy: {} files, {} complaints", files.len(), complaints.len());
    if complaints.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn check_imports(
    root: &Path,
    bless: bool,
    files: &[(String, String)],
    allowed: &mut allow::Allowed,
    complaints: &mut Vec<String>,
) -> Result<(), String> {
    let imports = imports::read(files)?;
    layers::check(&imports, allowed, complaints);
    let Some((_, old)) = files.iter().find(|(path, _)| path == layers::DRAWING) else { return Ok(()) };
    match layers::redrawn(old, &imports) {
        Some(new) if new != *old && bless => {
            fs::write(root.join(layers::DRAWING), new).map_err(|error| format!("{}: {error}", layers::DRAWING))?;
        }
        Some(new) if new != *old => {
            complaints.push(format!(
                "{}: the drawing of the imports is out of date: `cargo xtask tidy --bless` updates it",
                layers::DRAWING
            ));
        }
        _ => {}
    }
    Ok(())
}

/// The path from the root and the text of all files that are checked, sorted by path.
fn read_all(root: &Path) -> std::io::Result<Vec<(String, String)>> {
    let mut files = Vec::new();
    let mut todo: Vec<PathBuf> = vec![root.to_owned()];
    while let Some(dir) = todo.pop() {
        for entry in fs::read_dir(dir)? {
            let entry = entry?;
            let path = entry.path();
            let name = entry.file_name().to_string_lossy().into_owned();
            if entry.file_type()?.is_dir() {
                if !SKIPPED_DIRS.contains(&name.as_str()) {
                    todo.push(path);
                }
            } else if is_read(&path, &name) {
                let relative = path.strip_prefix(root).unwrap_or(&path).to_string_lossy().into_owned();
                files.push((relative, String::from_utf8_lossy(&fs::read(&path)?).into_owned()));
            }
        }
    }
    files.sort();
    Ok(files)
}

fn is_read(path: &Path, name: &str) -> bool {
    name == "Makefile" || path.extension().and_then(|e| e.to_str()).is_some_and(|e| EXTENSIONS.contains(&e))
}

//! The relay's configuration: one validated model for all ways to write it.
//!
//! Two languages are read, TOML ([`parse_toml`]) and that of rinetd ([`parse_rinetd`]); [`parse`] recognises the language. Both
//! make [`Draft`]s, as the command line does, and every draft goes through the same checks ([`draft`]). A [`Config`] is valid as
//! far as that can be known without asking the host. Nothing here reads a file.
pub mod address;
mod at;
mod check;
pub mod draft;
mod error;
pub mod model;
mod read;
mod rinetd;
pub mod row;
mod rules;
pub mod setting;
mod settings_macro;
pub mod table;
#[cfg(test)]
mod tests;
mod toml;
pub mod value;

pub use at::At;
pub use check::Check;
pub use draft::{Draft, TargetSpec, access_list, quick};
pub use error::ConfigError;
pub use model::*;
pub use setting::Setting;
pub use table::*;

/// A language of configuration files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Language {
    /// TOML.
    Toml,
    /// The language of rinetd.
    Rinetd,
}

/// Reads a configuration in either language. The result has all errors, in the order of the file.
pub fn parse(text: &str) -> Result<Config, Vec<ConfigError>> {
    match language(text) {
        Language::Toml => parse_toml(text),
        Language::Rinetd => parse_rinetd(text),
    }
}

/// Reads a configuration in TOML.
pub fn parse_toml(text: &str) -> Result<Config, Vec<ConfigError>> {
    toml::parse(text)
}

/// Reads a configuration in the language of rinetd.
pub fn parse_rinetd(text: &str) -> Result<Config, Vec<ConfigError>> {
    rinetd::parse(text)
}

/// The language of a text: that of its first line that is valid in only one of them. TOML if there is none.
pub fn language(text: &str) -> Language {
    text.lines().find_map(language_of_line).unwrap_or(Language::Toml)
}

fn language_of_line(line: &str) -> Option<Language> {
    let line = line.trim_start_matches('\u{feff}').trim();
    let mut words = line.split_whitespace();
    let first = words.next().filter(|w| !w.starts_with('#'))?;
    let second = words.next().unwrap_or_default();
    // `[::1] 9000 ...` is an address, `[defaults]` and `[[listener]]` are tables: no bare key of TOML holds a colon.
    if let Some(rest) = first.strip_prefix('[') {
        return Some(if rest.contains(':') { Language::Rinetd } else { Language::Toml });
    }
    let key = line.split('=').next().unwrap_or_default().trim_end();
    if key.len() < line.len() && !key.contains(char::is_whitespace) && !first.starts_with("unix:") {
        return Some(Language::Toml);
    }
    let directive = rinetd::DIRECTIVES.contains(&first) || first.starts_with("unix:");
    let port = second.starts_with(|c: char| c.is_ascii_digit());
    (directive || port).then_some(Language::Rinetd)
}

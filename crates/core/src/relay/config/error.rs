//! What is wrong with a configuration, and where.
use crate::text::position;
use crate::values::ValueError;

/// A mistake in a file.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ConfigError {
    /// The line, from 1.
    pub line: u32,
    /// The first character of what is wrong, from 1, counted in characters.
    pub column: u32,
    /// What is wrong, in one line without a full stop.
    pub what: String,
    /// What to do about it.
    pub hint: String,
}

/// More than this nobody reads, and a hostile file could have one per byte.
const MAX_MISTAKES: usize = 500;

/// The mistakes found so far in a text, by byte offset.
#[derive(Debug)]
pub struct ConfigErrors<'t> {
    text: &'t str,
    found: Vec<(usize, ValueError)>,
}

impl<'t> ConfigErrors<'t> {
    /// None yet.
    pub fn new(text: &'t str) -> Self {
        Self { text, found: Vec::new() }
    }

    /// One more, at this byte.
    pub fn add(&mut self, at: usize, wrong: ValueError) {
        if self.found.len() < MAX_MISTAKES {
            self.found.push((at, wrong));
        }
    }

    /// The value, or one more mistake.
    pub fn keep<T>(&mut self, at: usize, result: Result<T, ValueError>) -> Option<T> {
        result.map_err(|wrong| self.add(at, wrong)).ok()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.found.is_empty()
    }

    /// The line of a byte, from 1.
    pub fn line(&self, at: usize) -> u32 {
        position(self.text, at).0
    }

    /// All of them in the order of the text, each once.
    pub fn finish(self) -> Vec<ConfigError> {
        let Self { text, found } = self;
        let mut mistakes: Vec<ConfigError> = found
            .into_iter()
            .map(|(at, wrong)| {
                let (line, column) = position(text, at);
                ConfigError { line, column, what: wrong.what, hint: wrong.hint }
            })
            .collect();
        mistakes.sort();
        mistakes.dedup();
        mistakes
    }

    /// The first of those without a place in a text.
    pub fn into_first(self) -> Option<ValueError> {
        self.found.into_iter().next().map(|(_, wrong)| wrong)
    }
}

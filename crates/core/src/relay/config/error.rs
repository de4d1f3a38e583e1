//! Errors of a configuration and their positions.
use crate::text::position;
use crate::values::ValueError;

/// One error and its position in the file.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ConfigError {
    /// The line, from 1.
    pub line: u32,
    /// The column at which the wrong text begins, in characters from 1.
    pub column: u32,
    /// The error, in one line without a full stop.
    pub what: String,
    /// A hint: the text to write instead.
    pub hint: String,
}

/// The most errors that are kept, because a hostile file could have one per byte.
const MAX_ERRORS: usize = 500;

/// The errors found so far in a text.
#[derive(Debug)]
pub struct ConfigErrors<'t> {
    text: &'t str,
    /// Each error with its byte offset.
    found: Vec<(usize, ValueError)>,
}

impl<'t> ConfigErrors<'t> {
    pub fn new(text: &'t str) -> Self {
        Self { text, found: Vec::new() }
    }

    /// Adds an error at a byte offset.
    pub fn add(&mut self, at: usize, wrong: ValueError) {
        if self.found.len() < MAX_ERRORS {
            self.found.push((at, wrong));
        }
    }

    /// The value of a result; its error is added at the byte offset.
    pub fn keep<T>(&mut self, at: usize, result: Result<T, ValueError>) -> Option<T> {
        result.map_err(|wrong| self.add(at, wrong)).ok()
    }

    pub fn is_empty(&self) -> bool {
        self.found.is_empty()
    }

    /// The line of a byte offset, from 1.
    pub fn line(&self, at: usize) -> u32 {
        position(self.text, at).0
    }

    /// All errors in the order of the text, without duplicates.
    pub fn finish(self) -> Vec<ConfigError> {
        let Self { text, found } = self;
        let mut errors: Vec<ConfigError> = found
            .into_iter()
            .map(|(at, wrong)| {
                let (line, column) = position(text, at);
                ConfigError { line, column, what: wrong.what, hint: wrong.hint }
            })
            .collect();
        errors.sort();
        errors.dedup();
        errors
    }

    /// The first error, without its position.
    pub fn into_first(self) -> Option<ValueError> {
        self.found.into_iter().next().map(|(_, wrong)| wrong)
    }
}

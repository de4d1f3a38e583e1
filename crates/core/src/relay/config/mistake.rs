//! What is wrong with a configuration, and where.

/// A mistake in a file.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mistake {
    /// The line, from 1.
    pub line: u32,
    /// The first character of what is wrong, from 1, counted in characters.
    pub column: u32,
    /// What is wrong, in one line without a full stop.
    pub what: String,
    /// What to do about it.
    pub hint: String,
}

/// A mistake without a place: of a value, wherever it was given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wrong {
    /// What is wrong, in one line without a full stop.
    pub what: String,
    /// What to do about it.
    pub hint: String,
}

impl Wrong {
    /// A mistake with its hint.
    pub fn new(what: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { what: what.into(), hint: hint.into() }
    }
}

impl std::fmt::Display for Wrong {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.what)
    }
}

impl std::error::Error for Wrong {}

/// More than this nobody reads, and a hostile file could have one per byte.
const MAX_MISTAKES: usize = 500;

/// The mistakes found so far in a text, by byte offset.
#[derive(Debug)]
pub(super) struct Mistakes<'t> {
    text: &'t str,
    found: Vec<(usize, Wrong)>,
}

impl<'t> Mistakes<'t> {
    /// None yet.
    pub fn new(text: &'t str) -> Self {
        Self { text, found: Vec::new() }
    }

    /// One more, at this byte.
    pub fn add(&mut self, at: usize, wrong: Wrong) {
        if self.found.len() < MAX_MISTAKES {
            self.found.push((at, wrong));
        }
    }

    /// The value, or one more mistake.
    pub fn keep<T>(&mut self, at: usize, result: Result<T, Wrong>) -> Option<T> {
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
    pub fn finish(self) -> Vec<Mistake> {
        let Self { text, found } = self;
        let mut mistakes: Vec<Mistake> = found
            .into_iter()
            .map(|(at, wrong)| {
                let (line, column) = position(text, at);
                Mistake { line, column, what: wrong.what, hint: wrong.hint }
            })
            .collect();
        mistakes.sort();
        mistakes.dedup();
        mistakes
    }

    /// The first of those without a place in a text.
    pub fn into_first(self) -> Option<Wrong> {
        self.found.into_iter().next().map(|(_, wrong)| wrong)
    }
}

/// The line and the column of a byte, both from 1; the end of the text for a byte behind it.
pub fn position(text: &str, at: usize) -> (u32, u32) {
    let mut at = at.min(text.len());
    while !text.is_char_boundary(at) {
        at -= 1;
    }
    let before = &text[..at];
    let start = before.rfind('\n').map_or(0, |i| i + 1);
    let line = before.matches('\n').count() + 1;
    let column = before[start..].chars().count() + 1;
    (u32::try_from(line).unwrap_or(u32::MAX), u32::try_from(column).unwrap_or(u32::MAX))
}

/// A piece of the user's text for a message: quoted, without control characters, and not longer than a line bears.
pub(super) fn quote(text: &str) -> String {
    const LONGEST: usize = 60;
    let clean: String = text.chars().take(LONGEST).map(|c| if c.is_control() { ' ' } else { c }).collect();
    let more = if text.chars().nth(LONGEST).is_some() { "…" } else { "" };
    format!("`{clean}{more}`")
}

/// The hint for a word that is none of these: the one it resembles, or all of them.
pub(super) fn choose(word: &str, among: &[&str]) -> String {
    let near = among
        .iter()
        .map(|candidate| (strsim::damerau_levenshtein(&word.to_lowercase().replace('_', "-"), candidate), *candidate))
        // A third of its letters may differ, so that `targt` is near and `threads` is not.
        .filter(|(distance, candidate)| *distance * 3 <= candidate.len().max(3))
        .min();
    match near {
        Some((_, candidate)) if word.len() < 100 => format!("did you mean `{candidate}`?"),
        _ => format!("choose one of {}", among.join(", ")),
    }
}

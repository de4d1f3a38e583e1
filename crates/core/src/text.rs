//! Parts of a user's text in messages: their line and column, how they are quoted, and which word was probably meant.

/// The line and the column of a byte, both from 1 and in characters; the end of the text for a byte after it.
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

/// The text in backticks, with blanks for control characters, and cut after 60 characters.
pub fn quote(text: &str) -> String {
    const LONGEST: usize = 60;
    let clean: String = text.chars().take(LONGEST).map(|c| if c.is_control() { ' ' } else { c }).collect();
    let more = if text.chars().nth(LONGEST).is_some() { "…" } else { "" };
    format!("`{clean}{more}`")
}

/// The hint for a word that is not in `known`: the one that it resembles, or all of them.
pub fn suggest(word: &str, known: &[&str]) -> String {
    let near = known
        .iter()
        .map(|candidate| (strsim::damerau_levenshtein(&word.to_lowercase().replace('_', "-"), candidate), *candidate))
        // A third of its letters may differ, so that `targt` is near and `threads` is not.
        .filter(|(distance, candidate)| *distance * 3 <= candidate.len().max(3))
        .min();
    match near {
        Some((_, candidate)) if word.len() < 100 => format!("did you mean `{candidate}`?"),
        _ => format!("choose one of {}", known.join(", ")),
    }
}

/// The hint for an error of serde: which key was probably meant, or `otherwise` for errors that are not of an unknown key.
pub fn unknown_key_hint(message: &str, otherwise: &str) -> String {
    let quoted: Vec<&str> = message.split('`').skip(1).step_by(2).collect();
    match quoted.split_first() {
        Some((unknown, known)) if message.starts_with("unknown ") && !known.is_empty() => suggest(unknown, known),
        _ => otherwise.to_owned(),
    }
}

//! Parts of a user's text in messages: their line and column, how they are quoted, and which word was probably meant; and which
//! characters of outside text may be printed.
use std::fmt::Write;

/// Whether a character of a text from outside may be printed: a process can name itself as it likes, and so can peers, files and
/// symbols.
///
/// Control characters change what a terminal does. Format characters hide the text around them or reverse its order (UAX #9,
/// CVE-2021-42574), and the separators of lines and paragraphs end a line. Unicode has them in its categories C and Z.
pub fn is_printable(c: char) -> bool {
    if c.is_ascii() {
        return !c.is_ascii_control();
    }
    // Debug escapes these categories, and at the begin of a text also marks, which belong to the letter before them.
    let pair: String = ['x', c].iter().collect();
    pair.escape_debug().eq(pair.chars())
}

/// Marks above and below one letter; more of them are drawn over the lines around it.
const MARKS_MAX: usize = 4;

/// The text with `instead` for each character that may not be printed, and for marks of which a letter has too many.
pub fn printable(text: &str, instead: char) -> String {
    if text.bytes().all(|byte| matches!(byte, 0x20..0x7f)) {
        return text.to_owned();
    }
    let mut marks = 0;
    let shown = text.chars().map(|c| {
        marks = if is_mark(c) { marks + 1 } else { 0 };
        if is_printable(c) && marks <= MARKS_MAX { c } else { instead }
    });
    shown.collect()
}

/// A mark that belongs to the letter before it: Debug escapes one that has none.
fn is_mark(c: char) -> bool {
    !c.is_ascii() && is_printable(c) && c.escape_debug().len() > 1
}

/// The same JSON document, with escapes for characters that may not be printed. Such characters are in its strings, or they are ASCII
/// blanks, which stay.
pub fn printable_json(document: String) -> String {
    if document.bytes().all(|byte| byte < 0x7f) {
        return document;
    }
    let mut out = String::with_capacity(document.len() + 64);
    for c in document.chars() {
        if c < '\x7f' || is_printable(c) { out.push(c) } else { out.push_str(&json_escape(c)) }
    }
    out
}

/// The escape of a character in a string of JSON: `\u202e`, or two of them for one beyond U+FFFF.
pub fn json_escape(c: char) -> String {
    let mut out = String::new();
    for unit in c.encode_utf16(&mut [0; 2]) {
        write!(out, "\\u{unit:04x}").expect("a string takes any text");
    }
    out
}

/// A name with `#` for each number in it: `worker-12` and `worker-3` do the same.
pub fn without_numbers(name: &str) -> String {
    let mut out = String::with_capacity(name.len());
    let mut last_digit = false;
    for c in name.chars() {
        let digit = c.is_ascii_digit();
        if !digit {
            out.push(c);
        } else if !last_digit {
            out.push('#');
        }
        last_digit = digit;
    }
    out
}

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

/// The text in backticks, with blanks for what may not be printed, and cut after 60 characters.
pub fn quote(text: &str) -> String {
    const LONGEST: usize = 60;
    let clean: String = text.chars().take(LONGEST).map(|c| if is_printable(c) { c } else { ' ' }).collect();
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

/// Up to `most` of the names `known` that share a part with `name` or are a few letters away from it, the nearest first.
pub fn nearest<'k>(name: &str, known: impl Iterator<Item = &'k str>, most: usize) -> Vec<&'k str> {
    // Nobody types a longer one, and the time grows with its square.
    let name: String = name.chars().take(64).flat_map(char::to_lowercase).collect();
    let mut near: Vec<(usize, &str)> = known
        .filter_map(|candidate| {
            let letters = strsim::damerau_levenshtein(&name, candidate);
            let contains = name.len() >= 3 && (candidate.contains(name.as_str()) || name.contains(candidate));
            (contains || letters * 3 <= candidate.len()).then_some((letters, candidate))
        })
        .collect();
    near.sort_unstable();
    near.into_iter().take(most).map(|(_, candidate)| candidate).collect()
}

/// The hint for an error of serde: which key was probably meant, or `otherwise` for errors that are not of an unknown key.
pub fn unknown_key_hint(message: &str, otherwise: &str) -> String {
    let quoted: Vec<&str> = message.split('`').skip(1).step_by(2).collect();
    match quoted.split_first() {
        Some((unknown, known)) if message.starts_with("unknown ") && !known.is_empty() => suggest(unknown, known),
        _ => otherwise.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_moves_the_cursor_or_reverses_text_is_not_printed() {
        let hostile = "a\u{202e}txt.exe\u{2028}\u{1b}[2J\u{9b}2J\u{200b}\u{2066}\u{feff}\u{e0041}\u{7f}\n";
        assert_eq!(printable(hostile, '?'), "a?txt.exe??[2J?2J??????");
        let names = "nginx: worker, grüße, 日本語, cafe\u{301}, हिन्दी, → ▏ 🙂";
        assert_eq!(printable(names, '?'), names);
        let piled = format!("e{}x", "\u{301}".repeat(60));
        assert_eq!(printable(&piled, '?'), format!("e{}{}x", "\u{301}".repeat(4), "?".repeat(56)));
    }

    #[test]
    fn names_are_near_by_their_letters_or_by_a_part() {
        let known = ["skb:kfree_skb", "skb:consume_skb", "tlb:tlb_flush"];
        let near = |name: &str| nearest(name, known.into_iter(), 2);
        assert_eq!(near("skb:kfree-skb"), ["skb:kfree_skb"]);
        assert_eq!(near("SKB"), ["skb:kfree_skb", "skb:consume_skb"]);
        assert_eq!(near("flush"), ["tlb:tlb_flush"]);
        assert!(near("xyzzy").is_empty() && near("").is_empty());
        assert_eq!(near(&format!("tlb_flush{}", "é".repeat(100_000))), [""; 0]);
    }

    #[test]
    fn numbers_in_names_do_not_tell_workers_apart() {
        assert_eq!(without_numbers("worker-12"), "worker-#");
        assert_eq!(without_numbers("pool-1-thread-10"), "pool-#-thread-#");
        assert_eq!(without_numbers("nginx"), "nginx");
    }

    #[test]
    fn a_document_means_the_same_with_escapes() {
        let document = serde_json::json!({"name\u{202e}": "\u{9b}\u{e0041}\u{7f} \"ü\\\n", "n": 1});
        let text = serde_json::to_string_pretty(&document).expect("JSON");
        let safe = printable_json(text);
        assert!(safe.chars().all(|c| c == '\n' || is_printable(c)), "{safe}");
        assert!(safe.contains("\\u202e") && safe.contains('ü'), "{safe}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&safe).expect("JSON"), document);
    }
}

//! Wraps words and lists to lines, measured in columns.
//!
//! Every glyph that parshall itself prints takes one column. Text from the host (command names, symbols) passes
//! [`clean`] first, so nothing in it can move the cursor.
use parshall_core::text::printable;

/// Text of the host without what may not be printed: a process name may hold any bytes, such as escape sequences.
pub fn clean(text: &str) -> String {
    printable(text, '?')
}

/// The number of columns that a text takes.
pub fn columns(text: &str) -> usize {
    text.chars().count()
}

/// Breaks at spaces into lines of at most `width` columns; the first line may use only `first`. A word that is longer
/// than a line stays whole: a broken address or symbol cannot be copied.
pub fn words(text: &str, first: usize, width: usize) -> Vec<String> {
    join(text.split_whitespace(), " ", first, width)
}

/// Joins items with a separator and breaks only between them. The separator's own right-hand spaces are dropped at the
/// end of a line.
pub fn items(items: &[String], separator: &str, width: usize) -> Vec<String> {
    join(items.iter().map(String::as_str), separator, width, width)
}

fn join<'a>(parts: impl Iterator<Item = &'a str>, separator: &str, first: usize, width: usize) -> Vec<String> {
    let mut lines = Vec::new();
    let mut line = String::new();
    let mut room = first;
    for part in parts {
        let needed = if line.is_empty() { 0 } else { columns(separator) } + columns(part);
        if !line.is_empty() && columns(&line) + needed + trailing(separator) > room {
            line.push_str(separator.trim_end());
            lines.push(std::mem::take(&mut line));
            room = width;
        }
        if !line.is_empty() {
            line.push_str(separator);
        }
        line.push_str(part);
    }
    if !line.is_empty() {
        lines.push(line);
    }
    lines
}

/// Columns that a separator takes at the end of a line.
fn trailing(separator: &str) -> usize {
    columns(separator.trim_end())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_fill_lines() {
        assert_eq!(words("one two three four", 7, 9), ["one two", "three", "four"]);
        assert_eq!(words("averyverylongword b", 5, 5), ["averyverylongword", "b"]);
        assert!(words("", 5, 5).is_empty());
    }

    #[test]
    fn items_break_between_items_only() {
        let list = ["packet loss (0 of 9)".to_owned(), "CPU (11 % busy)".to_owned()];
        assert_eq!(items(&list, " · ", 60), ["packet loss (0 of 9) · CPU (11 % busy)"]);
        assert_eq!(items(&list, " · ", 30), ["packet loss (0 of 9) ·", "CPU (11 % busy)"]);
    }

    #[test]
    fn escape_sequences_are_removed() {
        assert_eq!(clean("a\u{1b}[2Jb\n"), "a?[2Jb?");
    }
}

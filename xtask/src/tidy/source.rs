//! Rust source with the contents of comments, strings and characters blanked, so that words in them are not code. Lines
//! stay where they are.

/// A function and where it lies.
#[derive(Debug, PartialEq, Eq)]
pub struct Function {
    /// Its name.
    pub name: String,
    /// Line of `fn`, counted from 1.
    pub line: usize,
    /// Lines from `fn` to the closing brace.
    pub lines: usize,
}

/// Blanks comments and literals.
pub fn blank(source: &str) -> String {
    let chars: Vec<char> = source.chars().collect();
    let mut out = String::with_capacity(source.len());
    let mut i = 0;
    while i < chars.len() {
        let end = skip(&chars, i);
        if end == i {
            out.push(chars[i]);
            i += 1;
        } else {
            out.extend(chars[i..end].iter().map(|c| if *c == '\n' { '\n' } else { ' ' }));
            i = end;
        }
    }
    out
}

/// The end of the comment or literal that begins at `i`, or `i` if none does.
fn skip(chars: &[char], i: usize) -> usize {
    let at = |k: usize| chars.get(k).copied().unwrap_or('\0');
    let after_word = i > 0 && is_word(chars[i - 1]);
    match at(i) {
        '/' if at(i + 1) == '/' => (i..chars.len()).find(|k| chars[*k] == '\n').unwrap_or(chars.len()),
        '/' if at(i + 1) == '*' => block_comment(chars, i),
        '"' => quoted(chars, i + 1, '"'),
        'b' | 'c' if at(i + 1) == '"' && !after_word => quoted(chars, i + 2, '"'),
        'r' if !after_word => raw_string(chars, i + 1).unwrap_or(i),
        'b' | 'c' if at(i + 1) == 'r' && !after_word => raw_string(chars, i + 2).unwrap_or(i),
        // A character, not a lifetime: 'x' or '\...'.
        '\'' if at(i + 1) == '\\' || at(i + 2) == '\'' => quoted(chars, i + 1, '\''),
        _ => i,
    }
}

fn block_comment(chars: &[char], start: usize) -> usize {
    let (mut depth, mut i) = (0, start);
    while i < chars.len() {
        match (chars[i], chars.get(i + 1)) {
            ('/', Some('*')) => (depth, i) = (depth + 1, i + 2),
            ('*', Some('/')) => (depth, i) = (depth - 1, i + 2),
            _ => i += 1,
        }
        if depth == 0 {
            return i;
        }
    }
    i
}

/// The end of a literal whose contents begin at `i`.
fn quoted(chars: &[char], mut i: usize, quote: char) -> usize {
    while i < chars.len() {
        match chars[i] {
            '\\' => i += 2,
            c if c == quote => return i + 1,
            _ => i += 1,
        }
    }
    chars.len()
}

/// The end of a raw string whose hashes begin at `i`; None if this is no raw string.
fn raw_string(chars: &[char], i: usize) -> Option<usize> {
    let hashes = chars[i..].iter().take_while(|c| **c == '#').count();
    let mut k = i + hashes;
    if chars.get(k) != Some(&'"') {
        return None;
    }
    k += 1;
    while k < chars.len() {
        if chars[k] == '"' && chars[k + 1..].iter().take_while(|c| **c == '#').take(hashes).count() == hashes {
            return Some(k + 1 + hashes);
        }
        k += 1;
    }
    Some(chars.len())
}

/// Whether a character may be part of an identifier.
pub fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Lines (from 1) on which a word stands as a whole word.
pub fn lines_with(blanked: &str, word: &str) -> Vec<usize> {
    let hit = |line: &str| {
        line.match_indices(word).any(|(at, _)| {
            !line[..at].chars().next_back().is_some_and(is_word)
                && !line[at + word.len()..].chars().next().is_some_and(is_word)
        })
    };
    blanked.lines().enumerate().filter(|(_, l)| hit(l)).map(|(i, _)| i + 1).collect()
}

/// All functions with a body, also nested ones. `blanked` comes from [`blank`].
pub fn functions(blanked: &str) -> Vec<Function> {
    let chars: Vec<char> = blanked.chars().collect();
    let mut found = Vec::new();
    let mut line = 1;
    for i in 0..chars.len() {
        if chars[i] == '\n' {
            line += 1;
        }
        let starts_word = i == 0 || !is_word(chars[i - 1]);
        if !(starts_word && chars[i..].starts_with(&['f', 'n', ' '])) {
            continue;
        }
        let name: String =
            chars[i + 3..].iter().skip_while(|c| c.is_whitespace()).take_while(|c| is_word(**c)).collect();
        if let Some(lines) = body_lines(&chars[i..]).filter(|_| !name.is_empty()) {
            found.push(Function { name, line, lines });
        }
    }
    found
}

/// Lines of a function from its `fn`; None without a body.
fn body_lines(chars: &[char]) -> Option<usize> {
    let (mut depth, mut nested, mut lines) = (0_usize, 0_usize, 1);
    for c in chars {
        match c {
            '\n' => lines += 1,
            // A `;` inside `[u8; 4]` or `(..)` of the signature does not end it.
            '(' | '[' => nested += 1,
            ')' | ']' => nested = nested.saturating_sub(1),
            ';' if depth == 0 && nested == 0 => return None,
            '{' => depth += 1,
            '}' => {
                depth = depth.checked_sub(1)?;
                if depth == 0 {
                    return Some(lines);
                }
            }
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blanks_what_is_not_code() {
        let source = "let a = \"unsafe \\\" {\"; // unsafe\n/* unsafe /* { */ } */ let b = r#\"unsafe \" {\"#;\nlet c = '{'; let d = '\\'';";
        let blanked = blank(source);
        assert_eq!(blanked.lines().count(), 3);
        assert!(!blanked.contains("unsafe") && !blanked.contains('{') && !blanked.contains('}'), "{blanked}");
        assert!(blanked.contains("let b") && blanked.contains("let d"), "{blanked}");
    }

    #[test]
    fn lifetimes_and_identifiers_stay() {
        let source = "fn f<'a>(x: &'a str) -> &'static str { for_str(x) }";
        assert_eq!(blank(source), source);
        assert_eq!(blank("let number = bar\"x\"; attr"), "let number = bar   ; attr");
    }

    #[test]
    fn whole_words_only() {
        assert_eq!(lines_with("unsafe_code\nunsafe {\nnot_unsafe\n", "unsafe"), [2]);
    }

    #[test]
    fn measures_functions() {
        let source = "trait T { fn none(&self) -> [u8; 4]; }\nfn one() { let s = [0; 2]; }\npub fn three(a: [u8; 4])\n{\n}\nlet p: fn (u8);";
        let found = functions(&blank(source));
        let short: Vec<(&str, usize, usize)> = found.iter().map(|f| (f.name.as_str(), f.line, f.lines)).collect();
        assert_eq!(short, [("one", 2, 1), ("three", 3, 3)]);
    }
}

//! Which characters a destination shows: those of UTF-8, or ASCII alone.
use std::borrow::Cow;
use std::ffi::OsStr;

/// The characters of text output.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Charset {
    /// All.
    #[default]
    Utf8,
    /// ASCII, for locales and terminals without UTF-8.
    Ascii,
}

impl Charset {
    /// The charset of this process' locale; `terminal`: the text goes to one, so that its type counts, too.
    pub(super) fn of_environment(terminal: bool) -> Charset {
        Charset::of(|name| std::env::var_os(name), terminal)
    }

    /// The first of LC_ALL, LC_CTYPE and LANG that is not empty decides (setlocale(3)); without any the locale is C. Of terminals, `dumb`
    /// promises nothing, and the console's (`linux`) fonts have 256 or 512 characters, without most of the blocks that bars are made of.
    fn of<V: AsRef<OsStr>>(variable: impl Fn(&str) -> Option<V>, terminal: bool) -> Charset {
        let value = |name: &str| {
            let value = variable(name)?.as_ref().to_string_lossy().to_ascii_lowercase();
            (!value.is_empty()).then_some(value)
        };
        let locale = ["LC_ALL", "LC_CTYPE", "LANG"].into_iter().find_map(value).unwrap_or_default();
        let poor = terminal && matches!(value("TERM").as_deref(), Some("dumb" | "linux"));
        if !poor && (locale.contains("utf-8") || locale.contains("utf8")) { Charset::Utf8 } else { Charset::Ascii }
    }

    /// The text in these characters. Line breaks stay; a character without an equivalent becomes `?`.
    pub fn text(self, text: &str) -> Cow<'_, str> {
        if self == Charset::Utf8 || text.is_ascii() {
            return Cow::Borrowed(text);
        }
        let mut out = String::with_capacity(text.len());
        for c in text.chars() {
            match ascii(c) {
                Some(same) => out.push_str(same),
                None if c.is_ascii() => out.push(c),
                None => out.push('?'),
            }
        }
        Cow::Owned(out)
    }

    /// The separator of the items of a list on a line.
    pub fn separator(self) -> &'static str {
        match self {
            Charset::Utf8 => " · ",
            Charset::Ascii => ", ",
        }
    }

    /// A bar of `share` of `width` columns: in eighths of a column, or in whole ones. A share above 0 is never empty.
    pub fn bar(self, share: f64, width: usize) -> String {
        let share = if share.is_finite() { share.clamp(0.0, 1.0) } else { 0.0 };
        let least = usize::from(share > 0.0);
        match self {
            Charset::Utf8 => {
                let eighths = ((share * (width * 8) as f64).round() as usize).max(least);
                let part = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"].get(eighths % 8).copied().unwrap_or_default();
                "█".repeat(eighths / 8) + part
            }
            Charset::Ascii => "#".repeat(((share * width as f64).round() as usize).max(least)),
        }
    }
}

/// The substitutes of characters that parshall itself writes.
fn ascii(c: char) -> Option<&'static str> {
    Some(match c {
        '→' => "->",
        '←' => "<-",
        '≈' => "~",
        'µ' | 'μ' => "u",
        '·' => "-",
        '×' => "x",
        '…' => "...",
        '└' | '├' | '│' => "-",
        '█' | '▉' | '▊' | '▋' | '▌' | '▍' | '▎' | '▏' => "#",
        '–' | '—' | '−' => "-",
        '≤' => "<=",
        '≥' => ">=",
        '±' => "+-",
        '‘' | '’' => "'",
        '“' | '”' => "\"",
        '\u{a0}' => " ",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(variables: &[(&str, &'static str)], terminal: bool) -> Charset {
        Charset::of(|name| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| *value), terminal)
    }

    #[test]
    fn the_first_variable_that_is_set_decides() {
        for (variables, charset) in [
            (&[("LANG", "C.UTF-8")][..], Charset::Utf8),
            (&[("LANG", "de_DE.utf8")], Charset::Utf8),
            (&[("LANG", "de_DE@euro")], Charset::Ascii),
            (&[("LC_ALL", "C"), ("LANG", "C.UTF-8")], Charset::Ascii),
            (&[("LC_ALL", ""), ("LC_CTYPE", "en_US.UTF-8"), ("LANG", "C")], Charset::Utf8),
            (&[("LC_CTYPE", "POSIX"), ("LANG", "C.UTF-8")], Charset::Ascii),
            (&[], Charset::Ascii),
        ] {
            assert_eq!(of(variables, false), charset, "{variables:?}");
            assert_eq!(of(variables, true), charset, "{variables:?}");
        }
        for term in ["dumb", "linux"] {
            let variables = [("LANG", "C.UTF-8"), ("TERM", term)];
            assert_eq!((of(&variables, true), of(&variables, false)), (Charset::Ascii, Charset::Utf8), "{term}");
        }
        assert_eq!(of(&[("LANG", "C.UTF-8"), ("TERM", "xterm-256color")], true), Charset::Utf8);
    }

    #[test]
    fn ascii_has_an_equivalent_of_all_that_parshall_writes() {
        assert_eq!(
            Charset::Ascii.text("≈3 µs · a → b\n└ c ← d, 2 × 3 … █▏ é"),
            "~3 us - a -> b\n- c <- d, 2 x 3 ... ## ?"
        );
        assert_eq!(Charset::Utf8.text("≈3 µs é"), "≈3 µs é");
    }

    #[test]
    fn bars_are_drawn_with_what_there_is() {
        assert_eq!((Charset::Utf8.bar(0.5, 5), Charset::Ascii.bar(0.5, 5)), ("██▌".to_owned(), "###".to_owned()));
        assert_eq!((Charset::Utf8.bar(1e-9, 5), Charset::Ascii.bar(1e-9, 5)), ("▏".to_owned(), "#".to_owned()));
        for charset in [Charset::Utf8, Charset::Ascii] {
            assert!(charset.bar(0.0, 5).is_empty() && charset.bar(f64::NAN, 5).is_empty());
            assert_eq!(charset.bar(7.0, 5).chars().count(), 5);
        }
    }
}

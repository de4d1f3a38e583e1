//! Text of the host, as a page may show it.
use parshall_host::output;

/// Text of the host without what may not be printed, and with the order of the words around it kept: behind letters that are written from
/// right to left, a number would else be drawn to the left of them (UAX #9), as the id behind the name of a process.
pub fn clean(text: &str) -> String {
    let text = output::clean(text);
    if !text.chars().any(is_right_to_left) {
        return text;
    }
    let mut out = String::with_capacity(text.len() + 8);
    // Blanks between two words of a run belong to it.
    let (mut in_run, mut blanks) = (false, 0);
    for c in text.chars() {
        match c {
            ' ' if in_run => blanks += 1,
            _ => {
                if in_run && !is_right_to_left(c) && !out.is_empty() {
                    out.push(LEFT_TO_RIGHT);
                }
                out.extend(std::iter::repeat_n(' ', blanks));
                (in_run, blanks) = (is_right_to_left(c), 0);
                out.push(c);
            }
        }
    }
    if in_run {
        out.push(LEFT_TO_RIGHT);
    }
    out.extend(std::iter::repeat_n(' ', blanks));
    out
}

/// LEFT-TO-RIGHT MARK: what follows is written from left to right, whatever it is.
const LEFT_TO_RIGHT: char = '\u{200e}';

/// A letter of the scripts that are written from right to left, by their blocks.
fn is_right_to_left(c: char) -> bool {
    matches!(c, '\u{590}'..='\u{8ff}' | '\u{fb1d}'..='\u{fdff}' | '\u{fe70}'..='\u{fefc}' | '\u{10800}'..='\u{10fff}' | '\u{1e800}'..='\u{1efff}')
}

#[cfg(test)]
mod tests {
    use super::clean;

    #[test]
    fn a_number_stays_behind_a_name_that_is_written_from_right_to_left() {
        assert_eq!(clean("nginx 812"), "nginx 812");
        assert_eq!(clean("\u{5d0}\u{5d1} 812 waits"), "\u{5d0}\u{5d1}\u{200e} 812 waits");
        assert_eq!(clean("\u{5d0} \u{5d1}"), "\u{5d0} \u{5d1}\u{200e}");
        assert_eq!(clean("a \u{627}  1, \u{202e}x"), "a \u{627}\u{200e}  1, ?x");
    }
}

//! A section of the page.
use maud::{Markup, html};
use parshall_core::report::Title;

use super::clean::clean;

/// A section with its heading, by which links and readers find it.
pub fn section(id: &str, title: Title, body: &Markup) -> Markup {
    html! {
        section id=(id) aria-labelledby=(format!("{id}-title")) {
            h2 id=(format!("{id}-title")) { (title.in_sentence_case()) }
            (body)
        }
    }
}

/// Text of the page. A figure stays on one line with its unit.
pub fn text(text: &str) -> String {
    const UNITS: [&str; 13] = ["%", "ns", "µs", "ms", "s", "B", "kB", "MB", "KiB", "MiB", "kB/s", "MB/s", "Mbit/s"];
    let text = clean(text);
    let mut out = String::with_capacity(text.len());
    for (at, word) in text.split(' ').enumerate() {
        let unit = word.trim_end_matches([',', '.', ';', ':', ')']);
        let figure = UNITS.contains(&unit) && out.ends_with(|c: char| c.is_ascii_digit());
        if figure || at > 0 && word.starts_with(|c: char| c.is_ascii_digit()) && (out == "<" || out.ends_with(" <")) {
            out.push('\u{a0}');
        } else if at > 0 {
            out.push(' ');
        }
        out.push_str(word);
    }
    out
}

/// Words of a command line. An option stays on one line: browsers break a line behind each of its hyphens.
pub fn command(line: &str) -> Markup {
    let line = clean(line);
    html! {
        @for (at, word) in line.split(' ').enumerate() {
            @if at > 0 { " " }
            @if word.contains('-') && word.len() <= LONGEST_OPTION { span.option { (word) } } @else { (word) }
        }
    }
}

/// A longer word than this many bytes may be wider than a narrow screen.
const LONGEST_OPTION: usize = 32;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_option_stays_on_one_line() {
        let option = |text: &str| format!("<span class=\"option\">{text}</span>");
        let all = format!("java {} {}", option("-Xlog:gc"), option("a&lt;-b"));
        assert_eq!(command("java -Xlog:gc a<-b").into_string(), all);
        let long = "/srv/a-file-with-a-name-that-is-very-long-indeed";
        assert_eq!(command(long).into_string(), long);
    }

    #[test]
    fn a_figure_stays_with_its_unit() {
        assert_eq!(text(" (99.2 %, 4.65 ms) of 16 KiB"), " (99.2\u{a0}%, 4.65\u{a0}ms) of 16\u{a0}KiB");
        assert_eq!(text("requests/s of 2 services"), "requests/s of 2 services");
        assert_eq!(text("< 0.1 % EAGAIN, a < 2"), "<\u{a0}0.1\u{a0}% EAGAIN, a <\u{a0}2");
    }
}

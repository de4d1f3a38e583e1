//! A section of the page.
use maud::{Markup, html};
use parshall_core::report::Title;

/// A section with its heading, by which links and readers find it.
pub fn section(id: &str, title: Title, body: &Markup) -> Markup {
    html! {
        section id=(id) aria-labelledby=(format!("{id}-title")) {
            h2 id=(format!("{id}-title")) { (title.in_sentence_case()) }
            (body)
        }
    }
}

//! Links from the figures of a page to the rule that made each, and to the spans of the timeline that count into it. Without scripts these
//! lead to the sections at the end of the page.
use maud::{Markup, PreEscaped, html};
use parshall_core::judge::Judged;
use parshall_core::report::{Basis, Page, Rule, Title, anchor, of_cause, rules};
use parshall_core::sorting::StableSort as _;
use parshall_core::trace::{Kind, Mark, Marker, Span, Trace};
use parshall_core::units::{count, plural, time_ms};
use parshall_evidence::Capture;

use super::clean::clean;
use super::section::{section, text as words};

/// Lanes of a figure in the table of its events.
const TABLE_LANES: usize = 5;

/// A figure of the page that has events.
pub struct Figure {
    /// The anchor of its events.
    pub id: String,
    /// The figure in words: the heading of its events.
    pub title: String,
    /// The anchor of its rule.
    pub rule: String,
    /// Its events.
    pub marks: Vec<Mark>,
    basis: Basis,
}

/// The figures of a page.
pub struct Figures<'a> {
    judged: &'a Judged<'a>,
    rules: Vec<Rule>,
    /// Those with events, in the order of the page.
    pub all: Vec<Figure>,
    /// The answer is a cause.
    names_cause: bool,
}

impl<'a> Figures<'a> {
    /// Looks for the events of each.
    pub fn new(page: &Page, judged: &'a Judged<'a>, capture: &Capture, trace: &Trace) -> Figures<'a> {
        let answer = if page.verdict.headline.is_empty() {
            page.verdict.title.in_sentence_case()
        } else {
            page.verdict.headline.clone()
        };
        let rows = page.time.iter().flat_map(|bars| &bars.rows);
        let rows = rows.map(|row| (&row.basis, format!("{}: {}", row.label, row.figure)));
        let others = page.others.iter().flat_map(|others| &others.rows);
        let others = others.map(|other| (&other.basis, other.headline.clone()));
        let marker = Marker::new(capture, judged.index.as_ref(), trace);
        let mut all: Vec<Figure> = Vec::new();
        for (basis, title) in std::iter::once((&page.verdict.basis, answer)).chain(rows).chain(others) {
            let marks = judged.counted.of(basis).map_or_else(Vec::new, |events| marker.marks(events));
            let Some(rule) = anchor(basis, &judged.report).filter(|_| !marks.is_empty()) else { continue };
            let id = format!("events-{}", all.len() + 1);
            all.push(Figure { id, title: clean(&title), rule, marks, basis: basis.clone() });
        }
        Figures { judged, rules: rules(&judged.report), all, names_cause: page.verdict.basis == Basis::Finding(0) }
    }

    /// The view with which the page opens: the longest event of the cause that it names, with a quarter of its length on either side. A
    /// longer wait may have nothing to do with the cause. None where no cause with events is named.
    pub fn opens_at(&self, trace: &Trace) -> Option<(u64, u64)> {
        let cause = self.all.iter().find(|figure| figure.basis == Basis::Finding(0) && self.names_cause)?;
        let of = |kind: Kind| {
            let lanes = cause.marks.iter().filter_map(|mark| Some((trace.lanes.get(mark.lane as usize)?, mark)));
            let lanes = lanes.filter(|(lane, _)| lane.kind == kind);
            let spans = lanes.flat_map(|(lane, mark)| mark.spans.iter().filter_map(|at| lane.spans.get(*at as usize)));
            spans.max_by_key(|span| (span.ns(), std::cmp::Reverse(span.begin_ns)))
        };
        let longest = of(Kind::Requests).or_else(|| of(Kind::Socket)).or_else(|| of(Kind::Thread))?;
        let margin = longest.ns() / 4;
        let until = trace.window_ns.max(longest.end_ns);
        Some((longest.begin_ns.saturating_sub(margin), longest.end_ns.saturating_add(margin).min(until)))
    }

    /// The figure as a link to its events, where it has any.
    pub fn figure(&self, basis: &Basis, text: &str) -> Markup {
        let found = self.all.iter().find(|figure| figure.basis == *basis);
        html! {
            @match found {
                Some(figure) if !text.is_empty() => { a.count href=(format!("#{}", figure.id)) title="The events that count into it" { (words(text)) } }
                _ => { (words(text)) }
            }
        }
    }

    /// Whether a figure has events that it could lead to.
    pub fn has_events(&self, basis: &Basis) -> bool {
        self.all.iter().any(|figure| figure.basis == *basis)
    }

    /// A link to the rule of a figure.
    pub fn rule(&self, basis: &Basis, of: &str) -> Markup {
        self.link(anchor(basis, &self.judged.report), of)
    }

    /// The name of a cause as a link to its rule.
    pub fn name(&self, cause: &str, name: &str) -> Markup {
        let id = of_cause(cause);
        html! { @if self.has(&id) { a href=(format!("#{id}")) { (clean(name)) } } @else { (clean(name)) } }
    }

    fn link(&self, anchor: Option<String>, of: &str) -> Markup {
        html! {
            @if let Some(id) = anchor.filter(|id| self.has(id)) {
                a.rule href=(format!("#{id}")) aria-label=(clean(&format!("rule: {of}"))) { "rule" }
            }
        }
    }

    fn has(&self, id: &str) -> bool {
        self.rules.iter().any(|rule| rule.id == id || rule.parts.iter().any(|part| part.0 == id))
    }

    /// The events of each figure by lane: the tables behind what a click shows on the timeline.
    pub fn events(&self, trace: &Trace) -> Markup {
        if self.all.is_empty() {
            return html! {};
        }
        let body = html! {
            p { "A figure leads here, and with JavaScript to the same events on the timeline." }
            @for figure in &self.all { (events(figure, trace)) }
        };
        section("events", Title("EVENTS BEHIND THE FIGURES"), &body)
    }

    /// The rules.
    pub fn rules(&self) -> Markup {
        let body = html! {
            @for rule in &self.rules {
                details {
                    summary { (clean(&rule.title)) }
                    div id=(rule.id) {
                        @for text in &rule.text { p { (inline(text)) } }
                        @if !rule.parts.is_empty() {
                            dl { @for (id, name, text) in &rule.parts { div id=(id) { dt { (clean(name)) } dd { (inline(text)) } } } }
                        }
                    }
                }
            }
        };
        section("rules", Title("RULES"), &body)
    }
}

fn events(figure: &Figure, trace: &Trace) -> Markup {
    let mut rows: Vec<(&Mark, Vec<&Span>)> = Vec::new();
    for mark in &figure.marks {
        let Some(lane) = trace.lanes.get(mark.lane as usize) else { continue };
        rows.push((mark, mark.spans.iter().filter_map(|at| lane.spans.get(*at as usize)).collect()));
    }
    let sum = |spans: &[&Span]| spans.iter().fold(0u64, |sum, span| sum.saturating_add(span.ns()));
    let number = |n: usize| n as u64;
    rows.stable_sort_by_key(|(mark, spans)| (std::cmp::Reverse(sum(spans)), mark.lane));
    let n = rows.iter().map(|(_, spans)| spans.len()).sum::<usize>();
    let ns = rows.iter().fold(0u64, |all, (_, spans)| all.saturating_add(sum(spans)));
    let lanes = plural(number(rows.len()), "lane", "lanes");
    let about = format!("{} on {lanes}, {} in all", plural(number(n), "event", "events"), time_ms(ns as f64 / 1e6));
    html! {
        details {
            summary { (words(&figure.title)) " – " (words(&about)) }
            div id=(figure.id) {
                table {
                    thead { tr {
                        th scope="col" { "lane" }
                        th scope="col" { "mostly" }
                        th.figure scope="col" { "events" }
                        th.figure scope="col" { "time" }
                        th.figure scope="col" { "longest" }
                    } }
                    tbody {
                        @for (mark, spans) in rows.iter().take(TABLE_LANES) {
                            @let lane = &trace.lanes[mark.lane as usize];
                            @let longest = spans.iter().copied().max_by_key(|span| span.ns());
                            tr {
                                th scope="row" { (clean(&lane.group)) ", " (clean(&lane.name)) }
                                td { (longest.map_or("", |span| span.state.label())) }
                                td.figure { (count(number(spans.len()))) }
                                td.figure { (time_ms(sum(spans) as f64 / 1e6)) }
                                td.figure { (time_ms(longest.map_or(0, |span| span.ns()) as f64 / 1e6)) }
                            }
                        }
                    }
                }
                @if rows.len() > TABLE_LANES {
                    p { "and " (plural(number(rows.len() - TABLE_LANES), "more lane", "more lanes")) }
                }
                p { a href=(format!("#{}", figure.rule)) { "The rule" } }
            }
        }
    }
}

/// Code between backticks, emphasis between asterisks.
fn inline(text: &str) -> Markup {
    let code = text.split('`').enumerate().map(|(at, part)| match at % 2 {
        0 => part.split('*').enumerate().map(|(at, part)| tagged(if at % 2 == 1 { "em" } else { "" }, part)).collect(),
        _ => tagged("code", part),
    });
    PreEscaped(code.collect())
}

fn tagged(tag: &str, text: &str) -> String {
    let escaped = html! { (clean(text)) }.into_string();
    if tag.is_empty() || text.is_empty() { escaped } else { format!("<{tag}>{escaped}</{tag}>") }
}

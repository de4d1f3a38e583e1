//! The sections of a page, as HTML that can be read, printed and heard without scripts. Bars are SVG, with their figures beside them.
use std::collections::BTreeMap;

use maud::{Markup, html};
use parshall_core::report::{
    Bars, Basis, Chain, Command, EvidenceRow, Fix, HopRow, Listed, Others, Page, Services, Stack, Table, Title, Verdict,
};
use parshall_core::sorting::StableSort as _;
use parshall_core::trace::{Kind, Lane, State, Trace};
use parshall_core::units::{count, plural, time_ms};
use parshall_evidence::Status;

use super::clean::clean;
use super::figures::Figures;
use super::section::{command, section, text};

/// Lanes in the table behind the timeline.
const TABLE_LANES: usize = 200;
/// States of a lane in that table.
const TABLE_STATES: usize = 3;

pub fn head(page: &Page) -> Markup {
    html! {
        header {
            p.subject { @for item in &page.head { span { (text(item)) } " " } }
            @if !page.origin.is_empty() {
                p.origin { @for item in &page.origin { span { (command(item)) } " " } }
            }
        }
    }
}

pub fn verdict(verdict: &Verdict, figures: &Figures<'_>) -> Markup {
    let class = match verdict.status {
        Status::Cause => "bad",
        Status::Healthy => "good",
        Status::AtCapacity | Status::NoDominantCause | Status::InsufficientEvidence => "warn",
    };
    html! {
        section #verdict class=(class) aria-labelledby="verdict-title" {
            h1 #verdict-title {
                span.status { (verdict.title.in_sentence_case()) }
                @if !verdict.headline.is_empty() {
                    ": " (text(verdict.headline.strip_suffix(&verdict.share).unwrap_or(&verdict.headline)))
                    @if verdict.headline.ends_with(&verdict.share) { (figures.figure(&verdict.basis, &verdict.share)) }
                }
            }
            p.tags {
                @for tag in &verdict.tags { span { (clean(tag)) } " " }
                span { (figures.rule(&verdict.basis, "the answer")) }
                @if verdict.share.is_empty() && figures.has_events(&verdict.basis) { " " span { (figures.figure(&verdict.basis, "events")) } }
            }
            @for sentence in &verdict.sentences { p { (with_code(sentence)) } }
        }
    }
}

/// Each hop is a list within the one before.
pub fn chain(chain: &Chain) -> Markup {
    fn hops(rows: &[HopRow]) -> Markup {
        let Some((row, rest)) = rows.split_first() else { return html! {} };
        html! {
            ul {
                li {
                    strong { (clean(&row.who)) } " " (text(&row.does))
                    @if let Some(found) = &row.stack { (stack(found)) }
                    (hops(rest))
                }
            }
        }
    }
    section("chain", chain.title, &hops(&chain.rows))
}

fn stack(stack: &Stack) -> Markup {
    html! {
        div.stack {
            "in " code { (clean(&stack.frames.join(" ← "))) }
            @if let Some(more) = &stack.more { " " (clean(more)) }
        }
    }
}

fn commands(list: &[Command]) -> Markup {
    html! {
        @for one in list {
            p.command { (clean(&one.label)) ": " code { (command(&one.command)) } }
        }
    }
}

/// Text with what is to be typed between backticks.
fn with_code(line: &str) -> Markup {
    let parts: Vec<&str> = line.split('`').collect();
    if parts.len().is_multiple_of(2) {
        return html! { (text(line)) };
    }
    html! {
        @for (at, part) in parts.into_iter().enumerate() {
            @if at % 2 == 0 { (text(part)) } @else { code { (command(part)) } }
        }
    }
}

pub fn fix(fix: &Fix) -> Markup {
    section("fix", fix.title, &html! { p { (with_code(&fix.text)) } (commands(&fix.commands)) })
}

pub fn services(services: &Services) -> Markup {
    let body = html! {
        ul { @for row in &services.rows { li { (text(&row.join(" · "))) } } }
        @if let Some(more) = &services.more { p { (clean(more)) } }
    };
    section("services", services.title, &body)
}

pub fn time(accounts: &[Bars], figures: &Figures<'_>) -> Markup {
    if accounts.is_empty() {
        return html! {};
    }
    let title = accounts.iter().find_map(|bars| bars.title).unwrap_or(Title("TIME"));
    let body = html! {
        @for bars in accounts {
            table.bars {
                caption { (text(&bars.of)) }
                thead { tr { th scope="col" { "state" } th.bar scope="col" { "part of the time" } th.figure scope="col" { "share" } th scope="col" { "rule" } } }
                tbody {
                    @for row in &bars.rows {
                        tr {
                            th scope="row" { (clean(&row.label)) }
                            td.bar { (bar(row.share)) }
                            td.figure { (figures.figure(&row.basis, &row.figure)) }
                            td { (figures.rule(&row.basis, &row.label)) }
                        }
                    }
                }
            }
        }
    };
    section("time", title, &body)
}

fn bar(share: f64) -> Markup {
    let width = format!("{:.2}", share.clamp(0.0, 1.0) * 100.0);
    html! {
        svg viewBox="0 0 100 4" preserveAspectRatio="none" aria-hidden="true" focusable="false" {
            rect.track width="100" height="4" {}
            rect.part width=(width) height="4" {}
        }
    }
}

pub fn tail(title: Title, line: &str) -> Markup {
    section("tail", title, &html! { p { (text(line)) } })
}

/// All of it rests on the events of the cause.
pub fn evidence(title: Title, rows: &[EvidenceRow], basis: &Basis, figures: &Figures<'_>) -> Markup {
    let body = html! {
        table.evidence {
            thead { tr { th.figure scope="col" { "figure" } th scope="col" { "of what" } th scope="col" { "rule" } } }
            tbody {
                @for row in rows {
                    tr {
                        td.figure { (figures.figure(basis, &row.figure)) }
                        td { (text(&row.words.join(" · "))) @if let Some(found) = &row.stack { (stack(found)) } }
                        td { (figures.rule(basis, &row.words.join(" · "))) }
                    }
                }
            }
        }
    };
    section("evidence", title, &body)
}

pub fn table(table: &Table) -> Markup {
    let name = table.title.as_id();
    if table.rows.is_empty() {
        return section(&name, table.title, &html! { p { (clean(&table.of)) } });
    }
    let body = html! {
        div.wide tabindex="0" role="region" aria-label=(clean(&table.of)) {
            table.figures {
                caption { (clean(&table.of)) }
                thead {
                    tr {
                        @for (at, name) in table.head.iter().enumerate() { th.figure[at >= table.names] scope="col" { (name) } }
                        @if !table.stacks.is_empty() { th scope="col" { "stack" } }
                    }
                }
                tbody {
                    @for (nth, row) in table.rows.iter().enumerate() {
                        tr {
                            @for (at, cell) in row.iter().enumerate() {
                                @if at == 0 { th scope="row" { (breakable(cell)) } }
                                @else { td.figure[at >= table.names] { (text(cell)) } }
                            }
                            @if let Some(found) = table.stacks.get(nth) { td { @if let Some(found) = found { (stack(found)) } } }
                        }
                    }
                }
            }
        }
    };
    section(&name, table.title, &body)
}

/// A name that may be broken at its underscores where a screen is narrow: `clock_nanosleep`.
fn breakable(name: &str) -> Markup {
    let cleaned = clean(name);
    html! {
        @for (at, part) in cleaned.split('_').enumerate() {
            @if at > 0 { "_" wbr; }
            (part)
        }
    }
}

pub fn others(others: &Others, figures: &Figures<'_>) -> Markup {
    let body = html! {
        ul {
            @for row in &others.rows {
                li {
                    strong { (figures.figure(&row.basis, &row.headline)) } " (" (clean(&row.id)) ") " (figures.rule(&row.basis, &row.headline))
                    @for sentence in &row.sentences { p { (with_code(sentence)) } }
                    (commands(&row.commands))
                }
            }
        }
        @if let Some(more) = &others.more { p { (clean(more)) } }
    };
    section("others", others.title, &body)
}

pub fn listed(listed: &Listed, figures: &Figures<'_>) -> Markup {
    let body = html! {
        @if !listed.items.is_empty() { ul {
                @for (item, causes) in listed.items.iter().zip(&listed.causes) {
                    li { (listed_item(item, causes, figures)) }
                }
            } }
        @if let Some(summary) = &listed.summary { p { (text(summary)) } }
    };
    section(&listed.title.as_id(), listed.title, &body)
}

/// The names of the causes lead to their rules.
fn listed_item(item: &str, causes: &[String], figures: &Figures<'_>) -> Markup {
    let names: Vec<String> = causes.iter().map(|cause| cause.replace('-', " ")).collect();
    let Some(why) = item.strip_prefix(&names.join(", ")) else { return html! { (clean(item)) } };
    html! {
        @for (at, (cause, name)) in causes.iter().zip(&names).enumerate() {
            @if at > 0 { ", " }
            (figures.name(cause, name))
        }
        (text(why))
    }
}

pub fn notes(title: Title, notes: &[String], more: Option<&str>) -> Markup {
    let body = html! {
        ul { @for note in notes { li { (with_code(note)) } } }
        @if let Some(more) = more { p { (clean(more)) } }
    };
    section("notes", title, &body)
}

/// The place where the script draws, and the table behind it.
pub fn timeline(trace: &Trace) -> Markup {
    if trace.lanes.is_empty() {
        return html! {};
    }
    let body = html! {
        noscript { p { "The drawing needs JavaScript. The table below says the same in sums." } }
        div #drawing hidden {}
        details {
            summary { "Where the time of each lane went, as a table" }
            (lanes(trace))
        }
    };
    section("timeline", Title("TIMELINE"), &body)
}

fn lanes(trace: &Trace) -> Markup {
    let left = trace.lanes.len().saturating_sub(TABLE_LANES) as u64 + trace.left_out;
    html! {
        div.wide tabindex="0" role="region" aria-label="Lanes of the timeline" {
            table {
                thead {
                    tr {
                        th scope="col" { "lane" }
                        th scope="col" { "of" }
                        th scope="col" { "most time in" }
                        th scope="col" { "longest" }
                    }
                }
                tbody { @for lane in trace.lanes.iter().take(TABLE_LANES) { (lane_row(lane)) } }
            }
        }
        @if left > 0 { p { (plural(left, "more lane is", "more lanes are")) " not listed." } }
    }
}

fn lane_row(lane: &Lane) -> Markup {
    let kind = match lane.kind {
        Kind::Requests => "requests of",
        Kind::Thread => "thread",
        Kind::Socket => "socket",
        Kind::Uring => "io_uring",
        Kind::Log => "log of",
    };
    let mut sums: BTreeMap<State, (u64, u64)> = BTreeMap::new();
    for span in &lane.spans {
        let sum = sums.entry(span.state).or_default();
        *sum = (sum.0.saturating_add(span.ns()), sum.1 + 1);
    }
    let mut sums: Vec<(State, (u64, u64))> = sums.into_iter().collect();
    sums.stable_sort_by_key(|(state, (ns, _))| (std::cmp::Reverse(*ns), *state));
    let most = sums.iter().take(TABLE_STATES);
    let most = most.map(|(state, (ns, n))| format!("{} {} ({})", state.label(), time_ms(*ns as f64 / 1e6), count(*n)));
    let longest = lane.spans.iter().filter(|span| span.state.is_wait()).max_by_key(|span| span.ns());
    html! {
        tr {
            th scope="row" { (kind) " " (clean(&lane.name)) }
            td { (clean(&lane.group)) }
            td { (most.collect::<Vec<_>>().join(", ")) }
            td { @if let Some(span) = longest { (time_ms(span.ns() as f64 / 1e6)) ", " (span.state.label()) } }
        }
    }
}

//! The report for an issue tracker, in the common part of CommonMark and GitHub's tables. Lays out a page and adds no words.
use std::fmt::Write;

use parshall_core::report::{
    Bars, Chain, Command, Detail, EvidenceRow, Fix, Listed, Other, Others, Page, Stack, Table, Title,
};
use parshall_evidence::Report;
use parshall_host::output::clean;

/// The report as Markdown.
pub fn markdown(report: &Report, detail: Detail) -> String {
    let page = Page::new(report, detail);
    let mut sheet = Sheet(String::new());
    let headline =
        if page.verdict.headline.is_empty() { String::new() } else { format!(": {}", page.verdict.headline) };
    sheet.block(&format!("## {}{}", page.verdict.title.in_sentence_case(), escaped(&headline)));
    sheet.block(&joined(&page.head));
    if !page.origin.is_empty() {
        sheet.block(&joined(&page.origin));
    }
    if !page.verdict.tags.is_empty() {
        sheet.block(&format!("*{}*", joined(&page.verdict.tags)));
    }
    page.verdict.sentences.iter().for_each(|sentence| sheet.block(&escaped(sentence)));
    page.chain.iter().for_each(|section| chain(&mut sheet, section));
    page.fix.iter().for_each(|section| fix(&mut sheet, section));
    if let Some(services) = &page.services {
        sheet.heading(services.title);
        sheet.list(services.rows.iter().map(|row| joined(row)).chain(services.more.iter().map(|more| escaped(more))));
    }
    page.time.iter().for_each(|bars| time(&mut sheet, bars));
    if let Some((title, line)) = &page.tail {
        sheet.heading(*title);
        sheet.block(&escaped(line));
    }
    if let Some((title, rows)) = &page.evidence {
        evidence(&mut sheet, *title, rows);
    }
    page.tables.iter().for_each(|section| table(&mut sheet, section));
    page.others.iter().for_each(|section| others(&mut sheet, section));
    page.listed.iter().for_each(|section| listed(&mut sheet, section));
    if let Some((title, notes)) = &page.notes {
        sheet.heading(*title);
        sheet.list(notes.iter().chain(&page.more_notes).map(|note| escaped(note)));
    }
    sheet.0
}

fn chain(sheet: &mut Sheet, chain: &Chain) {
    sheet.heading(chain.title);
    for (depth, row) in chain.rows.iter().enumerate() {
        let indent = "  ".repeat(depth);
        sheet.line(&format!("{indent}- **{}** {}", escaped(&row.who), escaped(&row.does)));
        if let Some(stack) = &row.stack {
            sheet.line(&format!("{indent}  {}", stack_line(stack)));
        }
    }
    sheet.end();
}

fn stack_line(stack: &Stack) -> String {
    let more = stack.more.as_deref().map_or_else(String::new, |more| format!(" {}", escaped(more)));
    format!("in {}{more}", code(&stack.frames.join(" ← ")))
}

fn fix(sheet: &mut Sheet, fix: &Fix) {
    sheet.heading(fix.title);
    sheet.block(&escaped(&fix.text));
    commands(sheet, &fix.commands);
}

fn commands(sheet: &mut Sheet, list: &[Command]) {
    list.iter().for_each(|c| sheet.block(&format!("{}: {}", escaped(&c.label), code(&c.command))));
}

fn time(sheet: &mut Sheet, bars: &Bars) {
    if let Some(title) = bars.title {
        sheet.heading(title);
    }
    sheet.block(&escaped(&bars.of));
    sheet.table(
        &["state", "share"],
        "|---|---:|",
        bars.rows.iter().map(|row| [escaped(&row.label), escaped(&row.figure)]),
    );
}

fn evidence(sheet: &mut Sheet, title: Title, rows: &[EvidenceRow]) {
    sheet.heading(title);
    let rows = rows.iter().map(|row| {
        let stack = row.stack.as_ref().map_or_else(String::new, |stack| format!(" {}", stack_line(stack)));
        [escaped(&row.figure), format!("{}{stack}", joined(&row.words))]
    });
    sheet.table(&["figure", "of what"], "|---:|---|", rows);
}

fn table(sheet: &mut Sheet, table: &Table) {
    sheet.heading(table.title);
    sheet.block(&escaped(&table.of));
    if table.rows.is_empty() {
        return;
    }
    let figures = table.head.len().saturating_sub(table.names);
    let mut rule = format!("|{}{}", "---|".repeat(table.names), "---:|".repeat(figures));
    let mut head = table.head.clone();
    if !table.stacks.is_empty() {
        rule.push_str("---|");
        head.push("stack");
    }
    let rows = table.rows.iter().enumerate().map(|(at, cells)| {
        let stack = table.stacks.get(at).map(|stack| stack.as_ref().map_or_else(String::new, stack_line));
        cells.iter().map(|cell| escaped(cell)).chain(stack).collect::<Vec<_>>()
    });
    sheet.table(&head, &rule, rows);
}

fn others(sheet: &mut Sheet, others: &Others) {
    let other = |other: &Other| {
        let sentences = other.sentences.iter().map(|sentence| format!(" {}", escaped(sentence)));
        let commands = other.commands.iter().map(|c| format!(" {}: {}", escaped(&c.label), code(&c.command)));
        format!(
            "**{}** ({}).{}",
            escaped(&other.headline),
            escaped(&other.id),
            sentences.chain(commands).collect::<String>()
        )
    };
    sheet.heading(others.title);
    sheet.list(others.rows.iter().map(other).chain(others.more.iter().map(|more| escaped(more))));
}

fn listed(sheet: &mut Sheet, listed: &Listed) {
    sheet.heading(listed.title);
    if !listed.items.is_empty() {
        sheet.list(listed.items.iter().map(|item| escaped(item)));
    }
    listed.summary.iter().for_each(|summary| sheet.block(&escaped(summary)));
}

fn joined(items: &[String]) -> String {
    items.iter().map(|item| escaped(item)).collect::<Vec<_>>().join(" · ")
}

/// Text of the host in which nothing has a meaning of its own: no markup, no mention of people, no reference to other issues.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in clean(text).chars() {
        match c {
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '&' => out.push_str("&amp;"),
            // A zero-width character would be a letter that nobody sees; an entity is read as the character and starts nothing.
            '@' => out.push_str("&#64;"),
            '#' => out.push_str("&#35;"),
            '\\' | '`' | '*' | '_' | '[' | ']' | '|' | '~' | '$' => {
                out.push('\\');
                out.push(c);
            }
            _ => out.push(c),
        }
    }
    out
}

/// Text between as many backticks as it needs. A pipe would end a cell of a table even there.
fn code(text: &str) -> String {
    let text = clean(text).replace('|', "¦");
    let longest = text.split(|c| c != '`').map(str::len).max().unwrap_or(0);
    let fence = "`".repeat(longest + 1);
    let space = if longest > 0 { " " } else { "" };
    format!("{fence}{space}{text}{space}{fence}")
}

struct Sheet(String);

impl Sheet {
    fn line(&mut self, line: &str) {
        let _ = writeln!(self.0, "{line}");
    }

    fn end(&mut self) {
        self.0.push('\n');
    }

    fn block(&mut self, text: &str) {
        self.line(text);
        self.end();
    }

    fn heading(&mut self, title: Title) {
        self.block(&format!("### {}", title.in_sentence_case()));
    }

    fn list(&mut self, items: impl Iterator<Item = String>) {
        items.for_each(|item| self.line(&format!("- {item}")));
        self.end();
    }

    fn table<R: AsRef<[String]>>(&mut self, head: &[&str], rule: &str, rows: impl Iterator<Item = R>) {
        self.line(&format!("| {} |", head.join(" | ")));
        self.line(rule);
        rows.for_each(|cells| self.line(&format!("| {} |", cells.as_ref().join(" | "))));
        self.end();
    }
}

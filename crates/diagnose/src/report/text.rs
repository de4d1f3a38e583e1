//! The report for a terminal: lays out a page by width, colour and charset, and adds no words.
//!
//! Colour only repeats what the words say.
use parshall_core::report::{
    Bars, Chain, Command, Detail, EvidenceRow, Fix, Listed, Other, Page, Stack, Table, Title, Verdict,
};
use parshall_evidence::{Report, Status};
use parshall_host::output::{TextStyle, clean, columns, items, words};

/// Columns left of the body of every section.
const GUTTER: usize = 7;
/// Columns of the longest bar.
const BAR: usize = 40;
/// Columns of the figure in front of a line, unless one of them needs more.
const LEAD: usize = 9;
/// Columns of the names in a chain; longer names make their line longer.
const CHAIN_NAMES: usize = 34;
/// A text beside a lead has at least this many columns; otherwise it goes below.
const BESIDE: usize = 24;

/// The report for a terminal.
pub fn text(report: &Report, style: TextStyle, detail: Detail) -> String {
    let page = Page::new(report, detail);
    let mut sheet = Sheet { out: String::new(), style };
    head(&mut sheet, &page);
    verdict(&mut sheet, &page.verdict);
    page.chain.iter().for_each(|section| chain(&mut sheet, section));
    page.fix.iter().for_each(|section| fix(&mut sheet, section));
    if let Some(services) = &page.services {
        let rows = services.rows.iter().map(|row| row.join(style.charset.separator()));
        sheet.rows(services.title, rows.chain(services.more.clone()));
    }
    time(&mut sheet, &page.time);
    if let Some((title, line)) = &page.tail {
        sheet.labelled(title.0, line);
    }
    if let Some((title, rows)) = &page.evidence {
        evidence(&mut sheet, *title, rows);
    }
    page.tables.iter().for_each(|section| table(&mut sheet, section));
    if let Some(section) = &page.others {
        sheet.blank();
        for (i, row) in section.rows.iter().enumerate() {
            other(&mut sheet, if i == 0 { section.title.0 } else { "" }, row);
        }
        section.more.iter().for_each(|more| sheet.body(more));
    }
    page.listed.iter().for_each(|section| listed(&mut sheet, section));
    if let Some((title, notes)) = &page.notes {
        notes_of(&mut sheet, *title, notes, page.more_notes.as_deref(), detail);
    }
    sheet.out
}

fn head(sheet: &mut Sheet, page: &Page) {
    let width = sheet.style.width.saturating_sub(2);
    for (i, line) in sheet.items(&page.head, width).into_iter().enumerate() {
        let indent = if i == 0 { "" } else { "  " };
        sheet.line(indent, &line, Paint::Dim);
    }
    for line in sheet.items(&page.origin, width) {
        for line in words(&line, width, width) {
            sheet.line("  ", &line, Paint::Dim);
        }
    }
}

fn verdict(sheet: &mut Sheet, verdict: &Verdict) {
    let tags = if verdict.tags.is_empty() { String::new() } else { format!("({})", verdict.tags.join(", ")) };
    let paint = match verdict.status {
        Status::Cause => Paint::Bad,
        Status::Healthy => Paint::Good,
        Status::AtCapacity | Status::NoDominantCause | Status::InsufficientEvidence => Paint::Warn,
    };
    sheet.blank();
    let line = format!("{} {tags}", verdict.headline);
    if columns(&sheet.say(&line)) <= sheet.body_width() {
        sheet.heading(verdict.title, &line, paint);
    } else {
        sheet.heading(verdict.title, &verdict.headline, paint);
        sheet.body(&tags);
    }
    verdict.sentences.iter().for_each(|sentence| sheet.body(sentence));
}

/// One line per hop, each indented below the one before, and the stack at its end.
fn chain(sheet: &mut Sheet, chain: &Chain) {
    sheet.blank();
    let name = |(depth, who): (usize, &str)| match depth {
        0 => sheet.say(who),
        _ => sheet.say(&format!("{}└ {who}", " ".repeat((depth - 1) * 2))),
    };
    let names: Vec<String> = chain.rows.iter().map(|row| row.who.as_str()).enumerate().map(name).collect();
    let width = names.iter().map(|n| columns(n)).filter(|n| *n <= CHAIN_NAMES).max().unwrap_or(0);
    for (depth, (row, name)) in chain.rows.iter().zip(&names).enumerate() {
        let head = if depth == 0 { chain.title.0 } else { "" };
        sheet.row(head, &format!("{name:<width$}  "), &row.does);
        if let Some(stack) = &row.stack {
            let text = stack_line(stack);
            sheet.row("", &" ".repeat(depth * 2), &text);
        }
    }
}

fn stack_line(stack: &Stack) -> String {
    let frames: Vec<&str> = stack.frames.iter().chain(&stack.more).map(String::as_str).collect();
    format!("in {}", frames.join(" ← "))
}

fn fix(sheet: &mut Sheet, fix: &Fix) {
    sheet.blank();
    sheet.labelled(fix.title.0, &fix.text);
    fix.commands.iter().for_each(|command| command_line(sheet, command, GUTTER));
}

/// A command stays on one line, so that it can be copied.
fn command_line(sheet: &mut Sheet, command: &Command, indent: usize) {
    let line = sheet.say(&format!("{}:  {}", command.label, command.command));
    sheet.line(&" ".repeat(indent), &line, Paint::Plain);
}

fn time(sheet: &mut Sheet, accounts: &[Bars]) {
    for bars in accounts {
        if bars.title.is_some() {
            sheet.blank();
        }
        sheet.labelled(bars.title.map_or("", |title| title.0), &bars.of);
        let labels: Vec<String> = bars.rows.iter().map(|row| sheet.say(&row.label)).collect();
        let label = labels.iter().map(|label| columns(label)).max().unwrap_or(0);
        let width = BAR.min(sheet.body_width().saturating_sub(label + 2 + 2 + 8)).max(4);
        for (row, name) in bars.rows.iter().zip(&labels) {
            let bar = sheet.style.charset.bar(row.share, width);
            let line = format!("{name:<label$}  {bar:<width$}  {:>7}", row.figure);
            sheet.line(&" ".repeat(GUTTER), &line, Paint::Plain);
        }
    }
}

fn evidence(sheet: &mut Sheet, title: Title, rows: &[EvidenceRow]) {
    sheet.section(title, "");
    let leads: Vec<String> = rows.iter().map(|row| sheet.say(&row.figure)).collect();
    let width = leads.iter().map(|lead| columns(lead)).max().unwrap_or(0).max(LEAD);
    let separator = sheet.style.charset.separator();
    for (row, lead) in rows.iter().zip(&leads) {
        let lead = format!("{lead:>width$}  ");
        sheet.hanging(&lead, &row.words.join(separator));
        if let Some(stack) = &row.stack {
            sheet.hanging(&" ".repeat(columns(&lead)), &stack_line(stack));
        }
    }
}

/// Columns from the right are left out until a line fits.
fn table(sheet: &mut Sheet, table: &Table) {
    let head: Vec<String> = table.head.iter().map(|name| sheet.say(name)).collect();
    let rows: Vec<Vec<String>> =
        table.rows.iter().map(|row| row.iter().map(|cell| sheet.say(cell)).collect()).collect();
    let width = |at: usize| {
        let cells = rows.iter().filter_map(|row| row.get(at)).chain(head.get(at));
        cells.map(|cell| columns(cell)).max().unwrap_or(0)
    };
    let mut left = sheet.body_width();
    let widths: Vec<usize> = (0..head.len())
        .map(width)
        .take_while(|width| {
            let fits = *width <= left;
            left = left.saturating_sub(width + 2);
            fits
        })
        .collect();
    sheet.section(table.title, &table.of);
    let line = |row: &[String]| {
        let cells = row.iter().zip(&widths).enumerate().map(|(at, (cell, width))| {
            let space = " ".repeat(width.saturating_sub(columns(cell)));
            if at < table.names { format!("{cell}{space}") } else { format!("{space}{cell}") }
        });
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    if !rows.is_empty() {
        sheet.line(&" ".repeat(GUTTER), &line(&head), Paint::Head);
    }
    for (at, row) in rows.iter().enumerate() {
        sheet.line(&" ".repeat(GUTTER), &line(row), Paint::Plain);
        if let Some(Some(stack)) = table.stacks.get(at) {
            sheet.hanging(&" ".repeat(6), &stack_line(stack));
        }
    }
}

fn other(sheet: &mut Sheet, head: &str, other: &Other) {
    sheet.labelled(head, &format!("{} ({})", other.headline, other.id));
    for sentence in &other.sentences {
        sheet.hanging(&" ".repeat(6), sentence);
    }
    other.commands.iter().for_each(|command| command_line(sheet, command, GUTTER + 2));
}

fn listed(sheet: &mut Sheet, listed: &Listed) {
    if listed.items.is_empty() {
        sheet.section(listed.title, listed.summary.as_deref().unwrap_or_default());
        return;
    }
    sheet.section(listed.title, "");
    let width = sheet.body_width();
    for line in sheet.items(&listed.items, width) {
        sheet.body(&line);
    }
    listed.summary.iter().for_each(|summary| sheet.body(summary));
}

/// A short page has a line for each; the end of a longer one is left to the full page.
fn notes_of(sheet: &mut Sheet, title: Title, notes: &[String], more: Option<&str>, detail: Detail) {
    sheet.blank();
    for (i, note) in notes.iter().map(String::as_str).chain(more).enumerate() {
        let head = if i == 0 { title.0 } else { "" };
        match detail {
            Detail::Short => {
                let cut = sheet.cut(note);
                sheet.labelled(head, &cut);
            }
            Detail::Full => sheet.labelled(head, note),
        }
    }
}

/// The meanings that colour repeats.
#[derive(Clone, Copy)]
enum Paint {
    Plain,
    Dim,
    Head,
    Good,
    Warn,
    Bad,
}

impl Paint {
    fn code(self) -> &'static str {
        match self {
            Paint::Plain => "",
            Paint::Dim => "\x1b[2m",
            Paint::Head => "\x1b[1m",
            Paint::Good => "\x1b[1;32m",
            Paint::Warn => "\x1b[1;33m",
            Paint::Bad => "\x1b[1;31m",
        }
    }
}

/// The text, built line by line. All words pass [`Sheet::say`] before they are measured.
struct Sheet {
    out: String,
    style: TextStyle,
}

impl Sheet {
    /// The text as this terminal can print it: names from the host are made harmless.
    fn say(&self, text: &str) -> String {
        self.style.charset.text(&clean(text)).into_owned()
    }

    fn items(&self, list: &[String], width: usize) -> Vec<String> {
        let list: Vec<String> = list.iter().map(|item| self.say(item)).collect();
        items(&list, self.style.charset.separator(), width)
    }

    /// As much of a text as fits on a line beside the gutter.
    fn cut(&self, text: &str) -> String {
        let (text, width) = (self.say(text), self.body_width());
        if columns(&text) <= width {
            return text;
        }
        let dots = self.say("…");
        let lines = words(&text, width.saturating_sub(columns(&dots) + 1), width);
        format!("{} {dots}", lines.first().map_or("", String::as_str))
    }

    fn blank(&mut self) {
        self.out.push('\n');
    }

    fn paint(&self, text: &str, paint: Paint) -> String {
        if self.style.color && !text.is_empty() && !paint.code().is_empty() {
            format!("{}{text}\x1b[0m", paint.code())
        } else {
            text.to_owned()
        }
    }

    fn line(&mut self, indent: &str, text: &str, paint: Paint) {
        let painted = self.paint(text, paint);
        self.out.push_str(indent);
        self.out.push_str(&painted);
        self.out.push('\n');
    }

    /// Columns right of the gutter.
    fn body_width(&self) -> usize {
        self.style.width.saturating_sub(GUTTER)
    }

    /// A heading and the text beside it; the body follows below, indented by the gutter.
    fn heading(&mut self, title: Title, rest: &str, paint: Paint) {
        let head = title.0;
        let start = if columns(head) + 2 <= GUTTER { GUTTER } else { columns(head) + 2 };
        let painted = self.paint(head, paint);
        let width = self.style.width.saturating_sub(start);
        let lines = words(&self.say(rest), width, self.body_width());
        self.out.push_str(&painted);
        if let Some(first) = lines.first() {
            self.out.push_str(&" ".repeat(start - columns(head)));
            let first = self.paint(first, if matches!(paint, Paint::Head) { Paint::Plain } else { Paint::Head });
            self.out.push_str(&first);
        }
        self.out.push('\n');
        for line in lines.iter().skip(1) {
            self.line(&" ".repeat(GUTTER), line, Paint::Head);
        }
    }

    /// A heading after a blank line.
    fn section(&mut self, title: Title, rest: &str) {
        self.blank();
        self.heading(title, rest, Paint::Head);
    }

    /// A paragraph, indented by the gutter.
    fn body(&mut self, text: &str) {
        for line in words(&self.say(text), self.body_width(), self.body_width()) {
            self.line(&" ".repeat(GUTTER), &line, Paint::Plain);
        }
    }

    /// A short heading in the columns of the gutter, and a paragraph beside it.
    fn labelled(&mut self, head: &str, text: &str) {
        self.row(head, "", text);
    }

    /// Rows below each other, with a heading beside the first.
    fn rows(&mut self, title: Title, rows: impl Iterator<Item = String>) {
        self.blank();
        for (i, row) in rows.enumerate() {
            self.row(if i == 0 { title.0 } else { "" }, "", &row);
        }
    }

    /// A short heading in the columns of the gutter, a lead, and a paragraph that is indented to the end of the lead, or follows
    /// below it if there is not enough space.
    fn row(&mut self, head: &str, lead: &str, text: &str) {
        let (painted, start) = (self.paint(head, Paint::Head), GUTTER.max(columns(head) + 1));
        let fits = lead.is_empty() || start + columns(lead) + BESIDE <= self.style.width;
        let hang = if lead.is_empty() {
            GUTTER
        } else if fits {
            start + columns(lead)
        } else {
            start + 4
        };
        let width = self.style.width.saturating_sub(hang);
        let beside = if lead.is_empty() { self.style.width.saturating_sub(start) } else { width };
        let lines = words(&self.say(text), beside, width);
        let first = if fits { lines.first().cloned().unwrap_or_default() } else { String::new() };
        let line = format!("{painted}{}{lead}{first}", " ".repeat(start - columns(head)));
        self.line("", line.trim_end(), Paint::Plain);
        for line in lines.iter().skip(usize::from(fits)) {
            self.line(&" ".repeat(hang), line, Paint::Plain);
        }
    }

    /// A lead, and a paragraph that is indented to its end.
    fn hanging(&mut self, lead: &str, text: &str) {
        let start = GUTTER - 4 + columns(lead);
        let width = self.style.width.saturating_sub(start);
        for (i, line) in words(&self.say(text), width, width).iter().enumerate() {
            let indent = if i == 0 { format!("{}{lead}", " ".repeat(GUTTER - 4)) } else { " ".repeat(start) };
            self.line(&indent, line, Paint::Plain);
        }
    }
}

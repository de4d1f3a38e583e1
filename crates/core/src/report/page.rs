//! The page: sections in the order in which they are read, with rows and sentences. A format lays it out, and adds no words.
//!
//! Names of processes, symbols and paths in it are as they came from the host: a format makes them harmless where it prints.
use parshall_evidence::{Report, Status};

use crate::units;

/// How much of a report a page has.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Detail {
    /// The part that a user acts on.
    #[default]
    Short,
    /// Everything.
    Full,
}

/// The heading of a section.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Title(pub &'static str);

impl Title {
    /// `Ruled out` for `RULED OUT`, where headings are told by their size.
    pub fn in_sentence_case(self) -> String {
        let mut chars = self.0.chars();
        let text = chars.next().map_or_else(String::new, |first| first.to_string() + &chars.as_str().to_lowercase());
        text.replace("Cpus", "CPUs").replace("Io_uring", "io_uring")
    }

    /// `ruled-out` for `RULED OUT`.
    pub fn as_id(self) -> String {
        self.0.to_lowercase().replace(' ', "-")
    }
}

/// A report in words and figures. Empty parts are not shown.
#[derive(Debug, Clone, PartialEq)]
pub struct Page {
    /// How much of the report it has.
    pub detail: Detail,
    /// The subject, for how long, how it was observed and what that cost; an item each.
    pub head: Vec<String>,
    /// When, where and by what the observation was made.
    pub origin: Vec<String>,
    /// The answer.
    pub verdict: Verdict,
    /// The way from the service to the cause.
    pub chain: Option<Chain>,
    /// The remedy.
    pub fix: Option<Fix>,
    /// The services, where there are several.
    pub services: Option<Services>,
    /// The accounts of the time, as bars.
    pub time: Vec<Bars>,
    /// The waits of the slowest requests.
    pub tail: Option<(Title, String)>,
    /// The numbers that the cause rests on.
    pub evidence: Option<(Title, Vec<EvidenceRow>)>,
    /// The tables of counted figures, for users who want to see for themselves.
    pub tables: Vec<Table>,
    /// Further causes that hold.
    pub others: Option<Others>,
    /// Causes that do not hold, and causes that could not be tested.
    pub listed: Vec<Listed>,
    /// Limits of the trust in the verdict.
    pub notes: Option<(Title, Vec<String>)>,
    /// Notes that are left out of a short page, in words.
    pub more_notes: Option<String>,
}

/// The answer.
#[derive(Debug, Clone, PartialEq)]
pub struct Verdict {
    /// The kind of answer, in capitals.
    pub title: Title,
    /// The same as data, for colours.
    pub status: Status,
    /// The title of the cause and how much time it takes; empty without one.
    pub headline: String,
    /// The end of the headline: how much time.
    pub share: String,
    /// The cause, or the answer without one.
    pub basis: Basis,
    /// Cause id and confidence.
    pub tags: Vec<String>,
    /// Sentences, a paragraph each.
    pub sentences: Vec<String>,
}

/// The way from the service to the cause.
#[derive(Debug, Clone, PartialEq)]
pub struct Chain {
    /// The heading.
    pub title: Title,
    /// From the service inwards; each row is one level below the one before.
    pub rows: Vec<HopRow>,
}

/// A process on the way.
#[derive(Debug, Clone, PartialEq)]
pub struct HopRow {
    /// The processes: `gunicorn 901, 902 (2 of 2)`.
    pub who: String,
    /// Its action or wait.
    pub does: String,
    /// Its stack in this wait, if it was seen.
    pub stack: Option<Stack>,
}

/// A stack, innermost frame first, as people read it: without frames that all system calls have, and without type arguments.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stack {
    /// The frames that are shown.
    pub frames: Vec<String>,
    /// Those that are not, in words.
    pub more: Option<String>,
}

/// The remedy.
#[derive(Debug, Clone, PartialEq)]
pub struct Fix {
    /// The heading.
    pub title: Title,
    /// In words.
    pub text: String,
    /// Commands to type next.
    pub commands: Vec<Command>,
}

/// A command to type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Command {
    /// The purpose, without a colon.
    pub label: String,
    /// The command line.
    pub command: String,
}

/// Several services.
#[derive(Debug, Clone, PartialEq)]
pub struct Services {
    /// The heading.
    pub title: Title,
    /// A service each, the one that lost most first: items.
    pub rows: Vec<Vec<String>>,
    /// Those that are left out, in words.
    pub more: Option<String>,
}

/// An account of time as bars.
#[derive(Debug, Clone, PartialEq)]
pub struct Bars {
    /// The heading; that of the first account alone.
    pub title: Option<Title>,
    /// The one whose time it is.
    pub of: String,
    /// By state.
    pub rows: Vec<TimeRow>,
}

/// The part of a report that a figure is of: its rule and its events are found by it.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Basis {
    /// A sum of others, or what no rule and no event stands for.
    #[default]
    None,
    /// The answer.
    Verdict,
    /// A cause that holds: its place in the report's findings.
    Finding(usize),
    /// A row of the account of the service's requests, by its id: one of the constants below, or the id of what they were worked on.
    Requests(String),
    /// A row of the account of the flows, by the id of its state.
    Flows(String),
    /// A row of the account of the threads, by the id of its state.
    Threads(String),
}

impl Basis {
    /// See [`parshall_evidence::RequestTime::accept_queue`].
    pub const ACCEPT_QUEUE: &str = "accept-queue";
    /// See [`parshall_evidence::RequestTime::unread`].
    pub const UNREAD: &str = "unread";
    /// See [`parshall_evidence::RequestTime::incomplete`].
    pub const INCOMPLETE: &str = "incomplete";
    /// See [`parshall_evidence::RequestTime::working`].
    pub const WORKING: &str = "working";
    /// See [`parshall_evidence::RequestTime::reply_unsent`].
    pub const REPLY_UNSENT: &str = "reply-unsent";
}

/// A part of the time.
#[derive(Debug, Clone, PartialEq)]
pub struct TimeRow {
    /// The use of the time.
    pub label: String,
    /// Share of all of it.
    pub share: f64,
    /// The share in words.
    pub figure: String,
    /// The part of the report whose time it is.
    pub basis: Basis,
}

/// A number that the cause rests on.
#[derive(Debug, Clone, PartialEq)]
pub struct EvidenceRow {
    /// The number with its unit; empty where there is none.
    pub figure: String,
    /// The object of the figure, and further figures.
    pub words: Vec<String>,
    /// A stack that shows it.
    pub stack: Option<Stack>,
}

/// Figures in columns.
#[derive(Debug, Clone, PartialEq)]
pub struct Table {
    /// The heading.
    pub title: Title,
    /// Their object.
    pub of: String,
    /// Names of the columns.
    pub head: Vec<&'static str>,
    /// The first columns, which have names; the others have figures.
    pub names: usize,
    /// Rows of as many cells, some of which may be empty.
    pub rows: Vec<Vec<String>>,
    /// The stack of each row, in tables whose rows have one; empty in others.
    pub stacks: Vec<Option<Stack>>,
}

/// Further causes that hold.
#[derive(Debug, Clone, PartialEq)]
pub struct Others {
    /// The heading.
    pub title: Title,
    /// A cause each.
    pub rows: Vec<Other>,
    /// Those that are left out, in words.
    pub more: Option<String>,
}

/// A further cause.
#[derive(Debug, Clone, PartialEq)]
pub struct Other {
    /// Its title and how much time it takes.
    pub headline: String,
    /// Its place in the report.
    pub basis: Basis,
    /// Cause id.
    pub id: String,
    /// The chain of waits, and the remedy.
    pub sentences: Vec<String>,
    /// Commands to type next.
    pub commands: Vec<Command>,
}

/// A list of causes.
#[derive(Debug, Clone, PartialEq)]
pub struct Listed {
    /// The heading.
    pub title: Title,
    /// Causes with their reason, an item each.
    pub items: Vec<String>,
    /// The ids of the causes of each item.
    pub causes: Vec<Vec<String>>,
    /// The sentence below the list, or instead of it.
    pub summary: Option<String>,
}

/// Services, further causes and notes of a short page.
const SHORT_ROWS: usize = 3;

/// The finding that the verdict names.
pub(super) fn top_finding(report: &Report) -> Option<&parshall_evidence::Finding> {
    if report.verdict.status == Status::Cause { report.findings.first() } else { None }
}

/// The first ones of a short page, and how many are left out.
pub(super) fn first_of<T>(list: Vec<T>, detail: Detail) -> (Vec<T>, usize) {
    let mut list = list;
    let left = if detail == Detail::Full { 0 } else { list.len().saturating_sub(SHORT_ROWS) };
    list.truncate(list.len() - left);
    (list, left)
}

/// `and 4 more with --full`; None when none is left out.
pub(super) fn more(left: usize) -> Option<String> {
    (left > 0).then(|| format!("and {} more with --full", units::count(left as u64)))
}

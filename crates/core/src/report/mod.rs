//! The contents of a report, for every format: the sentences and, row by row, the page. Widths, colours and markup are the formats'.
mod finding;
mod head;
mod log;
mod make;
mod page;
mod rule;
mod spent;
mod stack;
mod table;
mod tail;
mod time;
mod uring;
mod verbs;
mod why;

pub use page::{
    Bars, Basis, Chain, Command, Detail, EvidenceRow, Fix, HopRow, Listed, Other, Others, Page, Services, Stack, Table,
    TimeRow, Title, Verdict,
};
pub use rule::{Rule, anchor, of_cause, rules};
pub use stack::{frames, simplified};
pub use why::why;

#[cfg(test)]
mod tests;

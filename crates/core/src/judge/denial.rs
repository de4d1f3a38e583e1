//! Why a cause does not hold: the figures that speak against it, as data. Sentences are made of them in [`crate::report`] alone.
use parshall_evidence::{Figure, RuledOut};

use crate::report;

/// The figures that speak against a cause.
#[derive(Debug, Clone, PartialEq)]
pub struct Denial {
    first: Figure,
    also: Vec<Figure>,
    because: Option<String>,
    seen: bool,
}

impl Denial {
    /// By a figure of the cause itself: above 0, something was seen of it.
    pub fn of(first: Figure) -> Denial {
        Denial { seen: first.figure > 0.0, first, also: Vec::new(), because: None }
    }

    /// With a further figure of the cause itself.
    pub fn and(mut self, figure: Figure) -> Denial {
        self.seen |= figure.figure > 0.0;
        self.also.push(figure);
        self
    }

    /// With a figure of something else, to compare with.
    pub fn beside(mut self, figure: Figure) -> Denial {
        self.also.push(figure);
        self
    }

    /// Why what was seen is not the cause, as a phrase; it is left out where nothing was seen.
    pub fn because(mut self, why: impl Into<String>) -> Denial {
        self.because = Some(why.into());
        self
    }

    /// Something was seen of the cause, whatever the figures are.
    pub fn seen(mut self) -> Denial {
        self.seen = true;
        self
    }

    /// The entry of a report.
    pub fn of_cause(self, cause: &str) -> RuledOut {
        let because = self.because.filter(|_| self.seen);
        let mut entry = RuledOut {
            cause: cause.to_string(),
            first: self.first,
            also: self.also,
            seen: self.seen,
            because,
            why: String::new(),
        };
        entry.why = report::why(&entry);
        entry
    }
}

/// A share of something, such as `of the flows' time in flight`.
pub fn share(share: f64, what: impl Into<String>) -> Figure {
    amount(share, "1", what)
}

/// A count of `unit`, a plural.
pub fn count(n: u64, unit: &str, what: impl Into<String>) -> Figure {
    amount(n as f64, unit, what)
}

/// A count out of `all`.
pub fn count_of(n: u64, all: u64, unit: &str, what: impl Into<String>) -> Figure {
    Figure { of: Some(all as f64), ..count(n, unit, what) }
}

/// A number with a unit. A figure that is no number, or below 0 by rounding, is 0.
pub fn amount(figure: f64, unit: &str, what: impl Into<String>) -> Figure {
    let figure = if figure > 0.0 && figure.is_finite() { figure } else { 0.0 };
    Figure { figure, unit: unit.to_string(), what: what.into(), ..Figure::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_of_the_cause_is_something_seen_and_one_beside_it_is_not() {
        let nothing = Denial::of(count(0, "SYNs", "repeated")).beside(count(20, "connections", "opened"));
        let entry = nothing.clone().because("their listener dropped them").of_cause("syn-loss");
        assert!(!entry.seen && entry.because.is_none(), "{entry:?}");
        assert_eq!(entry.why, "0 SYNs repeated; 20 connections opened");
        let some = nothing.and(share(0.02, "of the flows' time being opened")).because("too short");
        let entry = some.of_cause("syn-loss");
        assert!(entry.seen && entry.why.ends_with(", too short"), "{entry:?}");
        assert!(Denial::of(count(0, "datagrams", "dropped")).seen().of_cause("x").seen);
        assert_eq!(amount(f64::NAN, "1", "").figure, 0.0);
        assert!(amount(-0.0, "1", "").figure.is_sign_positive());
    }
}

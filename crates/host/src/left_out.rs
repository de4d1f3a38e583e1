//! Sentences about what was left out of the files of a host because a limit was reached, until a report takes them.
//!
//! Readers deep inside (a parser of memory maps on a thread of its own) notice that something is missing, and the report says it. The
//! sentences have no effect on what is read.
use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

/// The most sentences that are kept; further ones are counted.
const SENTENCES_MAX: usize = 8;

#[derive(Debug)]
struct Sentences {
    kept: BTreeSet<String>,
    further: u64,
}

static SENTENCES: Mutex<Sentences> = Mutex::new(Sentences { kept: BTreeSet::new(), further: 0 });

/// Adds a sentence, without its full stop; the same one counts once.
pub fn add(sentence: String) {
    SENTENCES.lock().unwrap_or_else(PoisonError::into_inner).add(sentence);
}

/// The sentences since the last call, in alphabetical order.
pub fn take() -> Vec<String> {
    SENTENCES.lock().unwrap_or_else(PoisonError::into_inner).take()
}

impl Sentences {
    fn add(&mut self, sentence: String) {
        if self.kept.len() < SENTENCES_MAX {
            self.kept.insert(sentence);
        } else if !self.kept.contains(&sentence) {
            self.further += 1;
        }
    }

    fn take(&mut self) -> Vec<String> {
        let mut taken: Vec<String> = std::mem::take(&mut self.kept).into_iter().collect();
        if self.further > 0 {
            taken.push(format!("{} further readings reached a limit", self.further));
        }
        self.further = 0;
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sentences_are_bounded_and_taken_once() {
        let mut sentences = Sentences { kept: BTreeSet::new(), further: 0 };
        (0..20).for_each(|n| sentences.add(format!("{n:02}")));
        sentences.add("03".into());
        let taken = sentences.take();
        assert_eq!((taken.len(), taken[0].as_str()), (9, "00"));
        assert_eq!(taken[8], "12 further readings reached a limit");
        assert!(sentences.take().is_empty());
    }
}

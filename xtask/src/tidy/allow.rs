//! The list of exceptions to the rules. It only shrinks: an exception holds for one number, and one that is no longer needed
//! is a complaint.

/// An exception: `PATH LINES` for a file, `crates/NAME::circles MODULES` for the circles of imports in a crate,
/// `crates/NAME/src/FOLDER::circle FILES` for files that import each other in a circle, `crates/NAME::products IMPORTS` for
/// imports between products in it.
#[derive(Debug)]
struct Exception {
    what: String,
    most: usize,
    used: bool,
}

/// All exceptions.
#[derive(Debug, Default)]
pub struct Allowed {
    list: Vec<Exception>,
}

/// Parses the list: one exception per line, `#` begins a comment.
pub fn parse(text: &str, complaints: &mut Vec<String>) -> Allowed {
    let mut allowed = Allowed::default();
    for line in text.lines().map(|l| l.split('#').next().unwrap_or("").trim()).filter(|l| !l.is_empty()) {
        match line.split_once(' ').and_then(|(what, n)| Some((what, n.trim().parse().ok()?))) {
            Some((what, most)) => allowed.list.push(Exception { what: what.to_owned(), most, used: false }),
            None => complaints.push(format!("{}: `{line}` is not `WHAT NUMBER`", super::ALLOW_FILE)),
        }
    }
    allowed
}

impl Allowed {
    /// Whether there is an exception for `what` with at least this number. Marks it as needed.
    pub fn permits(&mut self, what: &str, number: usize) -> bool {
        let Some(exception) = self.list.iter_mut().find(|e| e.what == what) else { return false };
        exception.used = true;
        number <= exception.most
    }

    /// Adds a complaint for each exception that is no longer needed.
    pub fn complain_unused(&self, complaints: &mut Vec<String>) {
        for exception in self.list.iter().filter(|e| !e.used) {
            complaints.push(format!(
                "{}: the exception for {} is no longer needed: delete it",
                super::ALLOW_FILE,
                exception.what
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exceptions_only_shrink() {
        let mut complaints = Vec::new();
        let mut allowed = parse("# why\na.rs 900\ncrates/b::circles 8 # reason\nnonsense\n", &mut complaints);
        assert_eq!(complaints.len(), 1);
        assert!(allowed.permits("a.rs", 900));
        assert!(!allowed.permits("a.rs", 901));
        assert!(!allowed.permits("c.rs", 1));
        complaints.clear();
        allowed.complain_unused(&mut complaints);
        assert_eq!(complaints.len(), 1);
        assert!(complaints[0].contains("crates/b::circles"));
    }
}

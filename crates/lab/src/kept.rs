//! The files that `lab run` keeps of an observation.
use std::path::{Path, PathBuf};

use parshall_core::judge::judged;
use parshall_core::mask::masked;
use parshall_diagnose::case;
use parshall_diagnose::report::Beside;
use parshall_evidence::{Capture, Report};
use parshall_host::error::UserError;
use parshall_host::private_file::PrivateFile;

use crate::request::{RunRequest, one_of_several};

/// Their paths.
#[derive(Debug, Default)]
pub struct Paths {
    /// The capture, or the results of comparisons.
    pub save: Option<PathBuf>,
    /// Further forms of the report.
    beside: Vec<(Beside, PathBuf)>,
    /// All of it is of the capture under pseudonyms.
    mask: bool,
}

impl Paths {
    /// Those of the request; of one of several runs with its name in the file names.
    pub fn of(request: &RunRequest, which: Option<&str>) -> Self {
        let path = |path: &PathBuf| which.map_or_else(|| path.clone(), |which| one_of_several(path, which));
        let beside = request.beside.iter().map(|(what, file)| (*what, path(file))).collect();
        Self { save: request.save.as_ref().map(path), beside, mask: request.mask }
    }

    /// Opens them. A path that cannot be written is an error before anything is started.
    pub fn open(&self) -> Result<Kept, UserError> {
        let open = |(what, path): &(Beside, PathBuf)| Ok((*what, PrivateFile::create(path, what.option())?));
        Ok(Kept {
            case: self.save.as_deref().map(case::create).transpose()?,
            beside: self.beside.iter().map(open).collect::<Result<_, UserError>>()?,
            mask: self.mask,
        })
    }

    /// The page of a case that compares. It has no other form, and no name of a process or host that a pseudonym could replace.
    pub fn page(&self, case: &str) -> Result<Option<&Path>, UserError> {
        let other = self.beside.iter().find(|(what, _)| *what != Beside::Html).map(|(what, _)| what.option());
        if let Some(option) = other.or_else(|| self.mask.then_some("--mask")) {
            return Err(UserError::new(
                format!("{option} is of an observation, and {case} compares commands"),
                "leave it out: --html and --save are of comparisons, too",
            ));
        }
        Ok(self.beside.first().map(|(_, path)| path.as_path()))
    }
}

/// The open files.
#[derive(Debug)]
pub struct Kept {
    case: Option<PrivateFile>,
    beside: Vec<(Beside, PrivateFile)>,
    mask: bool,
}

impl Kept {
    /// Judges the capture and writes them. One that cannot be written does not cost the others.
    pub fn write(self, capture: Capture) -> anyhow::Result<Report> {
        let capture = if self.mask { masked(capture) } else { capture };
        let judged = judged(&capture);
        let mut written = Ok(());
        for (what, file) in self.beside {
            let content = what.content(&judged, &capture);
            written = written.and(content.and_then(|content| Ok(file.write(&content)?)));
        }
        let report = judged.report;
        let saved = self.case.map_or(Ok(()), |file| case::write(capture, file));
        written.and(saved).map(|()| report)
    }
}

#[cfg(test)]
mod tests {
    use parshall_core::testkit::{FlowBuilder, MS, capture};
    use parshall_evidence::{FlowState, Release, Role};

    use super::*;

    const ALL: [Beside; 5] = [Beside::Html, Beside::Perfetto, Beside::Folded, Beside::Flamegraph, Beside::Summary];

    fn held() -> Capture {
        let flow = FlowBuilder::new(1, Role::Client).talks_in_parts(100).remote_host();
        let held =
            |flow: FlowBuilder, i: u64| flow.stall(i * 50 * MS, 41 * MS, FlowState::Nagle, Release::RxAckDelayed);
        capture(vec![(0..20).fold(flow, held).fill()], vec![])
    }

    #[test]
    fn every_form_is_kept_of_each_run_and_under_pseudonyms_where_that_is_asked_for() {
        let scratch = tempfile::tempdir().expect("a directory");
        let file = |name: &str| scratch.path().join(name);
        let beside = ALL.map(|what| (what, file(what.option()))).to_vec();
        let remote = held().flows[0].remote.ip().to_string();
        for mask in [false, true] {
            let paths = Paths { save: Some(file("case")), beside: beside.clone(), mask };
            let report = paths.open().expect("files").write(held()).expect("written");
            assert_eq!(report.verdict.cause.as_deref(), Some("nagle-delayed-ack"));
            let read = |name: &str| String::from_utf8_lossy(&std::fs::read(file(name)).expect("a file")).into_owned();
            assert!(read("--html").contains("Small writes wait for a delayed ACK"));
            assert!(read("--flamegraph").ends_with("</svg>\n"));
            let hidden = |name: &str| !read(name).contains(&remote);
            assert_eq!((hidden("--perfetto"), hidden("--summary"), hidden("--html")), (mask, mask, mask));
        }
    }

    #[test]
    fn a_case_that_compares_has_a_page_and_nothing_else() {
        let paths = |what: Beside, mask| Paths { beside: vec![(what, "page".into())], mask, ..Paths::default() };
        assert_eq!(paths(Beside::Html, false).page("x").expect("a page"), Some(Path::new("page")));
        assert_eq!(Paths::default().page("x").expect("none"), None);
        let refused = |what, mask| paths(what, mask).page("missing-gbits").expect_err("it has none").what;
        assert_eq!(
            refused(Beside::Folded, false),
            "--folded is of an observation, and missing-gbits compares commands"
        );
        assert!(refused(Beside::Html, true).starts_with("--mask is of an observation"));
    }

    #[test]
    fn files_of_several_runs_have_their_names() {
        let name = |path: &str| one_of_several(Path::new(path), "nagle-hold-2");
        assert_eq!(name("dir/trace.pftrace"), Path::new("dir/trace-nagle-hold-2.pftrace"));
        assert_eq!(name("/dev/stdout"), Path::new("/dev/stdout"));
    }
}

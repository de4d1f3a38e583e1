//! The files that `lab run` keeps of an observation.
use std::path::{Path, PathBuf};

use parshall_diagnose::{case, report};
use parshall_evidence::{Capture, Report};
use parshall_host::error::UserError;
use parshall_host::private_file::PrivateFile;

use crate::request::{RunRequest, one_of_several};

/// Their paths.
#[derive(Debug, Default)]
pub struct Paths {
    /// The capture, or the results of comparisons.
    pub save: Option<PathBuf>,
    /// The page.
    pub html: Option<PathBuf>,
}

impl Paths {
    /// Those of the request; of one of several runs with its name in the file names.
    pub fn of(request: &RunRequest, which: Option<&str>) -> Self {
        let path = |path: &PathBuf| which.map_or_else(|| path.clone(), |which| one_of_several(path, which));
        Self { save: request.save.as_ref().map(path), html: request.html.as_ref().map(path) }
    }

    /// Opens them. A path that cannot be written is an error before anything is started.
    pub fn open(&self) -> Result<Kept, UserError> {
        let page = |path: &Path| PrivateFile::create(path, "--html");
        Ok(Kept {
            case: self.save.as_deref().map(case::create).transpose()?,
            page: self.html.as_deref().map(page).transpose()?,
        })
    }
}

/// The open files.
#[derive(Debug)]
pub struct Kept {
    case: Option<PrivateFile>,
    page: Option<PrivateFile>,
}

impl Kept {
    /// Writes them. One that cannot be written does not cost the other.
    pub fn write(self, report: &Report, capture: Capture) -> anyhow::Result<()> {
        let drawn = self
            .page
            .map_or(Ok(()), |file| file.write(report::html(report, &capture)?.as_bytes()).map_err(anyhow::Error::from));
        let saved = self.case.map_or(Ok(()), |file| case::write(capture, file));
        drawn.and(saved)
    }
}

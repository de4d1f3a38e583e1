//! Delivery of the results of an observation: the report, and its further forms and the case where they are asked for.
use parshall_core::{judge::judged, mask::masked};
use parshall_evidence::Capture;

use crate::case;
use crate::report::{self, Beside};
use crate::request::ResultOptions;
use parshall_host::error::UserError;
use parshall_host::output::{self, Destination};
use parshall_host::private_file::PrivateFile;

/// Results to come. Their files are opened before the observation, so that a wrong path costs nothing.
pub struct Results<'a> {
    config: &'a ResultOptions,
    report: Option<PrivateFile>,
    beside: Vec<(Beside, PrivateFile)>,
    case: Option<PrivateFile>,
}

impl<'a> Results<'a> {
    /// Opens the files that the user named.
    pub fn open(config: &'a ResultOptions) -> Result<Self, UserError> {
        let report = match &config.to {
            Destination::File(path) => Some(PrivateFile::create(path, "-o")?),
            Destination::Stdout | Destination::Stderr => None,
        };
        let beside = config.beside.iter().map(|(what, path)| Ok((*what, PrivateFile::create(path, what.option())?)));
        let beside = beside.collect::<Result<_, UserError>>()?;
        let case = config.save.as_deref().map(case::create).transpose()?;
        Ok(Self { config, report, beside, case })
    }

    /// Judges the capture and writes everything. One that cannot be written does not cost the others.
    pub fn write(self, capture: Capture) -> anyhow::Result<()> {
        let capture = if self.config.mask { masked(capture) } else { capture };
        let judged = judged(&capture);
        let text = report::render(&judged.report, &self.config.output)?;
        let mut written = match (self.report, &self.config.to) {
            (Some(file), _) => file.write(text.as_bytes()).map_err(anyhow::Error::from),
            (None, Destination::Stderr) => output::print_to(std::io::stderr(), &text),
            (None, _) => output::print(&text),
        };
        for (what, file) in self.beside {
            let content = what.content(&judged, &capture);
            if what == Beside::Folded && content.as_ref().is_ok_and(Vec::is_empty) {
                tracing::warn!("--folded: no CPU samples and no times off the CPU were seen; the file is empty");
            }
            written = written.and(content.and_then(|content| Ok(file.write(&content)?)));
        }
        let saved = self.case.map_or(Ok(()), |file| case::write(capture, file));
        written.and(saved)
    }
}

//! Where the results of an observation go: the report, and the case if one is saved.
use parshall_evidence::Capture;

use crate::case;
use crate::report;
use crate::request::ResultOptions;
use parshall_host::error::UserError;
use parshall_host::output::{self, Destination};
use parshall_host::private_file::PrivateFile;

/// Results to come. Their files are opened before the observation, so that a wrong path costs nothing.
pub struct Results<'a> {
    config: &'a ResultOptions,
    report: Option<PrivateFile>,
    case: Option<PrivateFile>,
}

impl<'a> Results<'a> {
    /// Opens the files that the user named.
    pub fn open(config: &'a ResultOptions) -> Result<Self, UserError> {
        let report = match &config.to {
            Destination::File(path) => Some(PrivateFile::create(path, "-o")?),
            Destination::Stdout | Destination::Stderr => None,
        };
        let case = config.save.as_deref().map(case::create).transpose()?;
        Ok(Self { config, report, case })
    }

    /// Judges the capture and writes everything. A report that cannot be written does not cost the case, nor a case the
    /// report.
    pub fn write(self, capture: Capture) -> anyhow::Result<()> {
        let text = report::render(&parshall_core::judge::judge(&capture), &self.config.output)?;
        let printed = match (self.report, &self.config.to) {
            (Some(file), _) => file.write(text.as_bytes()).map_err(anyhow::Error::from),
            (None, Destination::Stderr) => output::print_to(std::io::stderr(), &text),
            (None, _) => output::print(&text),
        };
        let saved = self.case.map_or(Ok(()), |file| case::write(capture, file));
        printed.and(saved)
    }
}

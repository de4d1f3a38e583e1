//! Where the results of an observation go: the report, and the page and the case where they are asked for.
use parshall_evidence::{Capture, Report};

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
    page: Option<PrivateFile>,
    case: Option<PrivateFile>,
}

impl<'a> Results<'a> {
    /// Opens the files that the user named.
    pub fn open(config: &'a ResultOptions) -> Result<Self, UserError> {
        let report = match &config.to {
            Destination::File(path) => Some(PrivateFile::create(path, "-o")?),
            Destination::Stdout | Destination::Stderr => None,
        };
        let page = config.html.as_deref().map(|path| PrivateFile::create(path, "--html")).transpose()?;
        let case = config.save.as_deref().map(case::create).transpose()?;
        Ok(Self { config, report, page, case })
    }

    /// Judges the capture and writes everything. One that cannot be written does not cost the others.
    pub fn write(self, capture: Capture) -> anyhow::Result<()> {
        let capture = if self.config.mask { parshall_core::mask::masked(capture) } else { capture };
        let judged = parshall_core::judge::judge(&capture);
        let text = report::render(&judged, &self.config.output)?;
        let printed = match (self.report, &self.config.to) {
            (Some(file), _) => file.write(text.as_bytes()).map_err(anyhow::Error::from),
            (None, Destination::Stderr) => output::print_to(std::io::stderr(), &text),
            (None, _) => output::print(&text),
        };
        let drawn = self.page.map_or(Ok(()), |file| draw(&judged, &capture, file));
        let saved = self.case.map_or(Ok(()), |file| case::write(capture, file));
        printed.and(drawn).and(saved)
    }
}

fn draw(judged: &Report, capture: &Capture, file: PrivateFile) -> anyhow::Result<()> {
    Ok(file.write(report::html(judged, capture)?.as_bytes())?)
}

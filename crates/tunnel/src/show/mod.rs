//! `parshall tunnel show`: asks the tunnels that run for their state, by their control sockets.
mod text;

use std::fs;
use std::io;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use parshall_host::control_client::{ControlClient, Limits};
use parshall_host::error::UserError;
use parshall_host::output::{self, Format, clean, print};
use serde::Serialize;

use crate::control::path::{DIRECTORY, of_interface};
use crate::control::report::{REPORT_KEY, Report, SCHEMA};
use crate::request::ShowRequest;

/// How long a tunnel may take to answer, and more than the report of 100,000 peers.
const LIMITS: Limits = Limits { time: Duration::from_secs(10), bytes: 64 << 20 };

#[derive(Serialize)]
struct Document<'a> {
    schema: &'a str,
    tunnels: &'a [Report],
}

pub fn show(request: &ShowRequest) -> anyhow::Result<ExitCode> {
    let tunnels = match &request.interface {
        Some(name) => vec![one(name)?],
        None => all()?,
    };
    let text = match request.output.format {
        Format::Json => output::json(&Document { schema: SCHEMA, tunnels: &tunnels })?,
        // They come from the processes that answer.
        Format::Text => {
            let page: String = text::write(&tunnels).lines().map(|line| clean(line) + "\n").collect();
            request.output.style.charset.text(&page).into_owned()
        }
    };
    print(&text)?;
    Ok(ExitCode::SUCCESS)
}

fn one(name: &str) -> anyhow::Result<Report> {
    match ask(name) {
        Ok(Some(report)) => Ok(report),
        Ok(None) => {
            let what = format!("{name} is a tunnel of another program");
            Err(UserError::new(what, format!("type `wg show {name}`")).into())
        }
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) => {
            let what = format!("no tunnel {name} is up");
            Err(UserError::new(what, "`parshall tunnel show` lists those that are").into())
        }
        Err(error) => Err(error).with_context(|| format!("asking the tunnel {name}")),
    }
}

/// The tunnels of this program, in the order of their names.
fn all() -> anyhow::Result<Vec<Report>> {
    let entries = match fs::read_dir(DIRECTORY) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.with_context(|| format!("reading {DIRECTORY}"))?,
    };
    let mut names: Vec<String> = entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.strip_suffix(".sock").map(str::to_owned))
        .collect();
    names.sort_unstable();
    let mut tunnels = Vec::new();
    for name in names {
        match ask(&name) {
            Ok(Some(report)) => tunnels.push(report),
            // Nobody serves the socket any more.
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {}
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                return Err(error).context(format!("asking the tunnel {name}"));
            }
            Ok(None) => tracing::info!("{name} is a tunnel of another program: type `wg show {name}`"),
            Err(error) => tracing::warn!("the tunnel {name} did not answer: {error}"),
        }
    }
    Ok(tunnels)
}

/// None if another program answers, which does not know the request.
fn ask(name: &str) -> io::Result<Option<Report>> {
    let client = ControlClient::connect(&of_interface(Path::new(DIRECTORY), name), LIMITS)?;
    let answer = client.ask_once(b"report=1\n\n")?;
    let line = answer.lines().find_map(|line| line.strip_prefix(REPORT_KEY)?.strip_prefix('='));
    line.map(serde_json::from_str).transpose().map_err(io::Error::from)
}

//! The validated request of `parshall relay`.
use std::path::PathBuf;

use parshall_core::relay::config::Config;

use parshall_host::output::Output;

#[derive(Debug, Clone)]
pub enum RelayRequest {
    Run(Source),
    Check {
        path: PathBuf,
        output: Output,
    },
    Top {
        /// The control socket; None finds the only relay of this user.
        control: Option<PathBuf>,
        output: Output,
    },
}

/// The source of the configuration.
#[derive(Debug, Clone)]
pub enum Source {
    /// From the command line.
    Given(Box<Config>),
    /// Read from a file when the relay starts and at each reload.
    File(PathBuf),
}

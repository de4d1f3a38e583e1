//! What `parshall relay` is asked to do.
use std::path::PathBuf;

use parshall_core::relay::config::Config;

use parshall_host::output::Output;

/// A validated `parshall relay`.
#[derive(Debug, Clone)]
pub enum RelayRequest {
    /// Forward.
    Run(Source),
    /// Say whether a file is right, and what it would do.
    Check {
        /// The file.
        path: PathBuf,
        /// How the answer is printed.
        output: Output,
    },
    /// A live view of a running relay.
    Top {
        /// Its control socket, if it was named.
        control: Option<PathBuf>,
        /// How the view is printed.
        output: Output,
    },
}

/// Where the configuration comes from.
#[derive(Debug, Clone)]
pub enum Source {
    /// The command line.
    Given(Box<Config>),
    /// A file, read when the relay starts and again on SIGHUP.
    File(PathBuf),
}

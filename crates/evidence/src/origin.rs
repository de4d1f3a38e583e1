//! When, where and by what an observation was made, and the command that it was made of.
use serde::{Deserialize, Serialize};

/// The identity of an observation among others.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    /// When its window began: RFC 3339, UTC, milliseconds.
    pub time: String,
    /// Name of the host (its node name, as `uname -n` prints it).
    pub host: String,
    /// Kernel release, as `uname -r` prints it.
    pub kernel: String,
    /// Version of the parshall that observed.
    pub version: String,
    /// It ran as root of its user namespace; None in cases of versions that did not record it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub root: Option<bool>,
    /// Command line of that parshall, `parshall` first. It ends at `--`: what follows belongs to the diagnosed command
    /// and may hold secrets.
    pub command_line: Vec<String>,
}

/// The command that `parshall run` started. Its arguments are not recorded.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StartedCommand {
    /// Its process.
    pub pid: u32,
    /// Its process name, at most 15 bytes.
    pub name: String,
    /// Its state when the window ended.
    #[serde(flatten)]
    pub end: CommandEnd,
}

/// The state of a command when the window ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "status", rename_all = "kebab-case")]
pub enum CommandEnd {
    /// It was still running: `--for` was shorter, or the user asked for the report.
    Running,
    /// It exited.
    Exited {
        /// Its exit status, 0 to 255.
        exit_status: i32,
    },
    /// A signal killed it.
    Killed {
        /// The number of the signal.
        signal: i32,
        /// The signal's name, such as `SIGKILL`; empty when it has none.
        signal_name: String,
    },
}

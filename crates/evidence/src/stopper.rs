//! The one that stopped a process, as it was seen.
use std::fmt;

use serde::{Deserialize, Serialize};

/// The one that stopped a process.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Stopper {
    /// The sender of a signal, such as SIGSTOP.
    Sender {
        /// The name of the signal.
        signal: String,
        /// The name of the sender.
        comm: String,
        /// The process id of the sender.
        pid: u32,
    },
    /// A debugger, which traces the process.
    Debugger {
        /// Its name.
        comm: String,
        /// Its process id.
        pid: u32,
    },
    /// The freezer of a control group.
    Freezer {
        /// The path of the group.
        group: String,
    },
    /// In words, as cases had it before this was an enum.
    #[serde(untagged)]
    Words(String),
}

impl fmt::Display for Stopper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Stopper::Sender { signal, comm, pid } => write!(f, "{comm} {pid} ({signal})"),
            Stopper::Debugger { comm, pid } => write!(f, "{comm} {pid} (ptrace)"),
            Stopper::Freezer { group } => write!(f, "the freezer of {group}"),
            Stopper::Words(words) => f.write_str(words),
        }
    }
}

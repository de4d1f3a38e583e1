//! The definition of a change: what it sets on which places, and what to know before.
use std::time::Duration;

use parshall_host::bounded_file;
use parshall_host::error::UserError;

use crate::trial::place::{SocketSetting, ThreadSetting};

/// A change, validated as far as possible without the host.
#[derive(Debug, Clone)]
pub struct Change {
    /// As on the command line.
    pub name: String,
    /// The setting and its new value, for people: `TCP_NODELAY=1`.
    pub sets: String,
    pub on: On,
    /// The value that its places get, in the form in which they are read; of a quota the CPUs.
    pub value: String,
    /// Effects that cannot be reverted, and other warnings, one sentence each.
    pub not_undone: Vec<String>,
    pub keep: String,
    /// For values that the kernel resets by itself: how often to set them again.
    pub repeat: Option<Duration>,
    /// Fails if this host does not support the change; returns further warnings, one sentence each.
    pub check: fn(&Change) -> Result<Vec<String>, UserError>,
}

/// The places on which a change sets its value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum On {
    /// The TCP connections of the subject.
    Connections(SocketSetting),
    /// The threads of its processes.
    Threads(ThreadSetting),
    /// The control groups whose quota limits its processes.
    Group,
    /// A sysctl in its network namespaces.
    Namespace(String),
}

impl On {
    /// The name of the kind of place.
    pub fn word(&self) -> &'static str {
        match self {
            On::Connections(_) => "connection",
            On::Threads(_) => "thread",
            On::Group => "control group",
            On::Namespace(_) => "network namespace",
        }
    }
}

impl Change {
    /// A change without a check of the host and without warnings, whose value the kernel does not reset.
    pub fn new(
        name: String,
        sets: impl Into<String>,
        on: On,
        value: impl Into<String>,
        keep: impl Into<String>,
    ) -> Self {
        Self {
            name,
            sets: sets.into(),
            on,
            value: value.into(),
            not_undone: Vec::new(),
            keep: keep.into(),
            repeat: None,
            check: |_| Ok(Vec::new()),
        }
    }
}

/// A line of the table.
pub struct Kind {
    pub name: &'static str,
    /// The value behind `=`, for the help; empty when there is none.
    pub value: &'static str,
    pub help: &'static str,
    pub make: fn(&str) -> Result<Change, UserError>,
}

/// A number of a file below /proc/sys, in our own network namespace.
pub fn own_sysctl(name: &str) -> Option<u64> {
    let path = format!("/proc/sys/{}", name.replace('.', "/"));
    bounded_file::text(path).ok()?.split_whitespace().next()?.parse().ok()
}

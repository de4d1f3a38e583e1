//! Hooks of the configuration file: shell commands before and after the interface is set up and taken down.
use std::process::{Command, Stdio};

use anyhow::Context;
use parshall_host::error::UserError;

/// A command with `%i` replaced by the interface.
pub fn command(text: &str, interface: &str) -> String {
    text.replace("%i", interface)
}

/// Runs hooks of one kind, and stops at the first that fails.
pub fn run_all(texts: &[String], interface: &str) -> anyhow::Result<()> {
    texts.iter().try_for_each(|text| run(&command(text, interface)))
}

/// Runs one command. Its output goes to stderr.
pub fn run(command: &str) -> anyhow::Result<()> {
    tracing::debug!(%command, "running a hook");
    let status = Command::new("sh").args(["-c", command]).stdin(Stdio::null()).status();
    let status = status.with_context(|| format!("running `{command}`"))?;
    if !status.success() {
        return Err(UserError::new(format!("`{command}` failed: {status}"), "correct the hook in the file").into());
    }
    Ok(())
}

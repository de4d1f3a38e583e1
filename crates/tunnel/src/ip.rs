//! The program `ip` of iproute2.
use std::process::{Command, Output, Stdio};

use anyhow::Context;
use parshall_host::error::UserError;

/// Runs `ip` with these arguments.
pub fn run(arguments: &[&str]) -> anyhow::Result<()> {
    let output = call(arguments)?;
    if output.status.success() {
        return Ok(());
    }
    let reason = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    let hint = "correct Address, MTU, Table or AllowedIPs in the file; `Table = off` adds no routes";
    Err(UserError::new(format!("`ip {}` failed: {reason}", arguments.join(" ")), hint).into())
}

/// What `ip` prints; nothing if it fails, as for a table that does not exist.
pub fn read(arguments: &[&str]) -> anyhow::Result<String> {
    let output = call(arguments)?;
    Ok(if output.status.success() { String::from_utf8_lossy(&output.stdout).into_owned() } else { String::new() })
}

fn call(arguments: &[&str]) -> anyhow::Result<Output> {
    let output = Command::new("ip").args(arguments).stdin(Stdio::null()).output().map_err(|error| {
        UserError::new(
            format!("`ip {}` could not be run: {error}", arguments.join(" ")),
            "install iproute2, which has the program `ip`",
        )
    });
    output.context("setting up the interface")
}

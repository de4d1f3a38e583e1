//! The program `ip` of iproute2.
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::process::{Command, Output, Stdio};

use anyhow::Context;
use parshall_host::error::UserError;

/// Commands of one process: their text fits into a pipe, so that neither side waits for the other.
const BATCH: usize = 400;

/// The words of a command.
pub fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

/// A command that failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failed {
    /// Its place among the commands.
    pub at: usize,
    pub reason: String,
}

impl Failed {
    /// Whether the kernel has what was to be added.
    pub fn exists(&self) -> bool {
        self.reason.contains("File exists")
    }

    pub fn error(&self, command: &[String]) -> anyhow::Error {
        failed(&command.join(" "), &self.reason).into()
    }
}

/// Runs `ip` with these arguments.
pub fn run(arguments: &[&str]) -> anyhow::Result<()> {
    let output = call(arguments)?;
    if output.status.success() {
        return Ok(());
    }
    Err(failed(&arguments.join(" "), String::from_utf8_lossy(&output.stderr).trim()).into())
}

fn failed(command: &str, reason: &str) -> UserError {
    let hint = "correct Address, MTU, Table or AllowedIPs in the file; `Table = off` adds no routes";
    UserError::new(format!("`ip {command}` failed: {reason}"), hint)
}

/// Runs commands of which each begins with the flag of a family, in their order, also after one fails. Returns those that failed.
/// There may be thousands, so one process runs many.
pub fn each(commands: &[Vec<String>]) -> anyhow::Result<Vec<Failed>> {
    let mut all = Vec::new();
    let mut first = 0;
    for same in commands.chunk_by(|one, next| one.first() == next.first()) {
        for commands in same.chunks(BATCH) {
            let found = batch(commands)?;
            all.extend(found.into_iter().map(|failed| Failed { at: first + failed.at, ..failed }));
            first += commands.len();
        }
    }
    Ok(all)
}

/// As [`each`]; fails with the first one that failed.
pub fn run_all(commands: &[Vec<String>]) -> anyhow::Result<()> {
    match each(commands)?.first() {
        Some(failed) => Err(failed.error(&commands[failed.at])),
        None => Ok(()),
    }
}

fn batch(commands: &[Vec<String>]) -> anyhow::Result<Vec<Failed>> {
    let family = commands.first().and_then(|words| words.first()).map_or("-4", String::as_str);
    let text: String = commands.iter().map(|words| words[1..].join(" ") + "\n").collect();
    let mut command = program(&[family, "-force", "-batch", "-"]);
    let output =
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().and_then(|mut ip| {
            // If it has ended, its output says why.
            ip.stdin.take().map(|mut stdin| stdin.write_all(text.as_bytes()));
            ip.wait_with_output()
        });
    let output = output.map_err(|error| not_run("-batch -", &error)).context("setting up the interface")?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    let found = failures(&stderr);
    if !output.status.success() && found.is_empty() {
        let first = commands.first().map(|words| words.join(" ")).unwrap_or_default();
        return Err(failed(&first, stderr.trim()).into());
    }
    Ok(found)
}

/// Errors of `ip -force -batch -`: the reason, and the number of the line.
fn failures(stderr: &str) -> Vec<Failed> {
    let (mut found, mut reason) = (Vec::new(), Vec::new());
    for line in stderr.lines() {
        match line.strip_prefix("Command failed -:").and_then(|number| number.trim().parse::<usize>().ok()) {
            Some(number @ 1..) => {
                found.push(Failed { at: number - 1, reason: reason.join("; ") });
                reason.clear();
            }
            _ => reason.push(line.trim()),
        }
    }
    found
}

/// The output of `ip`; empty if it fails, as for a table that does not exist.
pub fn read(arguments: &[&str]) -> anyhow::Result<String> {
    let output = call(arguments)?;
    Ok(if output.status.success() { String::from_utf8_lossy(&output.stdout).into_owned() } else { String::new() })
}

fn call(arguments: &[&str]) -> anyhow::Result<Output> {
    let output = program(arguments).output().map_err(|error| not_run(&arguments.join(" "), &error));
    output.context("setting up the interface")
}

/// In a process group of its own: a second Ctrl-C does not end it while something is undone.
fn program(arguments: &[&str]) -> Command {
    let mut command = Command::new("ip");
    command.args(arguments).stdin(Stdio::null()).process_group(0);
    command
}

fn not_run(command: &str, error: &std::io::Error) -> UserError {
    UserError::new(format!("`ip {command}` could not be run: {error}"), "install iproute2, which has the program `ip`")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_that_failed_are_found_by_their_line() {
        let text = "RTNETLINK answers: File exists\nCommand failed -:2\nError: a\nb\nCommand failed -:401\n";
        let found = failures(text);
        assert_eq!(found.iter().map(|failed| failed.at).collect::<Vec<_>>(), [1, 400]);
        assert!(found[0].exists() && !found[1].exists());
        assert_eq!(found[1].reason, "Error: a; b");
        assert!(failures("").is_empty());
    }

    #[test]
    fn a_command_that_fails_does_not_stop_others() {
        let missing = |n: usize| words(&format!("-{} link show dev no-such-{n}", [4, 6][n % 2]));
        let mut commands: Vec<_> = (0..3).map(missing).collect();
        commands.insert(1, words("-4 link show dev lo"));
        let Ok(found) = each(&commands) else { return parshall_testkit::skip("commands of ip", "needs ip") };
        assert_eq!(found.iter().map(|failed| failed.at).collect::<Vec<_>>(), [0, 2, 3]);
        let error = run_all(&commands).unwrap_err().to_string();
        assert!(error.starts_with("`ip -4 link show dev no-such-0` failed: "), "{error}");
    }
}

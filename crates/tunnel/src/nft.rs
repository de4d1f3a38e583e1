//! The program `nft` of nftables.
use std::io::Write;
use std::process::{Command, Stdio};

use anyhow::Context;

/// Loads a ruleset as a whole, or nothing of it.
pub fn load(rules: &str) -> anyhow::Result<()> {
    let mut command = Command::new("nft");
    command.args(["-f", "-"]).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut nft = command.spawn().context("`nft` could not be run")?;
    // If it has ended, its output says why.
    nft.stdin.take().map(|mut stdin| stdin.write_all(rules.as_bytes()));
    let output = nft.wait_with_output().context("`nft` could not be run")?;
    let said = String::from_utf8_lossy(&output.stderr);
    anyhow::ensure!(output.status.success(), "`nft -f -` failed: {}", said.lines().next().unwrap_or_default());
    Ok(())
}

/// Removes a table of IPv4.
pub fn delete_table(table: &str) -> anyhow::Result<()> {
    load(&format!("delete table ip {table}\n"))
}

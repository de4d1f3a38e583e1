//! A sysctl of the network namespace.
use parshall_core::text::quote;
use parshall_host::error::UserError;

use super::definition::{Change, On};

pub const HELP: &str = "sysctl of the network namespace: net.ipv4.tcp_slow_start_after_idle=0";

/// Reads `name` and `value` of a sysctl below `net`.
pub fn make(name: &str, value: &str) -> Result<Change, UserError> {
    let example = "write it as `sysctl -w` takes it, as in net.ipv4.tcp_slow_start_after_idle=0";
    let separator = if name.contains('/') { '/' } else { '.' };
    let valid = |part: &str| {
        let letters = part.chars().all(|c| c.is_ascii_alphanumeric() || "_-.:@".contains(c));
        !part.is_empty() && letters && !part.starts_with('.')
    };
    if name.split(separator).next() != Some("net") || !name.split(separator).all(valid) {
        return Err(UserError::new(format!("{} is not the name of a sysctl", quote(name)), example));
    }
    if value.trim().is_empty() || value.chars().any(char::is_control) {
        return Err(UserError::new(format!("{name} needs a value"), example));
    }
    let value = value.split_whitespace().collect::<Vec<_>>().join(" ");
    let mut change = Change::new(
        format!("{name}={value}"),
        format!("{name}={value}"),
        On::Namespace(name.to_owned()),
        value.clone(),
        format!("Write `{name} = {value}` to a file in /etc/sysctl.d, or give it to the container's runtime."),
    );
    change.not_undone = vec![
        "every process of the network namespace has it meanwhile, and many a sysctl counts for new connections only"
            .to_owned(),
    ];
    Ok(change)
}

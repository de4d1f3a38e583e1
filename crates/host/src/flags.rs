//! Values of flags that several commands have: each parser says what is wrong and what a right value looks like.
use std::path::PathBuf;

use clap::builder::TypedValueParser;
use parshall_core::values::ValueError;

use crate::error::UserError;
use crate::netns::{self, Netns};

/// A parser of [`parshall_core::values`] or of a configuration file as one of clap's.
pub fn read<T: Clone + Send + Sync + 'static>(
    parse: fn(&str) -> Result<T, ValueError>,
) -> impl TypedValueParser<Value = T> {
    move |text: &str| parse(text).map_err(UserError::from)
}

/// A process id.
pub fn pid(text: &str) -> Result<u32, UserError> {
    // The kernel's own limit is 2^22 (PID_MAX_LIMIT); any positive number of 31 bits is accepted.
    match text.parse::<u32>() {
        Ok(pid) if pid > 0 && pid <= i32::MAX as u32 => Ok(pid),
        Ok(_) => Err(UserError::new(format!("`{text}` is not a process id"), "process ids are 1 and above")),
        Err(_) if text.starts_with(|c: char| c.is_ascii_alphabetic()) => Err(UserError::new(
            format!("`{text}` is not a process id"),
            format!("`pidof {text}` prints the ids of a program of that name"),
        )),
        Err(_) => Err(UserError::new(format!("`{text}` is not a process id"), "write one number, such as 4120")),
    }
}

/// A TCP or UDP port.
pub fn port(text: &str) -> Result<u16, UserError> {
    match text.parse::<u16>() {
        Ok(port) if port > 0 => Ok(port),
        _ => Err(UserError::new(
            format!("`{text}` is not a port"),
            "ports are numbers from 1 to 65535; `ss -lntu` lists those that are served",
        )),
    }
}

/// A path of a control group.
pub fn cgroup(text: &str) -> Result<PathBuf, UserError> {
    if text.is_empty() || text.contains('\0') {
        return Err(UserError::new(
            "the path of the control group is empty",
            "`/proc/PID/cgroup` names the group of a process",
        ));
    }
    Ok(PathBuf::from(text))
}

/// Network namespaces.
pub fn netns(text: &str) -> Result<Netns, UserError> {
    netns::parse(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subjects() {
        assert_eq!(pid("1"), Ok(1));
        assert!(pid("0").is_err());
        assert!(pid("-1").is_err());
        assert!(pid("nginx").unwrap_err().hint.contains("pidof nginx"));
        assert_eq!(port("65535"), Ok(65535));
        assert!(port("0").is_err());
        assert!(port("65536").is_err());
        assert!(cgroup("").is_err());
    }
}

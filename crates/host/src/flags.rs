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
            format!("`--process {text}` names processes by their program"),
        )),
        Err(_) => Err(UserError::new(format!("`{text}` is not a process id"), "write one number, such as 4120")),
    }
}

/// Several process ids, as `pgrep` and `pidof` print them: with commas, blanks or line ends between them.
pub fn pids(text: &str) -> Result<Vec<u32>, UserError> {
    let pids = list(text).map(pid).collect::<Result<Vec<u32>, _>>()?;
    if pids.is_empty() {
        return Err(UserError::new(
            "no process id is given",
            "a command such as `pgrep nginx` prints nothing where no process has the name; `ps -e` lists the names",
        ));
    }
    Ok(pids)
}

/// Several ports, with commas, blanks or line ends between them.
pub fn ports(text: &str) -> Result<Vec<u16>, UserError> {
    let ports = list(text).map(port).collect::<Result<Vec<u16>, _>>()?;
    if ports.is_empty() { port(text).map(|port| vec![port]) } else { Ok(ports) }
}

fn list(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| c == ',' || c.is_whitespace()).filter(|word| !word.is_empty())
}

/// The name of a process.
pub fn process(text: &str) -> Result<String, UserError> {
    let name = text.rsplit('/').next().unwrap_or_default();
    if name.is_empty() || text.contains('\0') {
        return Err(UserError::new("the name of the process is empty", "`ps -e` lists the names"));
    }
    Ok(name.to_owned())
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
        assert!(pid("nginx").unwrap_err().hint.contains("--process nginx"));
        assert_eq!(port("65535"), Ok(65535));
        assert!(port("0").is_err());
        assert!(port("65536").is_err());
        assert!(cgroup("").is_err());
    }

    #[test]
    fn lists() {
        assert_eq!(pids("1, 2\n3\n"), Ok(vec![1, 2, 3]));
        assert!(pids(" \n").unwrap_err().hint.contains("pgrep"));
        assert!(pids("1,x").unwrap_err().what.contains("`x`"));
        assert_eq!(ports("80,443 8080"), Ok(vec![80, 443, 8080]));
        assert!(ports("").is_err() && ports("80,0").is_err() && ports("80-90").is_err());
        assert_eq!(process("/usr/sbin/nginx").as_deref(), Ok("nginx"));
        assert!(process("").is_err() && process("/bin/").is_err());
    }
}

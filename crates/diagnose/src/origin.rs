//! When, where and by what an observation was made, without anything that belongs to the diagnosed command.
use std::time::SystemTime;

use parshall_evidence::Origin;

use parshall_host::bounded_file;
use parshall_host::utc;

/// First argument of the process that becomes the command.
pub const GATE: &str = "__gate";

/// The origin of an observation by this process whose window began at `begun`.
pub fn origin(begun: SystemTime, kernel: String) -> Origin {
    let words: Vec<String> = std::env::args_os().map(|word| word.to_string_lossy().into_owned()).collect();
    let mut command_line = own_part(words).unwrap_or_default();
    if let Some(program) = command_line.first_mut() {
        // The path by which parshall was called means nothing to others.
        *program = "parshall".to_owned();
    }
    Origin {
        time: utc::iso(begun),
        host: bounded_file::text("/proc/sys/kernel/hostname").unwrap_or_default().trim().to_owned(),
        kernel,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        root: Some(parshall_sys::child::is_root()),
        command_line,
    }
}

/// parshall's own part of its command line: everything up to `--`, which the command of `run` follows. Empty for the process that
/// is about to become such a command.
pub fn own_part(mut words: Vec<String>) -> Option<Vec<String>> {
    if words.get(1).is_some_and(|word| word == GATE) {
        return None;
    }
    let own = words.iter().position(|word| word == "--").map_or(words.len(), |dashes| dashes + 1);
    words.truncate(own);
    Some(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own(line: &str) -> Option<String> {
        Some(own_part(line.split(' ').map(str::to_owned).collect())?.join(" "))
    }

    #[test]
    fn the_diagnosed_command_is_never_part_of_it() {
        let secret = "curl -H Authorization:secret";
        assert_eq!(
            own(&format!("parshall run --save x.json -- {secret}")).as_deref(),
            Some("parshall run --save x.json --")
        );
        assert_eq!(own(&format!("/usr/bin/parshall {GATE} 5 {secret}")), None);
        // `relay` and `attach` have no such part.
        assert_eq!(own("parshall relay :80 10.0.0.2:80").as_deref(), Some("parshall relay :80 10.0.0.2:80"));
    }

    #[test]
    fn says_when_where_and_by_what() {
        let origin = origin(SystemTime::UNIX_EPOCH, "6.18.5".to_owned());
        assert_eq!((origin.time.as_str(), origin.kernel.as_str()), ("1970-01-01T00:00:00.000Z", "6.18.5"));
        assert_eq!(origin.command_line[0], "parshall");
        assert!(!origin.host.is_empty() && !origin.version.is_empty());
    }
}

//! The signals by which a user ends a command that has something to put back, to write or to say.
use libc::{SIGHUP, SIGINT, SIGTERM};

use crate::bounded_file;
use crate::proc_fs::status_field;

/// SIGINT and SIGTERM; and SIGHUP, which a terminal sends when it is closed, unless nohup(1) has it ignored.
pub fn end_signals() -> Vec<i32> {
    let status = bounded_file::text("/proc/self/status").unwrap_or_default();
    let hangup = Some(SIGHUP).filter(|signal| !is_ignored(&status, *signal));
    [SIGINT, SIGTERM].into_iter().chain(hangup).collect()
}

/// Whether a process with this `status` was started with a signal ignored.
fn is_ignored(status: &str, signal: i32) -> bool {
    let mask = status_field(status, "SigIgn").and_then(|mask| u64::from_str_radix(mask, 16).ok());
    mask.is_some_and(|mask| mask >> (signal - 1) & 1 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nohup_is_respected() {
        assert!(is_ignored("SigBlk:\t0000000000000002\nSigIgn:\t0000000000000001\n", SIGHUP));
        assert!(!is_ignored("SigIgn:\t0000000000001000\n", SIGHUP));
        assert!(!is_ignored("", SIGHUP));
        assert!(end_signals().starts_with(&[SIGINT, SIGTERM]));
    }
}

//! Whether the kernel is locked down (`lockdown=` of its command line).
use std::fs::File;
use std::io;

use crate::bounded_file;

/// The mode that refuses what could read the kernel's memory, BPF programs that do so among it.
pub const CONFIDENTIALITY: &str = "confidentiality";

/// `none`, `integrity` or [`CONFIDENTIALITY`]; `None` where the kernel has no lockdown, or that cannot be read.
pub fn mode() -> Option<String> {
    bounded_file::text("/sys/kernel/security/lockdown").ok().as_deref().and_then(chosen).or_else(unmounted)
}

/// The word in brackets of a line such as `none [integrity] confidentiality`.
fn chosen(line: &str) -> Option<String> {
    line.split_whitespace().find_map(|word| word.strip_prefix('[')?.strip_suffix(']')).map(str::to_owned)
}

/// The mode where securityfs is not mounted: confidentiality if the kernel was booted with it and refuses to show its memory, as it
/// does only then. A kernel may have been built without lockdown, and ignore the parameter.
fn unmounted() -> Option<String> {
    let asked =
        bounded_file::text("/proc/cmdline").ok()?.split_whitespace().any(|word| word == "lockdown=confidentiality");
    let refused = |error: io::Error| error.kind() == io::ErrorKind::PermissionDenied;
    (asked && File::open("/proc/kcore").is_err_and(refused)).then(|| CONFIDENTIALITY.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mode_is_in_brackets() {
        assert_eq!(chosen("none [integrity] confidentiality").as_deref(), Some("integrity"));
        assert_eq!(chosen("nonsense"), None);
    }
}

//! The CPU quota of a control group, of version 1 or 2.
use std::fs;
use std::io;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::error::{ended, malformed};

use parshall_host::bounded_file;

/// The value of a group without a quota.
pub const NO_LIMIT: &str = "max";

/// The quota of a control group; the period stays.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Group {
    pub directory: PathBuf,
    /// Its name for people.
    pub path: String,
}

impl Group {
    /// Microseconds of CPU time per period, or [`NO_LIMIT`].
    pub fn read(&self) -> io::Result<String> {
        let text = match bounded_file::text(self.directory.join("cpu.max")) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                bounded_file::text(self.directory.join("cpu.cfs_quota_us"))
            }
            text => text,
        };
        let text = text.map_err(|error| ended(error, "the control group"))?;
        let quota = text.split_whitespace().next().unwrap_or_default();
        Ok(if quota == "-1" { NO_LIMIT.to_owned() } else { quota.to_owned() })
    }

    pub fn write(&self, value: &str) -> io::Result<()> {
        if value != NO_LIMIT && value.parse::<u64>().is_err() {
            return Err(malformed(value));
        }
        let (file, text) = match self.directory.join("cpu.max") {
            file if file.exists() => (file, value),
            _ => (self.directory.join("cpu.cfs_quota_us"), if value == NO_LIMIT { "-1" } else { value }),
        };
        fs::OpenOptions::new()
            .write(true)
            .open(file)
            .and_then(|mut file| io::Write::write_all(&mut file, text.as_bytes()))
            .map_err(|error| ended(error, "the control group"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_and_writes_quotas_of_both_versions() {
        let directory = tempfile::tempdir().expect("a directory");
        let group = Group { directory: directory.path().to_owned(), path: "/x".to_owned() };
        assert_eq!(group.read().expect_err("neither file").kind(), io::ErrorKind::NotFound);
        let (v1, v2) = (directory.path().join("cpu.cfs_quota_us"), directory.path().join("cpu.max"));
        fs::write(&v1, "-1\n").expect("writable");
        assert_eq!(group.read().expect("a quota"), NO_LIMIT);
        group.write("max").expect("writable");
        assert_eq!(fs::read_to_string(&v1).expect("readable").trim(), "-1");
        fs::write(&v2, "50000 100000\n").expect("writable");
        assert_eq!(group.read().expect("a quota"), "50000");
        group.write("max\n100").expect_err("no value");
    }
}

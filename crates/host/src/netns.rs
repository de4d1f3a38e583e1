//! Network namespaces as users name them in `--netns`: by name, inode or path, or all of them.
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use parshall_sys::nsfs;

use crate::error::UserError;

/// A value of `--netns`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Netns {
    /// `all`: every network namespace of the host.
    All,
    /// The inode number, which `lsns -t net` shows.
    Inode(u64),
    /// A file that leads to it: what `ip netns add NAME` makes in /run/netns, or a path such as /proc/PID/ns/net.
    File(PathBuf),
}

impl Netns {
    /// The file of a name in /run/netns.
    fn named(name: &str) -> Self {
        Self::File(Path::new(parshall_sys::netns::DIR).join(name))
    }

    /// The inode. [`Netns::All`] has none.
    ///
    /// # Errors
    /// The name or path leads to no network namespace. Whether an inode exists is not checked.
    pub fn inode(&self) -> Result<Option<u64>, UserError> {
        match self {
            Self::All => Ok(None),
            Self::Inode(inode) => Ok(Some(*inode)),
            Self::File(path) => nsfs::inode_named(path).map(Some).map_err(|_| self.unknown()),
        }
    }

    /// The error where there is no such namespace.
    pub fn unknown(&self) -> UserError {
        let names = names();
        let hint = if names.is_empty() {
            "no namespace has a name here; `lsns -t net` shows inode numbers, and /proc/PID/ns/net is that of a process"
                .to_owned()
        } else {
            format!(
                "named are: {}; an inode number (`lsns -t net`) or a path such as /proc/PID/ns/net is accepted too",
                names.join(", ")
            )
        };
        UserError::new(format!("there is no network namespace `{self}`"), hint)
    }
}

impl fmt::Display for Netns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All => f.write_str("all"),
            Self::Inode(inode) => write!(f, "{inode}"),
            Self::File(path) => {
                write!(f, "{}", path.strip_prefix(parshall_sys::netns::DIR).unwrap_or(path).display())
            }
        }
    }
}

/// Reads a value of `--netns`. A name is one path component; whatever has a slash is a path.
///
/// # Errors
/// It cannot name a network namespace. Whether one exists is not checked.
pub fn parse(text: &str) -> Result<Netns, UserError> {
    if text == "all" {
        return Ok(Netns::All);
    }
    if let Ok(inode) = text.parse() {
        return Ok(Netns::Inode(inode));
    }
    if text.is_empty() || text.contains('\0') || text.starts_with('.') && !text.contains('/') {
        return Err(UserError::new(
            format!("`{text}` is not the name of a network namespace"),
            "`ip netns list` prints the names; an inode number or a path is accepted too",
        ));
    }
    if text.contains('/') { Ok(Netns::File(PathBuf::from(text))) } else { Ok(Netns::named(text)) }
}

/// The names in /run/netns.
pub fn names() -> Vec<String> {
    let entries = fs::read_dir(parshall_sys::netns::DIR).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort_unstable();
    names
}

/// The value of `--netns` for a namespace: its name in /run/netns, or its inode number.
pub fn word(inode: u64) -> String {
    let is_it = |name: &String| nsfs::inode_named(&Path::new(parshall_sys::netns::DIR).join(name)).ok() == Some(inode);
    names().into_iter().find(is_it).unwrap_or_else(|| inode.to_string())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn names_inodes_and_paths() {
        assert_eq!(parse("all"), Ok(Netns::All));
        assert_eq!(parse("4026531840"), Ok(Netns::Inode(4_026_531_840)));
        assert_eq!(parse("blue"), Ok(Netns::File("/run/netns/blue".into())));
        assert_eq!(parse("blue").map(|netns| netns.to_string()), Ok("blue".to_owned()));
        let own = parse("/proc/self/ns/net").expect("a path");
        let inode = fs::metadata("/proc/self/ns/net").expect("procfs").ino();
        assert_eq!((own.inode(), own.to_string()), (Ok(Some(inode)), "/proc/self/ns/net".to_owned()));
        for text in ["", ".", ".."] {
            assert!(parse(text).is_err(), "{text}");
        }
        for text in ["no-such-name", "/proc/self/ns/uts", "/etc/passwd", "../../proc"] {
            let error = parse(text).expect("it could be one").inode().expect_err("there is none");
            assert!(error.what.contains(text), "{error}");
        }
        assert!(!word(inode).is_empty());
    }
}

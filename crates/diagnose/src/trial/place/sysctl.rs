//! A sysctl of a network namespace.
use std::fs;
use std::io;
use std::path::PathBuf;

use parshall_host::bounded_file;
use serde::{Deserialize, Serialize};

use super::error::gone;
use crate::subject::Namespace;

/// A sysctl below `net`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sysctl {
    /// Inode of the network namespace.
    pub netns: u64,
    /// For example `net.ipv4.tcp_rmem`; with slashes if a component contains a dot, as in `net/ipv4/conf/eth0.5/rp_filter`.
    pub name: String,
}

impl Sysctl {
    pub fn read(&self) -> io::Result<String> {
        let text = self.inside(bounded_file::text)?;
        Ok(text.split_whitespace().collect::<Vec<_>>().join(" "))
    }

    pub fn write(&self, value: &str) -> io::Result<()> {
        self.inside(|path| {
            let mut file = fs::OpenOptions::new().write(true).open(path)?;
            io::Write::write_all(&mut file, value.as_bytes())
        })
    }

    /// Runs `work` with the sysctl's file, on a thread in this namespace.
    fn inside<T: Send>(&self, work: impl FnOnce(PathBuf) -> io::Result<T> + Send) -> io::Result<T> {
        let namespace = Namespace::of_inode(self.netns).ok_or_else(|| gone("the network namespace"))?;
        let name = if self.name.contains('/') { self.name.clone() } else { self.name.replace('.', "/") };
        namespace.run(|| work(PathBuf::from("/proc/sys").join(name)))?
    }
}

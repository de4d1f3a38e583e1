//! Whom to observe: from what the user names to processes and sockets.

/// What the user named.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Select {
    /// Processes and their threads.
    Pids(Vec<u32>),
    /// Every local socket with this TCP port at either end, and the processes that hold them.
    Port(u16),
    /// Every process of a control group, given by its path.
    Cgroup(std::path::PathBuf),
    /// Every process and socket of a named network namespace.
    Netns(String),
    /// Everything on the host.
    All,
}

//! The validated request of `parshall tunnel`.
use std::net::SocketAddr;
use std::path::PathBuf;

use parshall_host::output::Output;
use parshall_sys::privileges::User;

use crate::engine::EngineRequest;

/// The directory of wg-quick's files.
pub const DIRECTORY: &str = "/etc/wireguard";

#[derive(Debug, Clone)]
pub enum TunnelRequest {
    Up(UpRequest),
    /// The name of an interface.
    Down(String),
    Show(ShowRequest),
    /// The process that moves the packets of a tunnel.
    Work(WorkRequest),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UpRequest {
    /// A file of wg-quick; None for an interface that others configure.
    pub file: Option<PathBuf>,
    /// The name of the interface, which the kernel accepts.
    pub interface: String,
    pub engine: EngineRequest,
    pub place: Place,
    /// The file for the log of a daemon; None for the usual one.
    pub log: Option<PathBuf>,
    /// The address of the metrics endpoint.
    pub listen: Option<SocketAddr>,
    /// The user that the process which moves packets becomes; None for one that no other process runs as.
    pub user: Option<UserIds>,
    /// Packets that are routed into the tunnel may leave by other interfaces once it has died.
    pub fail_open: bool,
}

/// Ids of a user and its group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UserIds {
    pub uid: u32,
    pub gid: u32,
}

impl From<UserIds> for User {
    fn from(UserIds { uid, gid }: UserIds) -> Self {
        Self { uid, gid }
    }
}

/// The process in which a tunnel runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    Foreground,
    /// In another process; this one ends when the tunnel is up.
    Daemon,
    /// This is that process.
    Detached,
}

#[derive(Debug, Clone)]
pub struct ShowRequest {
    /// All interfaces if it is None.
    pub interface: Option<String>,
    pub output: Output,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkRequest {
    pub interface: String,
    /// The MTU of the interface.
    pub mtu: usize,
    pub engine: EngineRequest,
    /// None to remain the user that started it, who is not root.
    pub user: Option<UserIds>,
}

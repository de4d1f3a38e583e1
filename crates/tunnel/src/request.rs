//! The validated request of `parshall tunnel`.
use std::path::PathBuf;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TunnelRequest {
    Up(UpRequest),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UpRequest {
    /// A file of wg-quick.
    pub file: PathBuf,
    /// The name of the interface, which the kernel accepts.
    pub interface: String,
    /// Lower the MSS of TCP connections to what the path takes.
    pub clamp_mss: bool,
}

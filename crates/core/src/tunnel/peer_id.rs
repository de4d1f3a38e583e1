//! The number of a peer, by which its session, its traffic and its notices name it.

/// A peer, as long as it is configured. Ids are not used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PeerId(pub(super) u64);

//! The two peers of a relayed connection and the two directions between them.
use std::ops::{Index, IndexMut};

/// One of the relay's two peers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Peer {
    /// It connected to the relay.
    Client,
    /// The relay connected to it.
    Target,
}

impl Peer {
    /// Both peers.
    pub const ALL: [Self; 2] = [Self::Client, Self::Target];

    /// The peer on the other side of the relay.
    pub fn other(self) -> Self {
        match self {
            Self::Client => Self::Target,
            Self::Target => Self::Client,
        }
    }
}

/// One direction of a relayed connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Direction {
    /// The bytes that the client sends.
    ClientToTarget,
    /// The bytes that the target sends.
    TargetToClient,
}

impl Direction {
    /// Both directions; the index of each is its discriminant.
    pub const ALL: [Self; 2] = [Self::ClientToTarget, Self::TargetToClient];

    /// The direction that carries what this peer sends.
    pub fn from(source: Peer) -> Self {
        match source {
            Peer::Client => Self::ClientToTarget,
            Peer::Target => Self::TargetToClient,
        }
    }

    /// The peer whose socket is read.
    pub fn source(self) -> Peer {
        match self {
            Self::ClientToTarget => Peer::Client,
            Self::TargetToClient => Peer::Target,
        }
    }

    /// The peer whose socket is written.
    pub fn sink(self) -> Peer {
        self.source().other()
    }

    /// The direction of this discriminant.
    pub fn from_index(index: u8) -> Self {
        if index == 0 { Self::ClientToTarget } else { Self::TargetToClient }
    }

    /// The opposite direction.
    pub fn reverse(self) -> Self {
        Self::from(self.sink())
    }
}

/// One value for each direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PerDirection<T>([T; 2]);

impl<T> PerDirection<T> {
    /// The values that `make` returns for each direction.
    pub fn new(make: impl FnMut(Direction) -> T) -> Self {
        Self(Direction::ALL.map(make))
    }

    /// Both values, that of [`Direction::ClientToTarget`] first.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.0.iter()
    }

    /// Both values, that of [`Direction::ClientToTarget`] first.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.0.iter_mut()
    }
}

impl<T> From<[T; 2]> for PerDirection<T> {
    fn from(values: [T; 2]) -> Self {
        Self(values)
    }
}

impl<T> Index<Direction> for PerDirection<T> {
    type Output = T;

    fn index(&self, direction: Direction) -> &T {
        &self.0[direction as usize]
    }
}

impl<T> IndexMut<Direction> for PerDirection<T> {
    fn index_mut(&mut self, direction: Direction) -> &mut T {
        &mut self.0[direction as usize]
    }
}

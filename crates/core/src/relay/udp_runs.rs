//! Runs of datagrams that are sent in one message (UDP GSO): the kernel segments it into datagrams of one size, of which only the
//! last may be shorter. Such a message costs little more than one datagram, so successive datagrams of a session are joined
//! within that rule and the kernel's limits. Their order does not change.

/// The most datagrams in one message: the limit of kernels before 6.9.
pub const DATAGRAMS_MAX: usize = 64;
/// The most bytes in one message: the payload of the largest IPv4 datagram.
pub const BYTES_MAX: usize = 65_507;

/// Datagrams that were received together (UDP GRO): one, or several of one size of which only the last may be shorter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    /// The length of all its datagrams together.
    pub bytes: usize,
    /// Bytes of each of its datagrams, at least 1.
    pub segment: usize,
}

impl Piece {
    /// The number of datagrams in it; an empty piece is one empty datagram.
    pub fn datagrams(self) -> usize {
        self.bytes.div_ceil(self.segment.max(1)).max(1)
    }
}

/// Pieces that are sent as one message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    segment: usize,
    bytes: usize,
}

impl Run {
    /// A run of one piece.
    pub fn new(piece: Piece) -> Self {
        Self { segment: piece.segment.max(1), bytes: piece.bytes }
    }

    /// Bytes of each of its datagrams.
    pub fn segment(&self) -> usize {
        self.segment
    }

    /// Adds a piece if that changes no datagram of either; returns whether it did. `segment_max` is the largest datagram that
    /// may be sent with others in one message: the kernel refuses segments that exceed the MTU of the path.
    pub fn join(&mut self, piece: Piece, segment_max: usize) -> bool {
        // A shorter datagram must be the last, and an empty one cannot be expressed within a message.
        let whole = self.bytes > 0 && self.bytes.is_multiple_of(self.segment);
        let fits = if piece.bytes <= piece.segment {
            piece.bytes > 0 && piece.bytes <= self.segment
        } else {
            piece.segment == self.segment
        };
        let bytes = self.bytes + piece.bytes;
        let joined = whole
            && fits
            && self.segment <= segment_max
            && bytes <= BYTES_MAX
            && bytes.div_ceil(self.segment) <= DATAGRAMS_MAX;
        if joined {
            self.bytes = bytes;
        }
        joined
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn datagrams(bytes: usize, segment: usize) -> Vec<usize> {
        if bytes == 0 {
            return vec![0];
        }
        let full = std::iter::repeat_n(segment, bytes / segment);
        full.chain((!bytes.is_multiple_of(segment)).then_some(bytes % segment)).collect()
    }

    #[test]
    fn equal_sizes_join_and_a_shorter_one_ends_the_run() {
        let one = |bytes| Piece { bytes, segment: bytes };
        let mut run = Run::new(one(100));
        assert!(run.join(one(100), 1472));
        assert!(!run.join(one(101), 1472), "longer");
        assert!(run.join(one(40), 1472));
        assert!(!run.join(one(40), 1472), "after the shorter one");
    }

    #[test]
    fn a_datagram_that_would_be_fragmented_is_not_joined() {
        let mut run = Run::new(Piece { bytes: 2000, segment: 2000 });
        assert!(!run.join(Piece { bytes: 2000, segment: 2000 }, 1472));
    }

    proptest! {
        #[test]
        fn the_datagrams_are_the_same_before_and_after(
            pieces in prop::collection::vec((0_usize..4000, 1_usize..1500), 1..80),
            equal in any::<bool>(),
        ) {
            let pieces: Vec<Piece> = pieces
                .into_iter()
                .map(|(bytes, segment)| match (equal, bytes % (DATAGRAMS_MAX * segment + 1)) {
                    (true, _) => Piece { bytes: 1 + bytes % 3 * 100, segment: 100 },
                    // As received: the segment of a single datagram is its length.
                    (false, bytes) => Piece { bytes, segment: if bytes <= segment { bytes.max(1) } else { segment } },
                })
                .collect();
            let before: Vec<usize> = pieces.iter().flat_map(|p| datagrams(p.bytes, p.segment)).collect();
            let mut after = Vec::new();
            let mut runs: Vec<Run> = Vec::new();
            for piece in &pieces {
                if !runs.last_mut().is_some_and(|run| run.join(*piece, 1472)) {
                    runs.push(Run::new(*piece));
                }
            }
            for run in &runs {
                let parts = datagrams(run.bytes, run.segment);
                prop_assert!(parts.len() <= DATAGRAMS_MAX && run.bytes <= BYTES_MAX);
                after.extend(parts);
            }
            prop_assert_eq!(before, after);
        }
    }
}

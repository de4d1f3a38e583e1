//! Keys of messages and their partitions. A key is read from the envelope, so that the spool need not store it. The partition of
//! a key is the one that the producers of Apache Kafka choose.
use parshall_core::sockets::schema::number;

use crate::wire::{MessageReader, Value};

/// The key of messages. Messages with the same key are in the same partition, in their order.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Key {
    #[default]
    Host,
    /// Host and network namespace. The rows of a large host are in several partitions.
    Namespace,
    /// Without a key, messages go to all partitions in turn.
    None,
}

/// Number of `netns` in the schema.
const NETNS: u64 = 20;

/// The key of an envelope, read from its first row. `None` if it cannot be read.
pub fn of(key: Key, envelope: &[u8]) -> Option<Vec<u8>> {
    let mut reader = MessageReader(envelope);
    let (1, Value::Bytes(row)) = reader.field()? else { return None };
    let (mut host, mut netns, mut reader) = (None, None, MessageReader(row));
    while let Some((number, value)) = reader.field() {
        match value {
            Value::Bytes(bytes) if number == u64::from(number::HOST) => host = Some(bytes),
            Value::Number(inode) if number == NETNS => netns = Some(inode),
            _ => {}
        }
    }
    let host = host.unwrap_or_default();
    match (key, netns) {
        (Key::None, _) => None,
        (Key::Namespace, Some(inode)) => Some([host, b"/", inode.to_string().as_bytes()].concat()),
        _ => Some(host.to_vec()),
    }
}

/// The index of the partition of a key, less than `partitions`.
pub fn partition(key: &[u8], partitions: usize) -> usize {
    (murmur2(key) & 0x7fff_ffff) as usize % partitions.max(1)
}

/// MurmurHash2 as `org.apache.kafka.common.utils.Utils.murmur2` computes it.
fn murmur2(data: &[u8]) -> u32 {
    const M: u32 = 0x5bd1_e995;
    let mut hash = 0x9747_b28c ^ data.len() as u32;
    let (words, tail) = data.as_chunks::<4>();
    for word in words {
        let mut k = u32::from_le_bytes(*word).wrapping_mul(M);
        k = (k ^ k >> 24).wrapping_mul(M);
        hash = hash.wrapping_mul(M) ^ k;
    }
    if !tail.is_empty() {
        for (i, byte) in tail.iter().enumerate() {
            hash ^= u32::from(*byte) << (8 * i);
        }
        hash = hash.wrapping_mul(M);
    }
    hash = (hash ^ hash >> 13).wrapping_mul(M);
    hash ^ hash >> 15
}

#[cfg(test)]
mod tests {
    use parshall_core::sockets::{Dump, Row};
    use parshall_evidence::socket::{Completeness, SocketRecord};

    use super::*;
    use crate::sink::kafka::envelope::{EnvelopeBuilder, Framing};

    /// Reference values of Apache Kafka's own UtilsTest.testMurmur2.
    #[test]
    fn the_hash_is_that_of_kafkas_clients() {
        for (text, hash) in [
            ("21", -973_932_308i32),
            ("foobar", -790_332_482),
            ("a-little-bit-long-string", -985_981_536),
            ("a-little-bit-longer-string", -1_486_304_829),
            ("lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58_897_971),
            ("abc", 479_470_107),
        ] {
            assert_eq!(murmur2(text.as_bytes()) as i32, hash, "{text}");
        }
        assert_eq!(partition(b"abc", 1), 0);
        assert!(partition(b"foobar", 3) < 3);
    }

    #[test]
    fn keys_are_read_back() {
        let dump = Dump { at_unix_ns: 1, sequence: 1, host: "h1".into(), backend: "walk" };
        let record = SocketRecord { netns: 4_026_531_840, ..Default::default() };
        let mut builder = EnvelopeBuilder::new(10_000, Framing::Bare);
        let mut chunks = Vec::new();
        builder.row(&dump, &Row::bare(&record), &mut |c| chunks.push(c));
        builder.flush(&mut |c| chunks.push(c));
        builder.end(&dump, &Completeness::default(), &mut |c| chunks.push(c));
        let key = |kind, i: usize| of(kind, &chunks[i].bytes).map(|k| String::from_utf8(k).unwrap());
        assert_eq!(key(Key::Host, 0).as_deref(), Some("h1"));
        assert_eq!(key(Key::Namespace, 0).as_deref(), Some("h1/4026531840"));
        assert_eq!(key(Key::Namespace, 1).as_deref(), Some("h1"), "the completeness of a dump belongs to no namespace");
        assert_eq!(key(Key::None, 0), None);
    }

    #[test]
    fn any_bytes_are_read_without_a_panic() {
        for cut in 0..40u8 {
            let bytes: Vec<u8> = (0..cut).map(|i| i.wrapping_mul(83) | 0x80 >> (i % 3)).collect();
            of(Key::Namespace, &bytes);
            of(Key::Namespace, &[&[0x0a, cut], &bytes[..]].concat());
        }
        assert_eq!(of(Key::Host, &[0x0a, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01]), None);
    }
}

//! The key of a socket: the same in every dump, and a new one when addresses, ports or the kernel's memory are reused.
//!
//! The key is computed from the record alone. `snd_una` and `bytes_acked` of a TCP connection grow together, so their
//! difference is its initial sequence number, which is random. Where the backend does not see sequence numbers (SOCK_DIAG),
//! the kernel's cookie is used, which is never reused. Other sockets are distinguished by their inode.
use parshall_evidence::socket::SocketRecord;

/// Mixes a number into a hash. Not resistant to chosen inputs, which keys need not be.
#[inline]
pub(super) fn mix(hash: u64, value: u64) -> u64 {
    let wide = u128::from(hash ^ value ^ 0x9e37_79b9_7f4a_7c15) * 0xd6e8_feb8_6659_fd93_u128;
    (wide as u64) ^ (wide >> 64) as u64
}

fn halves(bytes: &[u8; 16]) -> [u64; 2] {
    let word = |at: usize| bytes[at..at + 8].iter().fold(0, |word, byte| word << 8 | u64::from(*byte));
    [word(0), word(8)]
}

/// The key of a socket, never 0.
///
/// A connection in TIME_WAIT has a new key, because the kernel has replaced its socket by an `inet_timewait_sock`. A UDP
/// socket that connects has a new key, because its addresses change.
pub fn key(record: &SocketRecord) -> u64 {
    let kind = u64::from(record.family) | u64::from(record.protocol) << 8 | u64::from(record.sock_type) << 24;
    let mut hash = mix(u64::from(record.netns), kind);
    let birth = match record {
        SocketRecord { birth_sent: 0, address: 0, cookie: 1.., .. } => return mix(hash, record.cookie).max(1),
        // Backends that see kernel addresses do not use the cookie: it is 0 until a program asks for it, so the key would change.
        SocketRecord { birth_sent: 0, .. } => u64::from(record.inode),
        _ => 1 << 32 | u64::from(record.birth_sent),
    };
    hash = mix(hash, birth);
    hash = mix(hash, u64::from(record.local_port) << 16 | u64::from(record.remote_port));
    for half in halves(&record.local_address).into_iter().chain(halves(&record.remote_address)) {
        hash = mix(hash, half);
    }
    hash.max(1)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_part_of_the_identity_counts() {
        let base = SocketRecord { family: 2, protocol: 6, birth_sent: 5, local_port: 80, ..Default::default() };
        let mut other_address = base;
        other_address.remote_address[3] = 1;
        let kinds = [
            base,
            SocketRecord { birth_sent: 6, ..base },
            SocketRecord { netns: 1, ..base },
            SocketRecord { local_port: 81, ..base },
            SocketRecord { remote_port: 80, local_port: 0, ..base },
            SocketRecord { family: 10, ..base },
            SocketRecord { birth_sent: 0, ..base },
            SocketRecord { birth_sent: 0, address: 1, inode: 6, cookie: 5, ..base },
            SocketRecord { birth_sent: 0, inode: 5, ..base },
            SocketRecord { birth_sent: 0, cookie: 5, ..base },
            other_address,
        ];
        let keys: BTreeSet<u64> = kinds.iter().map(key).collect();
        assert_eq!(keys.len(), kinds.len());
    }

    #[test]
    fn the_key_is_stable_over_the_life_of_a_socket() {
        let young = SocketRecord { family: 2, protocol: 6, state: 2, birth_sent: 5, inode: 7, ..Default::default() };
        // The cookie appears when a program asks for it. The inode becomes 0 when the descriptor is closed.
        let old = SocketRecord { state: 4, cookie: 3, inode: 0, bytes_sent: 9, birth_received: 8, ..young };
        assert_eq!(key(&young), key(&old));
    }
}

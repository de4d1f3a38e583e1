//! The tables of sockets in /proc/net as records: what is left where the kernel's modules for SOCK_DIAG are not loaded. They have
//! the identity of a socket, its queues, its owner and its inode, and no counters.
use parshall_evidence::socket::SocketRecord;
use parshall_evidence::socket::selection::state;

use crate::sock_diag::Table;

/// The state of a connected UNIX socket (include/uapi/linux/net.h: SS_CONNECTED).
const UNIX_CONNECTED: u32 = 3;
/// `__SO_ACCEPTCON` of a UNIX socket's flags: it listens.
const UNIX_LISTENS: u32 = 1 << 16;

/// The files of a table below /proc/thread-self/net; none if it has no file.
pub fn files(table: Table) -> &'static [&'static str] {
    match table {
        Table::Tcp => &["tcp", "tcp6"],
        Table::Udp => &["udp", "udp6"],
        Table::UdpLite => &["udplite", "udplite6"],
        Table::Unix => &["unix"],
        Table::Mptcp => &[],
    }
}

/// The record of a line, and the name of a UNIX socket. `None` for the heading and for what is not understood.
pub fn record(table: Table, line: &str, netns: u32) -> Option<(SocketRecord, &str)> {
    match table {
        Table::Unix => unix(line, netns),
        _ => inet(table, line, netns).map(|record| (record, "")),
    }
}

fn inet(table: Table, line: &str, netns: u32) -> Option<SocketRecord> {
    let mut words = line.split_ascii_whitespace();
    words.next()?.strip_suffix(':')?;
    let (family, local_address, local_port) = end(words.next()?)?;
    let (_, remote_address, remote_port) = end(words.next()?)?;
    let state = u8::from_str_radix(words.next()?, 16).ok()?;
    let (sent, received) = pair(words.next()?)?;
    let (timer, ticks) = pair(words.next()?)?;
    let retransmits = u32::from_str_radix(words.next()?, 16).ok()?;
    let uid = words.next()?.parse().ok()?;
    let inode = words.nth(1)?.parse().ok()?;
    let (protocol, sock_type) = match table {
        Table::Udp => (17, 2),
        Table::UdpLite => (136, 2),
        _ => (6, 1),
    };
    let mut record = SocketRecord {
        netns,
        family,
        protocol,
        sock_type,
        local_address,
        local_port,
        remote_address,
        remote_port,
        state,
        uid,
        inode,
        ..SocketRecord::default()
    };
    if state == state::LISTEN && table == Table::Tcp {
        record.accept_queue = received;
    } else {
        (record.wqueue_bytes, record.rqueue_bytes) = (sent, received);
        // The kernel writes clock_t, of which a second has 100.
        (record.timer, record.timer_ms) = (timer as u8, ticks.saturating_mul(10));
        record.retransmits = retransmits.try_into().unwrap_or(u8::MAX);
    }
    Some(record)
}

/// Family, address and port of `0100007F:1F90`: words of the address in the host's byte order, the port as a number.
fn end(text: &str) -> Option<(u8, [u8; 16], u16)> {
    let (address, port) = text.split_once(':')?;
    let mut bytes = [0; 16];
    let words = address.len() / 8;
    if !address.is_ascii() || address.len() % 8 != 0 || !matches!(words, 1 | 4) {
        return None;
    }
    for at in 0..words {
        let word = u32::from_str_radix(&address[at * 8..at * 8 + 8], 16).ok()?;
        bytes[at * 4..at * 4 + 4].copy_from_slice(&word.to_ne_bytes());
    }
    Some((if words == 1 { 2 } else { 10 }, bytes, u16::from_str_radix(port, 16).ok()?))
}

fn pair(text: &str) -> Option<(u32, u32)> {
    let (left, right) = text.split_once(':')?;
    Some((u32::from_str_radix(left, 16).ok()?, u32::from_str_radix(right, 16).ok()?))
}

fn unix(line: &str, netns: u32) -> Option<(SocketRecord, &str)> {
    let (head, rest) = line.split_once(": ")?;
    u64::from_str_radix(head, 16).ok()?;
    let mut words = rest.splitn(6, ' ');
    let (_references, _protocol) = (words.next()?, words.next()?);
    let flags = u32::from_str_radix(words.next()?, 16).ok()?;
    let sock_type = u16::from_str_radix(words.next()?, 16).ok()?;
    let connection = u32::from_str_radix(words.next()?, 16).ok()?;
    // The inode is padded, and a name may have spaces.
    let rest = words.next()?.trim_start();
    let (inode, name) = rest.split_once(' ').unwrap_or((rest, ""));
    let state = match (flags & UNIX_LISTENS != 0, connection) {
        (true, _) => state::LISTEN,
        (_, UNIX_CONNECTED) => state::ESTABLISHED,
        _ => state::CLOSE,
    };
    let record =
        SocketRecord { netns, family: 1, sock_type, state, inode: inode.parse().ok()?, ..SocketRecord::default() };
    Some((record, name))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str =
        "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode";

    #[test]
    fn lines_of_tcp_and_udp() {
        assert_eq!(record(Table::Tcp, HEAD, 7), None);
        let word = u32::from_ne_bytes([127, 0, 0, 1]);
        let line = format!(
            "   1: {word:08X}:1F90 {word:08X}:D431 01 00000010:00000020 01:00000014 00000002  1000        0 98765 1 0 20 4 30 10 -1"
        );
        let (r, name) = record(Table::Tcp, &line, 7).unwrap();
        assert_eq!((r.netns, r.family, r.protocol, r.sock_type, r.state, name), (7, 2, 6, 1, 1, ""));
        assert_eq!((r.local_address[..4].to_vec(), r.local_port, r.remote_port), (vec![127, 0, 0, 1], 8080, 54321));
        assert_eq!((r.wqueue_bytes, r.rqueue_bytes, r.timer, r.timer_ms), (16, 32, 1, 200));
        assert_eq!((r.retransmits, r.uid, r.inode), (2, 1000, 98765));
        let listens = line.replace(" 01 00000010:", " 0A 00000000:");
        let (r, _) = record(Table::Tcp, &listens, 7).unwrap();
        assert_eq!((r.state, r.accept_queue, r.rqueue_bytes), (state::LISTEN, 32, 0));
        let (r, _) = record(Table::Udp, &line.replace(" 01 ", " 07 "), 7).unwrap();
        assert_eq!((r.protocol, r.sock_type, r.state, r.rqueue_bytes), (17, 2, 7, 32));
    }

    #[test]
    fn addresses_of_ipv6_are_four_words() {
        let address: [u8; 16] = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8];
        let text: String =
            address.chunks(4).map(|w| format!("{:08X}", u32::from_ne_bytes([w[0], w[1], w[2], w[3]]))).collect();
        assert_eq!(end(&format!("{text}:0050")), Some((10, address, 80)));
        for wrong in ["", "0100007F", "0100007:0050", "0100007F:x", "ä100007:0050", "0100007F0100007F:0050"] {
            assert_eq!(end(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn lines_of_unix_sockets() {
        assert_eq!(record(Table::Unix, "Num       RefCount Protocol Flags    Type St Inode Path", 1), None);
        let line = "0000000000000000: 00000002 00000000 00010000 0001 01 23456 /run/a b.sock";
        let (r, name) = record(Table::Unix, line, 1).unwrap();
        assert_eq!((r.family, r.sock_type, r.state, r.inode, name), (1, 1, state::LISTEN, 23456, "/run/a b.sock"));
        let line = "0000000000000000: 00000003 00000000 00000000 0002 03    56";
        let (r, name) = record(Table::Unix, line, 1).unwrap();
        assert_eq!((r.sock_type, r.state, r.inode, name), (2, state::ESTABLISHED, 56, ""));
    }
}

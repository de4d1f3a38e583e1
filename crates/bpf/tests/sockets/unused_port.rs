//! Listeners for tests that count the sockets of a port. Ephemeral ports are reused, so a test could find sockets of another
//! test, which stay in TIME_WAIT for a minute.
use std::net::{IpAddr, TcpListener};
use std::time::{SystemTime, UNIX_EPOCH};

/// Listens on a port below the ephemeral range that no other socket of this network namespace has.
pub fn listen_on_unused_port(address: IpAddr) -> TcpListener {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").subsec_nanos();
    let first = now.wrapping_mul(std::process::id()) >> 8;
    // Counts again after bind(), because another test may have bound the port at another address.
    let mut all = (0..10_000u32).map(|step| 20_000 + (first.wrapping_add(step * 7) % 10_000) as u16);
    all.find_map(|port| {
        let listener = (sockets_of(port) == 0).then(|| TcpListener::bind((address, port)).ok())??;
        (sockets_of(port) == 1).then_some(listener)
    })
    .expect("a free port")
}

/// The number of TCP sockets of this network namespace that have the port at either end.
fn sockets_of(port: u16) -> usize {
    let has = |end: &str| end.rsplit(':').next() == Some(&format!("{port:04X}"));
    let count = |table: &str| {
        let text = std::fs::read_to_string(table).unwrap_or_default();
        text.lines().skip(1).filter(|line| line.split_whitespace().skip(1).take(2).any(has)).count()
    };
    count("/proc/net/tcp") + count("/proc/net/tcp6")
}

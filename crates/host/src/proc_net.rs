//! Reads the tables of sockets in /proc/net of the calling thread's network namespace.
use std::collections::HashSet;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};

use parshall_core::proc_net;
use parshall_core::sock_diag::Table;
use parshall_evidence::socket::SocketRecord;

/// Bytes of one file that are read: a million sockets.
const BYTES_MAX: u64 = 256 << 20;

/// Passes each socket of a table to `take`, with the name of a UNIX socket. A kernel without IPv6 lacks its files.
///
/// The kernel fills its answer in parts, and finds its place again by counting: where sockets come meanwhile, it gives some once more
/// (net/ipv4/tcp_ipv4.c, tcp_seek_last_pos()). A socket is passed once, by its inode; one in TIME-WAIT has none.
///
/// # Errors
/// No file of the table can be read, or the table has none.
pub fn each(table: Table, netns: u32, take: &mut dyn FnMut(SocketRecord, &str)) -> io::Result<()> {
    let mut outcome = Err(io::ErrorKind::NotFound.into());
    let mut seen = HashSet::new();
    for name in proc_net::files(table) {
        // The names in /proc/net of UNIX sockets are any bytes.
        let file = match File::open(format!("/proc/thread-self/net/{name}")) {
            Ok(file) => file,
            Err(error) => {
                outcome = outcome.or(Err(error));
                continue;
            }
        };
        let mut lines = BufReader::new(file.take(BYTES_MAX));
        let mut line = Vec::new();
        while lines.read_until(b'\n', &mut line)? > 0 {
            let text = String::from_utf8_lossy(&line);
            if let Some((record, name)) = proc_net::record(table, text.trim_end_matches('\n'), netns)
                && (record.inode == 0 || seen.insert(record.inode))
            {
                take(record, name);
            }
            line.clear();
        }
        outcome = Ok(());
    }
    outcome
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, UdpSocket};
    use std::os::unix::net::UnixListener;

    use super::*;

    fn ports(table: Table) -> Vec<u16> {
        let mut ports = Vec::new();
        each(table, 1, &mut |record, _| ports.push(record.local_port)).unwrap();
        ports
    }

    #[test]
    fn sockets_of_this_process_are_found() {
        let (tcp, udp) = (TcpListener::bind("127.0.0.1:0").unwrap(), UdpSocket::bind("127.0.0.1:0").unwrap());
        assert!(ports(Table::Tcp).contains(&tcp.local_addr().unwrap().port()));
        assert!(ports(Table::Udp).contains(&udp.local_addr().unwrap().port()));
        let path = std::env::temp_dir().join(format!("parshall-proc-net-{}", std::process::id()));
        let _unix = UnixListener::bind(&path).unwrap();
        let mut found = 0;
        each(Table::Unix, 1, &mut |_, name| found += usize::from(name == path.to_string_lossy())).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(found, 1);
    }
}

//! Telling systemd how the service is (sd_notify(3)): a datagram to the socket named by `NOTIFY_SOCKET`.
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// Says it, if anyone wants to know. A supervisor that cannot be reached changes nothing for the traffic.
pub fn notify(state: &str) {
    if let Some(socket) = std::env::var_os("NOTIFY_SOCKET") {
        send(&socket.to_string_lossy(), state).ok();
    }
}

/// RELOADING=1 with the time that systemd wants beside it, to tell an old READY=1 from the one that follows.
pub fn reloading() {
    notify(&format!("RELOADING=1\nMONOTONIC_USEC={}", parshall_sys::clock::monotonic_ns() / 1000));
}

fn send(socket: &str, state: &str) -> std::io::Result<()> {
    let address = match socket.strip_prefix('@') {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(socket)?,
    };
    let ours = UnixDatagram::unbound()?;
    // A supervisor that does not read must not stop the relay.
    ours.set_nonblocking(true)?;
    ours.send_to_addr(state.as_bytes(), &address).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_arrive_at_paths_and_abstract_names() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("n");
        let name = format!("parshall-notify-{}", std::process::id());
        let abstract_name = SocketAddr::from_abstract_name(&name).expect("a name");
        let sockets = [
            (UnixDatagram::bind(&path).expect("bound"), path.to_str().expect("UTF-8").to_owned()),
            (UnixDatagram::bind_addr(&abstract_name).expect("bound"), format!("@{name}")),
        ];
        for (socket, address) in sockets {
            send(&address, "READY=1").expect("sent");
            let mut text = [0; 32];
            let n = socket.recv(&mut text).expect("a datagram");
            assert_eq!(&text[..n], b"READY=1");
        }
    }
}

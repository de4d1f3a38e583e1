//! The service manager's notifications (sd_notify(3)): a datagram to the socket in `NOTIFY_SOCKET`.
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// Sends a state if `NOTIFY_SOCKET` is set. Errors are ignored: traffic does not depend on the service manager.
pub fn notify(state: &str) {
    if let Some(socket) = std::env::var_os("NOTIFY_SOCKET") {
        send(&socket.to_string_lossy(), state).ok();
    }
}

/// Sends RELOADING=1, with the time by which systemd distinguishes an earlier READY=1 from the one that ends the reload.
pub fn reloading() {
    notify(&format!("RELOADING=1\nMONOTONIC_USEC={}", parshall_sys::clock::monotonic_ns() / 1000));
}

fn send(socket: &str, state: &str) -> std::io::Result<()> {
    let address = match socket.strip_prefix('@') {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(socket)?,
    };
    let sender = UnixDatagram::unbound()?;
    // The relay must not wait for a service manager that does not read.
    sender.set_nonblocking(true)?;
    sender.send_to_addr(state.as_bytes(), &address).map(drop)
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

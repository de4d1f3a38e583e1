//! TCP sockets whose options are set before they connect or listen: some have no effect later.
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::time::{Duration, Instant};

use anyhow::Context;
use socket2::{Domain, Protocol, Socket, Type};

use super::common::Clock;
use parshall_host::error::UserError;

/// Options that both ends share.
#[derive(Debug, Clone, clap::Args)]
pub struct SocketArgs {
    /// Set TCP_NODELAY
    #[arg(long)]
    pub nodelay: bool,
    #[command(flatten)]
    pub buffers: BufferArgs,
}

/// Congestion control and buffers.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct BufferArgs {
    /// Congestion control (default: cubic, or reno where there is no cubic; never the host's default)
    #[arg(long, value_name = "NAME")]
    pub congestion: Option<String>,
    /// Set SO_RCVBUF to this many bytes
    #[arg(long, value_name = "BYTES")]
    pub rcvbuf: Option<usize>,
    /// Set SO_SNDBUF to this many bytes
    #[arg(long, value_name = "BYTES")]
    pub sndbuf: Option<usize>,
}

impl SocketArgs {
    fn socket(&self, address: &SocketAddr) -> anyhow::Result<Socket> {
        let socket = Socket::new(Domain::for_address(*address), Type::STREAM, Some(Protocol::TCP))?;
        if self.nodelay {
            socket.set_tcp_nodelay(true)?;
        }
        if let Some(bytes) = self.buffers.rcvbuf {
            socket.set_recv_buffer_size(bytes)?;
        }
        if let Some(bytes) = self.buffers.sndbuf {
            socket.set_send_buffer_size(bytes)?;
        }
        match &self.buffers.congestion {
            Some(name) => socket.set_tcp_congestion(name.as_bytes()).map_err(|error| {
                let known = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_available_congestion_control");
                let known = known.unwrap_or_default();
                UserError::new(
                    format!("congestion control `{name}` cannot be used: {error}"),
                    format!("this host has: {}", known.trim()),
                )
            })?,
            // reno is always built in and always allowed.
            None => socket.set_tcp_congestion(b"cubic").or_else(|_| socket.set_tcp_congestion(b"reno"))?,
        }
        Ok(socket)
    }

    /// A listening socket; what it accepts inherits the options.
    pub fn listen(&self, address: SocketAddr) -> anyhow::Result<TcpListener> {
        let socket = self.socket(&address)?;
        socket.set_reuse_address(true)?;
        let listen = || {
            socket.bind(&address.into())?;
            socket.listen(4096)
        };
        listen().map_err(|error: io::Error| {
            UserError::new(format!("cannot listen on {address}: {error}"), "choose another address, or port 0 for any")
        })?;
        Ok(socket.into())
    }

    /// A socket that connects with a single try. Calls on it take two seconds at most.
    pub fn connect_once(&self, address: SocketAddr) -> anyhow::Result<Socket> {
        const CALL_MAX: Option<Duration> = Some(Duration::from_secs(2));
        let socket = self.socket(&address)?;
        socket.set_read_timeout(CALL_MAX)?;
        // It also limits connect(2).
        socket.set_write_timeout(CALL_MAX)?;
        socket.connect(&address.into())?;
        Ok(socket)
    }

    /// A connected socket. Waits up to five seconds for a server that does not listen yet.
    pub fn connect(&self, address: SocketAddr, clock: &Clock) -> anyhow::Result<Socket> {
        let give_up = Instant::now() + Duration::from_secs(5);
        loop {
            let socket = self.socket(&address)?;
            match socket.connect_timeout(&address.into(), Duration::from_secs(2)) {
                Ok(()) => return Ok(socket),
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused && Instant::now() < give_up => {
                    if clock.over() {
                        return Err(error).context(format!("connecting to {address}"));
                    }
                    std::thread::sleep(Duration::from_millis(20));
                }
                Err(error) => {
                    return Err(UserError::new(
                        format!("cannot connect to {address}: {error}"),
                        "start the server end first: the same load with --serve",
                    )
                    .into());
                }
            }
        }
    }
}

/// Which ends this process runs.
#[derive(Debug, Clone, clap::Args)]
pub struct Ends {
    /// Be only the server, on this address (port 0: any free one)
    #[arg(long, value_name = "ADDR", conflicts_with = "connect")]
    pub serve: Option<SocketAddr>,
    /// Be only the client, to this address
    #[arg(long, value_name = "ADDR")]
    pub connect: Option<SocketAddr>,
}

impl Ends {
    /// `serve`, `connect` or `both`.
    pub fn role(&self) -> &'static str {
        match (self.serve, self.connect) {
            (Some(_), _) => "serve",
            (_, Some(_)) => "connect",
            _ => "both",
        }
    }

    /// The address to listen on, if this process is a server. Both ends in one process use a free loopback port.
    pub fn listen_address(&self) -> Option<SocketAddr> {
        match self.connect {
            Some(_) => None,
            None => Some(self.serve.unwrap_or(SocketAddr::from(([127, 0, 0, 1], 0)))),
        }
    }
}

//! The server of a load with both ends: this program again, as a child that ends with its parent.
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use anyhow::{Context, bail};
use parshall_sys::child::{self, Confine};
use parshall_sys::measured_child::MeasuredChild;

use super::client;
use super::load::Load;

/// A running server. It is killed when this is dropped.
pub struct Server {
    address: SocketAddr,
    _child: MeasuredChild,
}

impl Server {
    /// Starts it on a free port of the loopback interface, and waits until it listens.
    pub fn start(load: &Load) -> anyhow::Result<Self> {
        let mut command = Command::new(std::env::current_exe().context("finding this program")?);
        command.args(["lab", "load", load.kind, "--serve", "127.0.0.1:0"]);
        if load.requests.is_some() {
            command.args(["--threads", &load.threads.to_string()]);
        }
        command.args(["--for", &format!("{}s", client::server_life(load).as_secs_f64())]);
        let buffers = &load.socket.buffers;
        for (flag, bytes) in [("--rcvbuf", buffers.rcvbuf), ("--sndbuf", buffers.sndbuf)] {
            if let Some(bytes) = bytes {
                command.args([flag, &bytes.to_string()]);
            }
        }
        if let Some(congestion) = &buffers.congestion {
            command.args(["--congestion", congestion]);
        }
        if load.bulk.is_some() {
            command.args(["--write-bytes", &load.calls.write_bytes.to_string()]);
            command.args(["--read-bytes", &load.calls.read_bytes.to_string()]);
            command.args(load.calls.discard.then_some("--discard"));
        }
        // In a group of its own, Ctrl-C does not reach it before the client has read its CPU time.
        command.process_group(0).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let child = child::spawn(&mut command, &Confine::default()).context("starting the server's end")?;
        let (child, _, stderr) = MeasuredChild::new(child, true);
        let mut line = String::new();
        let mut stderr = BufReader::new(stderr.context("the server's stderr is a pipe")?);
        while stderr.read_line(&mut line).context("reading from the server's end")? > 0 {
            if let Some(port) = ready_port(&line) {
                let address = SocketAddr::from(([127, 0, 0, 1], port));
                // Its later output is read, so that it never waits for a full pipe.
                std::thread::spawn(move || std::io::copy(&mut stderr, &mut std::io::stderr()));
                return Ok(Self { address, _child: child });
            }
        }
        bail!("the server's end did not start: {}", line.trim())
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

/// The port in the last line, if that line says that the server is ready.
fn ready_port(text: &str) -> Option<u16> {
    let line = text.lines().last()?.strip_prefix("ready ")?;
    line.split_whitespace().find_map(|word| word.strip_prefix("port=")?.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_port_is_in_the_ready_line() {
        assert_eq!(ready_port("a warning\nready rpc role=serve pid=1 port=7000\n"), Some(7000));
        assert_eq!(ready_port("ready rpc role=serve pid=1\n"), None);
        assert_eq!(ready_port("error: port=5\n"), None);
    }
}

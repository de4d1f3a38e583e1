//! `parshall tunnel up`: an interface from a file of wg-quick, in the foreground.
use std::fs;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

use anyhow::Context;
use parshall_core::tunnel::{Device, HostPort, Limits, Output, QuickConfig, Table, parse_quick};
use parshall_host::error::UserError;
use signal_hook::consts::{SIGINT, SIGTERM};
use zeroize::Zeroizing;

use crate::control::path::{self, DIRECTORY};
use crate::control::{self, Control};
use crate::interface;
use crate::plain::Plain;
use crate::request::UpRequest;
use crate::system_random::SystemBytes;
use crate::worker::{Settings, Worker};

/// Runs until a signal ends it. The interface ends with the process, and so do its addresses and routes.
pub fn up(request: &UpRequest) -> anyhow::Result<ExitCode> {
    let (stop, on_signal) = UnixStream::pair()?;
    for signal in [SIGINT, SIGTERM] {
        signal_hook::low_level::pipe::register(signal, on_signal.try_clone()?)?;
    }
    let name = &request.interface;
    let config = read(&request.file)?;
    run_hooks(&config.pre_up, name)?;
    let (tun, mtu) = interface::set_up(name, &config)?;
    let (_bound, listener) = path::bind(Path::new(DIRECTORY), name).map_err(|error| unserved(name, &error))?;
    let (owner, requests) = control::channel()?;
    let _control = Control::start(owner, listener).context("starting the control thread")?;
    let mut device = Device::new(Limits::default(), Box::new(SystemBytes));
    device.configure(&config.device_change(resolve), &mut Output::default());
    let settings = Settings { mtu, clamp_mss: request.clamp_mss };
    let worker = Worker::new(device, tun, settings, Some(requests)).with_context(|| {
        let port = config.listen_port.map_or_else(|| "a port".to_owned(), |port| format!("port {port}"));
        format!("opening the sockets of {name} on {port}")
    })?;
    run_hooks(&config.post_up, name)?;
    tracing::info!(interface = %name, port = worker.sockets.port()?, peers = config.peers.len(), "the tunnel is up");
    let mut tunnel = Plain::new(worker);
    let run = tunnel.run(stop.as_fd()).with_context(|| format!("moving the packets of {name}"));
    // The hooks find the interface as they left it, also after a failure.
    let down = run_hooks(&config.pre_down, name);
    drop(tunnel);
    run.and(down).and(run_hooks(&config.post_down, name))?;
    Ok(ExitCode::SUCCESS)
}

/// The error for a control socket that cannot be made.
fn unserved(name: &str, error: &io::Error) -> UserError {
    let hint = match error.kind() {
        io::ErrorKind::AddrInUse => {
            "stop that process, or choose another name: all network namespaces share the directory"
        }
        io::ErrorKind::PermissionDenied => "run it as root",
        _ => "the directory is root's; remove what is in the way",
    };
    UserError::new(format!("the socket {DIRECTORY}/{name}.sock cannot be made: {error}"), hint)
}

fn read(file: &Path) -> anyhow::Result<QuickConfig> {
    let text = Zeroizing::new(fs::read_to_string(file).with_context(|| format!("reading {}", file.display()))?);
    let config = parse_quick(&text).map_err(|error| {
        UserError::new(format!("{}, line {}: {}", file.display(), error.line, error.error.what), error.error.hint)
    })?;
    let mut prefixes = config.peers.iter().flat_map(|peer| &peer.allowed_ips);
    if config.table == Table::Auto && prefixes.any(|prefix| prefix.prefix_len() == 0) {
        let what =
            format!("{} routes all addresses to a peer, for which Table = auto has no rules yet", file.display());
        return Err(UserError::new(what, "write `Table = off` and add the routes with PostUp").into());
    }
    if !config.dns.is_empty() {
        tracing::warn!("DNS is not set: let PostUp do it, such as with `resolvectl dns %i 10.0.0.1`");
    }
    if config.save_config {
        tracing::warn!("SaveConfig is not supported: the file stays as it is");
    }
    Ok(config)
}

/// The first address of an endpoint. A peer whose name is not found is waited for: it may begin.
fn resolve(endpoint: &HostPort) -> Option<SocketAddr> {
    let HostPort { host, port } = endpoint;
    match (host.as_str(), *port).to_socket_addrs() {
        Ok(mut addresses) => addresses.next(),
        Err(error) => {
            tracing::warn!(%error, "the endpoint {host}:{port} is not found; the peer has none until it begins");
            None
        }
    }
}

/// Runs the commands of one kind, with `%i` for the interface, and stops at the first that fails.
fn run_hooks(commands: &[String], interface: &str) -> anyhow::Result<()> {
    for command in commands {
        let command = command.replace("%i", interface);
        tracing::debug!(%command, "running a hook");
        let status = Command::new("sh").args(["-c", &command]).stdin(Stdio::null()).status();
        let status = status.with_context(|| format!("running `{command}`"))?;
        if !status.success() {
            return Err(UserError::new(format!("`{command}` failed: {status}"), "correct the hook in the file").into());
        }
    }
    Ok(())
}

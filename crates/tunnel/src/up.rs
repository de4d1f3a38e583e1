//! `parshall tunnel up` and `parshall tunnel run`: sets an interface up, has another process move its packets, and undoes
//! everything at the end. This process keeps root's privileges and touches no packet.
use std::fs;
use std::io;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;
use parshall_core::tunnel::{HostPort, QuickConfig, parse_quick};
use parshall_host::error::UserError;
use signal_hook::consts::{SIGINT, SIGTERM};
use zeroize::Zeroizing;

use crate::child::spawn::{Child, Ended, Inherited};
use crate::control::path::{self, DIRECTORY};
use crate::request::{Place, UpRequest};
use crate::state::Running;
use crate::undo::{Step, Undo};
use crate::{daemon, hook, interface};

pub fn up(request: &UpRequest) -> anyhow::Result<ExitCode> {
    match request.place {
        Place::Foreground => run(request, || ()),
        Place::Daemon => {
            // What is wrong in the file is reported here, with its warnings.
            request.file.as_deref().map(read).transpose()?;
            daemon::start(request)
        }
        Place::Detached => daemon::serve(|ready| run(request, ready)),
    }
}

/// Runs until a signal ends it or the interface is removed. Calls `ready` when the tunnel is up.
fn run(request: &UpRequest, ready: impl FnOnce()) -> anyhow::Result<ExitCode> {
    let (stop, on_signal) = UnixStream::pair()?;
    for signal in [SIGINT, SIGTERM] {
        signal_hook::low_level::pipe::register(signal, on_signal.try_clone()?)?;
    }
    let config = request.file.as_deref().map_or_else(|| Ok(QuickConfig::default()), read)?;
    let running = Running::take(&request.interface)?;
    let mut undo = running.undo()?;
    let result = carry(request, &config, &stop, &mut undo, ready);
    let undone = undo.run();
    result.and(undone)?;
    Ok(ExitCode::SUCCESS)
}

fn carry(
    request: &UpRequest,
    config: &QuickConfig,
    stop: &UnixStream,
    undo: &mut Undo,
    ready: impl FnOnce(),
) -> anyhow::Result<()> {
    let name = &request.interface;
    let (_bound, control) = path::bind(Path::new(DIRECTORY), name).map_err(|error| unserved(name, &error))?;
    let metrics = request.listen.map(listen).transpose()?;
    hook::run_all(&config.pre_up, name)?;
    for text in config.post_down.iter().rev() {
        undo.push(Step::Hook(hook::command(text, name)))?;
    }
    // Before the routes: the names may be out of reach then.
    let mut change = config.device_change(resolve);
    let default = interface::default_table(config)?;
    change.fwmark = default.or(change.fwmark);
    let tun = interface::create(name, config)?;
    let inherited = Inherited { tun: &tun, control, metrics };
    let child = Child::start(request, interface::mtu(config), &change, inherited)?;
    if request.file.is_some() {
        interface::configure(name, config, default, undo)?;
    }
    hook::run_all(&config.post_up, name)?;
    ready();
    let ended = child.wait(stop)?;
    // The hooks find the interface as they left it, also after a failure.
    let down = hook::run_all(&config.pre_down, name);
    let stopped = match ended {
        Ended::Signal => child.stop(),
        Ended::Child => child.outcome(),
    };
    stopped.and(down)
}

fn listen(address: SocketAddr) -> anyhow::Result<TcpListener> {
    TcpListener::bind(address).map_err(|error| {
        let what = format!("the metrics cannot be served at {address}: {error}");
        UserError::new(what, "give --listen an address of this host with a free port, such as 127.0.0.1:9586").into()
    })
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

/// Reads a file and refuses what cannot be done.
fn read(file: &Path) -> anyhow::Result<QuickConfig> {
    let text = Zeroizing::new(fs::read_to_string(file).with_context(|| format!("reading {}", file.display()))?);
    let config = parse_quick(&text).map_err(|error| {
        UserError::new(format!("{}, line {}: {}", file.display(), error.line, error.error.what), error.error.hint)
    })?;
    if config.save_config {
        let what = format!("{}: SaveConfig = true is not supported", file.display());
        return Err(UserError::new(what, "remove it, and save the state with `wg showconf` where it is needed").into());
    }
    if !config.dns.is_empty() {
        tracing::warn!("DNS is not set: let PostUp do it, such as with `resolvectl dns %i {}`", config.dns.join(" "));
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

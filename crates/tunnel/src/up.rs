//! `parshall tunnel up` and `parshall tunnel run`: sets an interface up, has another process move its packets, and undoes
//! everything at the end. This process keeps root's privileges and touches no packet.
use std::fs;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use parshall_core::text::suggest;
use parshall_core::tunnel::{HostPort, QuickConfig, parse_quick};
use parshall_host::end_signals::end_signals;
use parshall_host::error::UserError;
use parshall_sys::privileges::current;
use zeroize::Zeroizing;

use crate::child::spawn::{Child, Ended, Inherited};
use crate::control::path::{self, DIRECTORY};
use crate::interface::Routing;
use crate::own_user::OwnUser;
use crate::request::{DIRECTORY as DIRECTORY_OF_FILES, Place, UpRequest};
use crate::state::{self, Running};
use crate::undo::{Step, Undo};
use crate::{daemon, hook, interface, names, sockets, summary};

/// How long names of endpoints may take at the start. Later ones are found while the tunnel is up.
const NAMES_MAX: Duration = Duration::from_secs(5);

pub fn up(request: &UpRequest) -> anyhow::Result<ExitCode> {
    match request.place {
        Place::Foreground => run(request, || ()),
        Place::Daemon => {
            // Errors in the file are reported here, with its warnings.
            let config = request.file.as_deref().map(read).transpose()?;
            let done = daemon::start(request)?;
            if let Some(mut config) = config {
                config.erase_keys();
                if !sockets::host_has_ipv6() {
                    config.leave_out_ipv6();
                }
                say(&request.interface, &config, None);
            }
            Ok(done)
        }
        Place::Detached => daemon::serve(|ready| run(request, ready)),
    }
}

/// How a tunnel that was up has ended.
enum End {
    /// As it was asked to: everything is undone.
    Asked,
    /// The process that moves packets died. Packets that are routed into the tunnel are dropped until somebody undoes that.
    Blocked(anyhow::Error),
}

/// Runs until a signal ends it or the interface is removed. Calls `ready` when the tunnel is up.
fn run(request: &UpRequest, ready: impl FnOnce()) -> anyhow::Result<ExitCode> {
    let (stop, on_signal) = UnixStream::pair()?;
    for signal in end_signals() {
        signal_hook::low_level::pipe::register(signal, on_signal.try_clone()?)?;
    }
    let mut config = request.file.as_deref().map_or_else(|| Ok(QuickConfig::default()), read)?;
    if !sockets::host_has_ipv6() && config.leave_out_ipv6() {
        tracing::warn!("this host has no IPv6: the addresses and routes of IPv6 in the file are left out");
    }
    let running = Running::take(&request.interface)?;
    if request.file.is_none() || request.fail_open {
        running.clean_up();
    }
    let mut undo = running.take_over()?;
    match carry(request, &mut config, &stop, &mut undo, ready) {
        // The record stays, for `tunnel down` and the next `tunnel up`.
        Ok(End::Blocked(error)) => Err(blocked(&request.interface, &error).into()),
        ended => {
            let undone = undo.run();
            ended.and(undone).map(|()| ExitCode::SUCCESS)
        }
    }
}

fn carry(
    request: &UpRequest,
    config: &mut QuickConfig,
    stop: &UnixStream,
    undo: &mut Undo,
    ready: impl FnOnce(),
) -> anyhow::Result<End> {
    let name = &request.interface;
    let (_bound, control) = path::bind(Path::new(DIRECTORY), name).map_err(|error| unserved(name, &error))?;
    let metrics = request.listen.map(listen).transpose()?;
    hook::run_all(&config.pre_up, name)?;
    undo.push_all(config.post_down.iter().rev().map(|text| Step::Hook(hook::command(text, name))))?;
    // Before the routes: the names may be out of reach then.
    let found = names::first_addresses(names_of(config), NAMES_MAX);
    found.iter().for_each(|(name, address)| undo.remember(name.to_string(), *address));
    let mut change = config.device_change(|endpoint| address_of(endpoint, undo));
    let default_table = interface::default_table(config, undo)?;
    change.fwmark = default_table.or(change.fwmark);
    let tun = interface::create(name, config)?;
    let own = if request.user.is_none() && current().uid == 0 {
        Some(OwnUser::take(Path::new(state::DIRECTORY))?)
    } else {
        None
    };
    let user = own.as_ref().map(OwnUser::ids).or(request.user);
    let inherited = Inherited { tun: &tun, control, metrics };
    let child = Child::start(request, user, interface::mtu(config), &change, inherited)?;
    // The other process has the keys now.
    drop(change);
    config.erase_keys();
    let routing = Routing { default_table, fail_open: request.fail_open };
    let blocks = request.file.is_some() && interface::configure(name, config, routing, undo)?;
    undo.settle()?;
    hook::run_all(&config.post_up, name)?;
    // From here on they are owed, also after this process was killed.
    let before = undo.len();
    undo.push_all(config.pre_down.iter().rev().map(|text| Step::Hook(hook::command(text, name))))?;
    if request.file.is_some() {
        say(name, config, routing.default_table);
    }
    ready();
    let stopped = match child.wait(stop)? {
        Ended::Signal => {
            // The hooks find the interface as they left it.
            let down = undo.run_from(before);
            child.stop().and(down)
        }
        Ended::Child => match child.outcome() {
            Err(error) if blocks => return Ok(End::Blocked(error)),
            outcome => outcome.and(undo.run_from(before)),
        },
    };
    stopped.map(|()| End::Asked)
}

/// Says what was set up. `default_table` is None where it is not known or there is none.
fn say(name: &str, config: &QuickConfig, default_table: Option<u32>) {
    summary::lines(name, config, default_table).iter().for_each(|line| tracing::info!("{line}"));
}

fn blocked(name: &str, error: &anyhow::Error) -> UserError {
    let what = format!("{error:#}; packets that were routed into the tunnel are dropped from now on");
    UserError::new(
        what,
        format!("`parshall tunnel down {name}` ends that, and so does the next `tunnel up`; --fail-open avoids it"),
    )
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
        io::ErrorKind::PermissionDenied if current().uid != 0 => "run it as root",
        _ => "the directory has to be root's, and writable by nobody else; remove what is in the way",
    };
    UserError::new(format!("the socket {DIRECTORY}/{name}.sock cannot be made: {error}"), hint)
}

/// Reads a file and refuses what cannot be done.
fn read(file: &Path) -> anyhow::Result<QuickConfig> {
    let text = Zeroizing::new(fs::read_to_string(file).map_err(|error| unreadable(file, &error))?);
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

/// The error for a file that cannot be read, with the files that are there.
fn unreadable(file: &Path, error: &io::Error) -> UserError {
    let there = file.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let entries = fs::read_dir(there).into_iter().flatten().flatten();
    let mut files: Vec<String> = entries
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|end| end == "conf"))
        .filter_map(|path| Some(path.file_stem()?.to_str()?.to_owned()))
        .collect();
    files.sort_unstable();
    let names: Vec<&str> = files.iter().map(String::as_str).collect();
    let asked = file.file_stem().unwrap_or_default().to_string_lossy();
    let hint = match error.kind() {
        io::ErrorKind::PermissionDenied => "run it as root".to_owned(),
        _ if !names.is_empty() => {
            format!("{} has {}.conf: {}", there.display(), names.join(".conf, "), suggest(&asked, &names))
        }
        _ => format!(
            "`tunnel up NAME` reads {DIRECTORY_OF_FILES}/NAME.conf, and `tunnel up ./FILE.conf` a file elsewhere"
        ),
    };
    UserError::new(format!("{} cannot be read: {error}", file.display()), hint)
}

/// The names of endpoints, each once.
fn names_of(config: &QuickConfig) -> Vec<HostPort> {
    let endpoints = config.peers.iter().filter_map(|peer| peer.endpoint.as_ref());
    let mut names: Vec<HostPort> = Vec::new();
    for name in endpoints.filter(|endpoint| endpoint.is_name()) {
        if !names.contains(name) {
            names.push(name.clone());
        }
    }
    names
}

/// The address of an endpoint. One whose name is not found has the address of its last start: a tunnel that died may have packets to
/// name servers dropped. The process that moves packets asks for it again.
fn address_of(endpoint: &HostPort, undo: &Undo) -> Option<SocketAddr> {
    match endpoint.host.parse::<IpAddr>() {
        Ok(ip) => Some((ip, endpoint.port).into()),
        Err(_) => undo.address(&endpoint.to_string()),
    }
}

//! The process that moves the packets of a tunnel. It is started with the TUN device and sockets by [`spawn`], opens its UDP
//! sockets, gives up root's privileges, and ends when the process that started it does.
pub mod spawn;

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::Context;
use parshall_core::tunnel::{Device, DeviceChange, Limits, Output, Request, parse_request};
use parshall_host::error::UserError;
use parshall_sys::handover;
use parshall_sys::privileges::{CapabilitySet, become_user, current};
use rustix::io::Errno;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use zeroize::Zeroizing;

use crate::control::{self, Control, Listeners};
use crate::engine::Loop;
use crate::mover::Settings;
use crate::ready;
use crate::request::WorkRequest;
use crate::system_random::SystemBytes;
use crate::worker::Worker;

/// Moves packets until the process that started this one ends it, or the interface is removed.
pub fn run(request: &WorkRequest) -> anyhow::Result<ExitCode> {
    // A terminal sends its signals to this process too, but hooks still need the interface.
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, Arc::new(AtomicBool::new(false)))?;
    }
    let mut inherited = handover::inherited();
    let Some((report, given)) = inherited.ready.take().zip(Given::take(inherited.sockets)) else {
        let what = "`parshall tunnel work` is started by `parshall tunnel up`, with the TUN device and sockets";
        return Err(UserError::new(what, "type `parshall tunnel up FILE`").into());
    };
    let Given { link, tun, listeners } = given;
    let prepared = prepare(request, &link, tun, listeners);
    ready::report(report, &prepared);
    // The process that started this one prints the error.
    let Ok((mut tunnel, _control)) = prepared else { return Ok(ExitCode::FAILURE) };
    match tunnel.run(link.as_fd()) {
        Err(error) if error.raw_os_error() == Some(Errno::BADFD.raw_os_error()) => {
            tracing::info!(interface = %request.interface, "the interface was removed");
            Ok(ExitCode::SUCCESS)
        }
        ended => {
            ended.with_context(|| format!("moving the packets of {}", request.interface)).map(|()| ExitCode::SUCCESS)
        }
    }
}

/// What [`spawn::Child`] passes on, in this order.
struct Given {
    /// The configuration comes here; the end of file ends this process.
    link: UnixStream,
    tun: File,
    listeners: Listeners,
}

impl Given {
    fn take(sockets: Vec<OwnedFd>) -> Option<Self> {
        let mut sockets = sockets.into_iter();
        Some(Self {
            link: sockets.next()?.into(),
            tun: sockets.next()?.into(),
            listeners: Listeners { uapi: sockets.next()?.into(), metrics: sockets.next().map(TcpListener::from) },
        })
    }
}

fn prepare(
    request: &WorkRequest,
    link: &UnixStream,
    tun: File,
    listeners: Listeners,
) -> anyhow::Result<(Loop, Control)> {
    let change = read_change(link).context("reading the configuration")?;
    let mut device = Device::new(Limits::default(), Box::new(SystemBytes));
    device.configure(&change, &mut Output::default());
    let (owner, requests) = control::channel()?;
    let settings = Settings { mtu: request.mtu, clamp_mss: request.engine.clamp_mss };
    let worker = Worker::new(device, tun, settings, Some(requests)).map_err(|error| unopened(&change, &error))?;
    // Before threads start: capabilities belong to threads. What `wg set fwmark` (SO_MARK) and `wg set listen-port` (a port below
    // 1024, buffers above the limit) need stays.
    if current().uid == 0 && request.user.uid != 0 {
        become_user(&request.user.into(), CapabilitySet::NET_ADMIN | CapabilitySet::NET_BIND_SERVICE)
            .context("giving up root's privileges")?;
    }
    let control = Control::start(&request.interface, owner, listeners).context("starting the control thread")?;
    Ok((Loop::new(request.engine.engine, worker)?, control))
}

/// Reads the configuration, which is in the protocol of the control socket.
fn read_change(link: &UnixStream) -> anyhow::Result<DeviceChange> {
    link.set_nonblocking(false)?;
    let mut text = Zeroizing::new(String::new());
    let mut reader = BufReader::new(link);
    while !text.ends_with("\n\n") {
        anyhow::ensure!(reader.read_line(&mut text)? != 0, "it ends too early");
    }
    match parse_request(&text)? {
        Request::Set(change) => Ok(change),
        _ => anyhow::bail!("it sets nothing"),
    }
}

/// The error for sockets that cannot be opened.
fn unopened(change: &DeviceChange, error: &std::io::Error) -> UserError {
    let port = change.listen_port.map_or_else(|| "a port".to_owned(), |port| format!("port {port}"));
    let hint = "choose another ListenPort; `ss -ulpn` lists the sockets of this namespace";
    UserError::new(format!("the UDP sockets on {port} cannot be opened: {error}"), hint)
}

//! The process that moves the packets of a tunnel. It is started with the TUN device and sockets by [`spawn`], opens its UDP
//! sockets, gives up root's privileges, and ends when the process that started it does.
pub mod spawn;

use std::fs::File;
use std::io::{self, Read};
use std::net::TcpListener;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::Context;
use parshall_core::tunnel::{Device, DeviceChange, Limits, Output, Request, parse_request, request_len};
use parshall_host::error::UserError;
use parshall_sys::handover;
use parshall_sys::privileges::{CapabilitySet, become_user, current};
use rustix::io::Errno;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use zeroize::Zeroizing;

use crate::control::{self, Control, Listeners};
use crate::data_path::Settings;
use crate::engine::Loop;
use crate::ready;
use crate::request::WorkRequest;
use crate::route_watch::RouteWatch;
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
    let Ok((mut tunnel, _control, _routes)) = prepared else { return Ok(ExitCode::FAILURE) };
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

/// Descriptors that [`spawn::Child`] passes on, in this order.
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
) -> anyhow::Result<(Loop, Control, Option<RouteWatch>)> {
    let change = read_change(link).context("reading the configuration")?;
    let mut device = Device::new(Limits::default(), Box::new(SystemBytes));
    device.configure(&change, &mut Output::default());
    let (owner, requests) = control::channel()?;
    let settings = Settings { mtu: request.mtu, clamp_mss: request.engine.clamp_mss };
    let worker = Worker::new(device, tun, settings, Some(requests)).map_err(|error| unopened(&change, &error))?;
    // Before threads start: capabilities belong to threads. Those that `wg set fwmark` (SO_MARK) and `wg set listen-port` (a port below
    // 1024, buffers above the limit) need stay.
    if let Some(user) = request.user.filter(|user| current().uid == 0 && user.uid != 0) {
        become_user(&user.into(), CapabilitySet::NET_ADMIN | CapabilitySet::NET_BIND_SERVICE)
            .context("giving up root's privileges")?;
    }
    let control = Control::start(&request.interface, owner, listeners).context("starting the control thread")?;
    let routes = RouteWatch::start(Arc::clone(worker.data_path()))
        .inspect_err(|error| tracing::warn!(%error, "changes of routes are noticed only when peers do not answer"))
        .ok();
    Ok((Loop::new(request.engine.engine, worker)?, control, routes))
}

/// Reads the configuration, which is in the protocol of the control socket.
fn read_change(link: &UnixStream) -> anyhow::Result<DeviceChange> {
    link.set_nonblocking(false)?;
    let (bytes, len) = read_request(link)?;
    match parse_request(std::str::from_utf8(&bytes[..len])?, &|name: &str| parshall_sys::link::index(name).ok())? {
        Request::Set(change) => Ok(change),
        _ => anyhow::bail!("it sets nothing"),
    }
}

/// Reads a request, of which the length is returned too. It has keys: all memory that it was in is erased, which that of a
/// `BufReader` or of a string that grows is not.
fn read_request(mut from: impl Read) -> anyhow::Result<(Zeroizing<Vec<u8>>, usize)> {
    let mut bytes = Zeroizing::new(vec![0; 4096]);
    let mut filled = 0;
    loop {
        let count = match from.read(&mut bytes[filled..]) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            read => read?,
        };
        anyhow::ensure!(count != 0, "it ends too early");
        if let Some(len) = request_len(&bytes[..filled + count], filled) {
            return Ok((bytes, len));
        }
        filled += count;
        if filled == bytes.len() {
            let mut larger = Zeroizing::new(vec![0; 2 * filled]);
            larger[..filled].copy_from_slice(&bytes);
            bytes = larger;
        }
    }
}

/// The error for sockets that cannot be opened.
fn unopened(change: &DeviceChange, error: &std::io::Error) -> UserError {
    let port = change.listen_port.map_or_else(|| "a port".to_owned(), |port| format!("port {port}"));
    let hint = "choose another ListenPort; `ss -ulpn` lists the sockets of this namespace";
    UserError::new(format!("the UDP sockets on {port} cannot be opened: {error}"), hint)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_read_whole_in_whatever_pieces_it_comes() {
        struct Pieces<'a>(&'a [u8], usize);
        impl Read for Pieces<'_> {
            fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
                let len = self.1.min(into.len());
                self.0.read(&mut into[..len])
            }
        }
        let lines: String = (0..2000).map(|n| format!("allowed_ip=10.0.{}.{}/32\n", n / 250, n % 250)).collect();
        let text = format!("set=1\npublic_key={}\n{lines}\n", "0".repeat(64));
        for piece in [1, 7, 4096, usize::MAX] {
            let (bytes, len) = read_request(Pieces(text.as_bytes(), piece)).unwrap();
            assert_eq!(&bytes[..len], text.as_bytes());
            read_request(Pieces(&text.as_bytes()[..len - 1], piece)).expect_err("it ends too early");
        }
    }
}

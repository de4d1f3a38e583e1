//! The log, the metrics endpoint and the control socket, as the main thread opens and keeps them.
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixListener;

use parshall_core::relay::config::Global;
use parshall_host::control_socket::BoundPath;
use parshall_sys::privileges::User;

use super::control::socket_path;
use super::log::Sink;
use super::open::Pool;
use parshall_host::error::UserError;

/// Opened and not yet served. None where what is served does not change.
#[derive(Debug)]
pub struct Opened {
    sink: Option<Sink>,
    metrics: Option<Option<TcpListener>>,
    control: Option<(Option<BoundPath>, Option<UnixListener>)>,
}

/// The open endpoints. The sockets are duplicates, for a successor.
#[derive(Debug, Default)]
pub struct Management {
    metrics: Option<TcpListener>,
    socket: Option<UnixListener>,
    control: Option<BoundPath>,
}

impl Opened {
    /// Opens what differs between `old` and `new`; a failure changes nothing. The control socket is for `owner`, if the relay
    /// is about to become another user.
    pub fn open(old: Option<&Global>, new: &Global, pool: &mut Pool, owner: Option<&User>) -> anyhow::Result<Self> {
        // The log is opened at each reload, so that files can be rotated.
        let sink = Some(Sink::open(&new.log)?);
        let metrics = match old {
            Some(old) if old.metrics == new.metrics => None,
            _ => Some(new.metrics.map(|address| listen(address, pool)).transpose()?),
        };
        let control = match old {
            Some(old) if old.control == new.control => None,
            _ => Some(control(new.control.as_deref(), pool, owner)?),
        };
        Ok(Self { sink, metrics, control })
    }

    pub fn sink(&mut self) -> Sink {
        self.sink.take().unwrap_or(Sink::Nowhere)
    }
}

impl Management {
    /// Has the control thread serve them, in place of those before.
    pub fn serve(&mut self, opened: Opened, control: &super::control::Control) {
        if let Some(listener) = opened.metrics {
            self.metrics = listener.as_ref().and_then(|l| l.try_clone().ok());
            control.serve_metrics(listener);
        }
        if let Some((bound, listener)) = opened.control {
            self.control = bound;
            self.socket = listener.as_ref().and_then(|l| l.try_clone().ok());
            control.serve_socket(listener);
        }
    }

    pub fn sockets(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.metrics.as_ref().map(AsFd::as_fd).into_iter().chain(self.socket.as_ref().map(AsFd::as_fd))
    }

    /// Stops serving: a successor has the sockets.
    pub fn hand_over(&mut self, control: &super::control::Control) {
        control.serve_metrics(None);
        control.serve_socket(None);
        self.metrics = None;
        self.socket = None;
        if let Some(bound) = self.control.take() {
            bound.hand_over();
        }
    }

    /// The address of the metrics, with the port that the kernel chose.
    pub fn metrics_address(&self) -> Option<SocketAddr> {
        self.metrics.as_ref().and_then(|l| l.local_addr().ok())
    }
}

fn listen(address: SocketAddr, pool: &mut Pool) -> anyhow::Result<TcpListener> {
    if let Some(inherited) = pool.take_tcp(address) {
        return Ok(TcpListener::from(inherited));
    }
    TcpListener::bind(address).map_err(|e| {
        let what = format!("cannot serve the metrics on {address}: {e}");
        UserError::new(what, "choose another address for `metrics`, or leave it out").into()
    })
}

fn control(
    configured: Option<&str>,
    pool: &mut Pool,
    owner: Option<&User>,
) -> anyhow::Result<(Option<BoundPath>, Option<UnixListener>)> {
    let opened = socket_path::inherit(configured, pool).map_or_else(|| socket_path::bind(configured, owner), Ok);
    let opened = opened.and_then(|(bound, listener)| {
        owner.map_or(Ok(()), |owner| bound.give_to(owner))?;
        Ok((bound, listener))
    });
    match (opened, configured) {
        (Ok((bound, listener)), _) => Ok((Some(bound), Some(listener))),
        (Err(e), Some(path)) => {
            let what = format!("cannot open the control socket {path}: {e}");
            Err(UserError::new(what, "choose another path for `control`, in a directory that exists").into())
        }
        (Err(e), None) => {
            // The socket was not configured, so the relay runs without it.
            let directory = socket_path::directory(owner);
            tracing::warn!("no control socket in {}: {e}; `relay top` will not work", directory.display());
            Ok((None, None))
        }
    }
}

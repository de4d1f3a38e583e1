//! What the relay opens beside its listeners: the log, the metrics, the control socket.
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixListener;

use parshall_core::relay::config::Global;
use parshall_sys::privileges::User;

use super::control::place::{self, Bound};
use super::log::Sink;
use super::open::Pool;
use parshall_host::error::UserError;

/// Opened, and not yet given to the threads that serve them. None leaves what is served already as it is.
#[derive(Debug)]
pub struct Opened {
    sink: Option<Sink>,
    metrics: Option<Option<TcpListener>>,
    control: Option<(Option<Bound>, Option<UnixListener>)>,
}

/// What is open, as the main thread keeps it.
#[derive(Debug, Default)]
pub struct Management {
    /// Duplicates, for a successor.
    metrics: Option<TcpListener>,
    socket: Option<UnixListener>,
    control: Option<Bound>,
}

impl Opened {
    /// Opens what `new` wants and `old` has not. Nothing changes when it fails. The control socket is for `owner`, if the
    /// relay is about to become another user.
    pub fn open(old: Option<&Global>, new: &Global, pool: &mut Pool, owner: Option<&User>) -> anyhow::Result<Self> {
        // The log is opened anew each time: that is how files are rotated.
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

    /// The log.
    pub fn sink(&mut self) -> Sink {
        self.sink.take().unwrap_or(Sink::Nowhere)
    }
}

impl Management {
    /// Has them served, in place of those before.
    pub fn serve(&mut self, opened: Opened, control: &super::control::Control) {
        if let Some(listener) = opened.metrics {
            self.metrics = listener.as_ref().and_then(|l| l.try_clone().ok());
            control.metrics(listener);
        }
        if let Some((bound, listener)) = opened.control {
            self.control = bound;
            self.socket = listener.as_ref().and_then(|l| l.try_clone().ok());
            control.socket(listener);
        }
    }

    /// The listening sockets, for a successor.
    pub fn sockets(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.metrics.as_ref().map(AsFd::as_fd).into_iter().chain(self.socket.as_ref().map(AsFd::as_fd))
    }

    /// Leaves them to a successor, which has them already.
    pub fn leave(&mut self, control: &super::control::Control) {
        control.metrics(None);
        control.socket(None);
        self.metrics = None;
        self.socket = None;
        if let Some(bound) = self.control.take() {
            bound.leave();
        }
    }

    /// Where the metrics are served.
    pub fn metrics_address(&self) -> Option<SocketAddr> {
        self.metrics.as_ref().and_then(|l| l.local_addr().ok())
    }
}

fn listen(address: SocketAddr, pool: &mut Pool) -> anyhow::Result<TcpListener> {
    if let Some(inherited) = pool.take_one(address) {
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
) -> anyhow::Result<(Option<Bound>, Option<UnixListener>)> {
    let opened = place::inherit(configured, pool).map_or_else(|| place::bind(configured, owner), Ok);
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
            // Nobody asked for it, so traffic does not depend on it.
            let directory = place::directory(owner);
            tracing::warn!("no control socket in {}: {e}; `relay top` will not work", directory.display());
            Ok((None, None))
        }
    }
}

//! Socket options of listeners that a reload keeps, or that were inherited from systemd or from the process before an upgrade.
//! They are tried on another socket first, because a configuration that is refused must not change sockets in use.
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use anyhow::Context;
use parshall_core::relay::config::{Endpoint, Listener, Protocol, SocketOptions};
use parshall_sys::stream_socket::{self, Options, StreamAddr};

use super::listener::RunningListener;
use super::open::{self, Sockets};
use super::service::options;
use super::udp;
use parshall_host::error::UserError;

/// The options that a listener's sockets get when its configuration is put into force.
#[derive(Debug)]
pub struct Adjustment {
    /// Its name, for messages.
    listener: String,
    sockets: Arc<Sockets>,
    change: Change,
}

#[derive(Debug)]
enum Change {
    /// Options of a TCP or Unix listener; `before`: with which buffer sizes. `other_protocol`: it would have to be opened anew
    /// to use MPTCP, or no longer to.
    Streams { address: StreamAddr, backlog: u32, before: Options, options: Options, other_protocol: bool },
    /// Buffers of a UDP listener; `steer`: all datagrams of a source come to one thread from now on.
    Datagrams { options: SocketOptions, steer: bool },
}

impl Adjustment {
    /// The changes for a listener, if there are any. Fails if the kernel refuses them on another socket.
    pub fn prepare(old: &RunningListener, new: &Listener) -> anyhow::Result<Option<Self>> {
        let change = if old.is_tcp() { streams(old, new)? } else { datagrams(old, new)? };
        Ok(change.map(|change| Self { listener: new.name.clone(), sockets: old.sockets.clone(), change }))
    }

    /// The options of inherited sockets, which may have any others: all are set. Until the commit, the process that they come
    /// from may need them as they are. Fails if the kernel refuses the options on another socket.
    pub fn of_inherited(sockets: &Arc<Sockets>, bound: &str, new: &Listener) -> anyhow::Result<Self> {
        let change = match (new.protocol, sockets.iter().flatten().next()) {
            (Protocol::Tcp, Some(first)) => stream_change(first, bound, stream_socket::fixed_buffers(first), new)?,
            // Steering is set when they are taken over.
            _ => Change::Datagrams { options: new.sockets, steer: false },
        };
        Ok(Self { listener: new.name.clone(), sockets: sockets.clone(), change })
    }

    /// Changes the options. A refusal is not expected after [`Self::prepare`]; it is logged, and the listener goes on.
    pub fn commit(&self) {
        if let Err(error) = self.change() {
            tracing::warn!("{}: not all socket options could be changed: {error:#}", self.listener);
        }
    }

    fn change(&self) -> anyhow::Result<()> {
        match &self.change {
            Change::Streams { address, backlog, before, options, other_protocol } => {
                if *other_protocol {
                    tracing::warn!(
                        "{}: `sockets.mptcp` stays as it was for clients: a listener keeps its protocol until it is \
                         opened anew (remove it, reload, and add it again; or restart the relay; a socket of systemd \
                         needs `SocketProtocol=`)",
                        self.listener
                    );
                }
                let each = |socket: &Arc<OwnedFd>| stream_socket::adjust(socket, address, *backlog, before, options);
                Ok(self.sockets.iter().flatten().try_for_each(each)?)
            }
            Change::Datagrams { options, steer } => {
                let mut sockets = self.sockets.iter().flatten();
                sockets.clone().for_each(|socket| udp::sockets::set_listener_buffers(socket, options));
                // Steering is set on one socket for all of a port.
                let count = sockets.clone().count();
                match sockets.next().filter(|_| *steer) {
                    Some(socket) => open::steer_by_source(socket, count),
                    None => Ok(()),
                }
            }
        }
    }
}

fn streams(old: &RunningListener, new: &Listener) -> anyhow::Result<Option<Change>> {
    let before = &old.service.config;
    if before.sockets == new.sockets && before.transparent == new.transparent {
        return Ok(None);
    }
    let Some(first) = old.sockets.iter().flatten().next() else { return Ok(None) };
    Ok(Some(stream_change(first, &old.bound, options(before), new)?))
}

/// The change of a TCP or Unix listener, of whose sockets `first` is one, bound to `bound`.
fn stream_change(first: &OwnedFd, bound: &str, before: Options, new: &Listener) -> anyhow::Result<Change> {
    let address = match &new.listen {
        Endpoint::Unix(path) => StreamAddr::Unix(path.clone()),
        _ => StreamAddr::Ip(bound.parse().with_context(|| format!("{bound} is no address"))?),
    };
    let (backlog, options) = (new.sockets.backlog, options(new));
    let tried = stream_socket::try_options(&address, backlog, &options).map_err(|e| {
        let what = format!("{}: the kernel refuses the socket options: {e}", new.name);
        UserError::new(what, "`transparent` needs CAP_NET_ADMIN; leave out what was added to `sockets`")
    })?;
    let other_protocol = stream_socket::is_mptcp(&tried) != stream_socket::is_mptcp(first);
    Ok(Change::Streams { address, backlog, before, options, other_protocol })
}

fn datagrams(old: &RunningListener, new: &Listener) -> anyhow::Result<Option<Change>> {
    let before = &old.service.config;
    let steer = open::limits_sources(new) && !open::limits_sources(before);
    if !steer && before.sockets == new.sockets {
        return Ok(None);
    }
    if steer {
        let tried = udp::sockets::listen(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), &new.sockets);
        let tried: UdpSocket = tried.context("no socket to try limits of a source with")?;
        open::steer_by_source(&tried.into(), old.sockets.len())?;
    }
    Ok(Some(Change::Datagrams { options: new.sockets, steer }))
}

//! The way from the control thread to the thread that owns the `Device`, and what that one does with requests.
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, mpsc};

use parshall_core::tunnel::{Device, DeviceChange, DeviceState, DropCause, Lookup, Ns, Output};
use parshall_sys::eventfd;
use rustix::io::Errno;
use tokio::sync::oneshot;

use crate::counters::Counters;
use crate::names::Resolver;

/// Peers of a change that are carried out before packets have their turn again. Each takes some microseconds, and packets would
/// wait a second for a file of some hundred thousand.
const PEERS_AT_ONCE: usize = 256;

/// A request to the thread that owns the device.
enum Request {
    State(oneshot::Sender<State>),
    /// The answer is 0 or a negative errno, as in the protocol.
    Change(Box<DeviceChange>, oneshot::Sender<i32>),
    /// A name was looked up. Nobody waits.
    Resolved(Lookup, Vec<SocketAddr>),
}

/// A snapshot of the device and its counters.
#[derive(Debug)]
pub(super) struct State {
    pub(super) device: DeviceState,
    pub(super) drops: Vec<(DropCause, u64)>,
    pub(super) counters: Counters,
}

/// Makes the two ends of the way from the control thread to the thread that owns the device.
pub fn channel() -> io::Result<(DeviceOwner, Requests)> {
    let wake = Arc::new(eventfd::new()?);
    let (outbox, inbox) = mpsc::channel();
    let owner = DeviceOwner { outbox, wake: Arc::clone(&wake) };
    let asker = owner.clone();
    let resolver = Resolver::new(move |lookup, addresses| asker.put(Request::Resolved(lookup, addresses)));
    Ok((owner, Requests { inbox, wake, current: None, resolver }))
}

/// The thread that owns the device, as the control thread sees it.
#[derive(Clone)]
pub struct DeviceOwner {
    outbox: mpsc::Sender<Request>,
    wake: Arc<OwnedFd>,
}

impl DeviceOwner {
    pub(super) async fn state(&self) -> Option<State> {
        self.ask(Request::State).await
    }

    pub(super) async fn change(&self, change: Box<DeviceChange>) -> Option<i32> {
        self.ask(|reply| Request::Change(change, reply)).await
    }

    /// None once the thread that owns the device has ended.
    async fn ask<T>(&self, request: impl FnOnce(oneshot::Sender<T>) -> Request) -> Option<T> {
        let (reply, answer) = oneshot::channel();
        self.put(request(reply));
        answer.await.ok()
    }

    fn put(&self, request: Request) {
        if self.outbox.send(request).is_ok() {
            eventfd::signal(&self.wake);
        }
    }
}

/// Requests of clients, for the thread that owns the device.
pub struct Requests {
    inbox: mpsc::Receiver<Request>,
    pub(super) wake: Arc<OwnedFd>,
    /// The rest of a long change, and its client.
    current: Option<(Box<DeviceChange>, oneshot::Sender<i32>)>,
    resolver: Resolver<Lookup>,
}

impl Requests {
    /// Readable while there are requests.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }

    /// Looks a name up. [`Requests::fd`] is readable when there is an answer.
    pub fn look_up(&mut self, lookup: Lookup) {
        self.resolver.look_up(lookup.name.clone(), lookup);
    }

    /// Carries out requests: at most one for each client, and of a long change a part, after which
    /// [`Requests::fd`] is readable again. `listen` has the sockets listen on a
    /// port (0 for one that the kernel chooses) and mark what they send, and returns the port; where it fails, nothing of the
    /// request is carried out. A tick of the device is due then.
    pub fn serve(
        &mut self,
        now: Ns,
        device: &mut Device,
        out: &mut Output,
        counters: &Counters,
        mut listen: impl FnMut(u16, u32) -> io::Result<u16>,
    ) {
        eventfd::reset(&self.wake);
        self.continue_change(device, out, &mut listen);
        while self.current.is_none() {
            let Ok(request) = self.inbox.try_recv() else { return };
            // A client that no longer waits is no error of the tunnel.
            match request {
                Request::State(reply) => {
                    let drops = device.data_path().drops().seen().collect();
                    let _ = reply.send(State { device: device.state(), drops, counters: *counters });
                }
                Request::Change(change, reply) => self.current = Some((change, reply)),
                Request::Resolved(lookup, addresses) => device.resolved(now, &lookup, &addresses, out),
            }
            self.continue_change(device, out, &mut listen);
        }
    }

    /// Carries out a part of the current change, if there is one.
    fn continue_change(
        &mut self,
        device: &mut Device,
        out: &mut Output,
        listen: impl FnOnce(u16, u32) -> io::Result<u16>,
    ) {
        let Some((mut change, reply)) = self.current.take() else { return };
        let rest = change.split(PEERS_AT_ONCE);
        let done = apply(device, &mut change, out, listen);
        if let Some(rest) = rest.filter(|_| done.is_ok()) {
            self.current = Some((Box::new(rest), reply));
            eventfd::signal(&self.wake);
            return;
        }
        let _ = reply.send(done.map_or_else(|error| -errno(&error), |()| 0));
    }
}

fn apply(
    device: &mut Device,
    change: &mut DeviceChange,
    out: &mut Output,
    listen: impl FnOnce(u16, u32) -> io::Result<u16>,
) -> io::Result<()> {
    if change.listen_port.is_some() || change.fwmark.is_some() {
        let port = change.listen_port.unwrap_or(device.listen_port());
        let port = listen(port, change.fwmark.unwrap_or(device.fwmark()))
            .inspect_err(|error| tracing::warn!(%error, port, "the sockets cannot be changed as asked for"))?;
        change.listen_port = Some(port);
    }
    device.configure(change, out);
    tracing::debug!(peers = change.peers.len(), "the configuration was changed");
    Ok(())
}

pub(super) fn errno(error: &io::Error) -> i32 {
    error.raw_os_error().unwrap_or(Errno::IO.raw_os_error())
}

//! The thread that notices when routes change, and has datagrams to peers leave from an address of the new route.
//!
//! A peer is answered from the address of this host that it wrote to. After the host has moved to another network, that address may
//! still be there and lead nowhere: without this thread, only an unanswered handshake would show it, 15 s later. [`EgressInterfaces`] has the rule.
use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parshall_core::tunnel::{EgressInterfaces, Endpoint, Link};
use parshall_sys::eventfd;
use parshall_sys::netlink::Route;
use parshall_sys::routes::{Changes, Egress, egress};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::data_path::HostDataPath;

/// The least time between two checks: changes come in groups.
const PAUSE: Duration = Duration::from_millis(50);
/// Of the time, checks take at most one part in so many, however often routes change.
const SHARE: u32 = 20;

/// The thread. It ends when this is dropped.
#[derive(Debug)]
pub struct RouteWatch {
    stop: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl RouteWatch {
    /// Starts it, in the network namespace of the sockets.
    pub fn start(data_path: Arc<HostDataPath>) -> io::Result<Self> {
        let (changes, mut route, stop) = (Changes::open()?, Route::open()?, Arc::new(eventfd::new()?));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::Builder::new().name("tunnel-routes".into()).spawn(move || {
            let mut interfaces = EgressInterfaces::default();
            while let Ok(true) = wait(&changes, data_path.roamed(), &stopped) {
                let begun = Instant::now();
                eventfd::reset(data_path.roamed());
                changes.discard();
                check(&data_path, &mut route, &mut interfaces);
                let pause = Timespec::try_from(PAUSE.max(begun.elapsed() * SHARE)).ok();
                // A signal only makes the pause shorter.
                match poll(&mut [PollFd::new(&stopped, PollFlags::IN)], pause.as_ref()) {
                    Ok(0) | Err(rustix::io::Errno::INTR) => {}
                    _ => return,
                }
            }
        })?;
        Ok(Self { stop, thread: Some(thread) })
    }
}

impl Drop for RouteWatch {
    fn drop(&mut self) {
        eventfd::signal(&self.stop);
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the thread that watches routes panicked");
        }
    }
}

/// Waits until routes have changed or a peer has roamed. Returns false at the end.
fn wait(changes: &Changes, roamed: &OwnedFd, stop: &OwnedFd) -> io::Result<bool> {
    let readable = |fd| PollFd::from_borrowed_fd(fd, PollFlags::IN);
    let mut fds = [changes.as_fd(), roamed.as_fd(), stop.as_fd()].map(readable);
    loop {
        match poll(&mut fds, None) {
            Ok(_) => return Ok(fds[2].revents().is_empty()),
            Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// Looks up the egress interface for each peer whose datagrams leave from a certain address, or did, and has the address given up, or taken back.
fn check(data_path: &HostDataPath, route: &mut Route, interfaces: &mut EgressInterfaces) {
    let links: HashMap<_, Arc<Link>> =
        data_path.path().routes().iter().map(|(_, link)| (link.id(), Arc::clone(link))).collect();
    let mark = data_path.sockets().mark();
    interfaces.retain(|peer| links.contains_key(&peer));
    let mut leaves_by = |endpoint: &Endpoint| match egress(route, endpoint.remote, endpoint.local, mark) {
        Ok(Egress::Local) => Some(endpoint.interface),
        Ok(Egress::Interface(interface)) => Some(interface),
        Err(_) => None,
    };
    for (id, link) in &links {
        if let Some(given_up) = link.given_up()
            && given_up.local_holds(leaves_by(&given_up))
        {
            link.take_back_local_address();
        }
        let Some(endpoint) = link.endpoint().filter(|endpoint| endpoint.local.is_some()) else { continue };
        let leaves_by = leaves_by(&endpoint);
        tracing::trace!(?endpoint, ?leaves_by, "looked up the egress interface");
        if !interfaces.hold(*id, endpoint, leaves_by) {
            tracing::debug!(to = %endpoint.remote, local = ?endpoint.local, "the route leads elsewhere: it chooses the address");
            link.give_up_local_address(endpoint);
        }
    }
}

//! Opening SOCK_DIAG sockets inside other network namespaces.
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Mutex, PoisonError};
use std::thread;

use super::DiagSocket;
use crate::netns::enter;

/// A namespace, and where to send the socket.
type Order = (OwnedFd, Sender<io::Result<DiagSocket>>);

/// A thread that enters one namespace after the other for all readers. It returns to its own after each, because a thread keeps
/// its namespace alive. If it cannot return, it exits, and the next request starts a new one.
#[derive(Debug, Default)]
pub struct Opener {
    orders: Mutex<Option<Sender<Order>>>,
}

impl Opener {
    /// Opens a socket in the namespace that `netns` refers to. Needs CAP_SYS_ADMIN: EPERM otherwise.
    pub fn open(&self, netns: OwnedFd) -> io::Result<DiagSocket> {
        let (answer, answers) = channel();
        self.order((netns, answer))?;
        answers.recv().unwrap_or_else(|_| Err(io::Error::other("the thread that enters namespaces has ended")))
    }

    fn order(&self, mut order: Order) -> io::Result<()> {
        // A sender is whole at any moment, whatever became of a thread that held the lock.
        let mut orders = self.orders.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(thread) = orders.as_ref() {
            match thread.send(order) {
                Ok(()) => return Ok(()),
                Err(refused) => order = refused.0,
            }
        }
        let (sender, receiver) = channel();
        thread::Builder::new().name("netns-opener".into()).spawn(move || serve(&receiver))?;
        sender.send(order).map_err(|_| io::Error::other("the thread that enters namespaces has ended"))?;
        *orders = Some(sender);
        Ok(())
    }
}

/// Exits with the [`Opener`], or if it cannot return to its own namespace.
fn serve(orders: &Receiver<Order>) {
    let home = File::open("/proc/thread-self/ns/net");
    while let Ok((netns, answer)) = orders.recv() {
        let socket = enter(netns.as_fd()).and_then(|()| DiagSocket::open());
        // Before the reply: from then on only the socket keeps the namespace alive.
        drop(netns);
        let back = home.as_ref().is_ok_and(|home| enter(home.as_fd()).is_ok());
        // The reader may have gone.
        let _ = answer.send(socket);
        if !back {
            return;
        }
    }
}

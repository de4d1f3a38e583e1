//! The control thread: all that runs beside the traffic and may wait. It answers what is asked over HTTP ([`http`]) and
//! the local socket ([`socket`]), resolves names and checks targets. It is the only thread with an async runtime, and no
//! worker ever waits for it.
pub mod board;
mod bounded;
mod checks;
pub mod http;
mod metrics;
pub mod place;
pub mod resolve;
pub mod snapshot;
pub mod socket;

use std::sync::Arc;
use std::thread::JoinHandle;

use anyhow::Context;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use self::board::Board;
use self::checks::Checks;
use self::resolve::{Found, Names};
use super::service::Service;

/// What the main thread wants.
enum Order {
    /// Ask for the names of these services' targets that have no address, and call this with what was found.
    Ask(Vec<Arc<Service>>, Box<dyn FnOnce(Found) + Send>),
    /// Follow the names of these services' targets; what was found of them is known already.
    Follow(Vec<Arc<Service>>, Found),
    /// Check the targets of these services.
    Checks(Vec<Arc<Service>>),
    /// Serve metrics there, or nowhere.
    Metrics(Option<std::net::TcpListener>),
    /// Answer local tools there.
    Socket(Option<std::os::unix::net::UnixListener>),
    /// End.
    Stop,
}

/// The control thread, as the main thread sees it.
#[derive(Debug)]
pub struct Control {
    orders: UnboundedSender<Order>,
    thread: JoinHandle<()>,
}

impl Control {
    /// Starts it.
    pub fn start(board: Arc<Board>) -> anyhow::Result<Self> {
        let (orders, inbox) = unbounded_channel();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .enable_time()
            .build()
            .context("no descriptors for the control thread")?;
        let thread = std::thread::Builder::new()
            .name("relay-control".into())
            .spawn(move || runtime.block_on(serve(board, inbox)))
            .context("no thread for the control of the relay")?;
        Ok(Self { orders, thread })
    }

    fn order(&self, order: Order) {
        // It ends only when told to.
        self.orders.send(order).ok();
    }

    /// Asks for the names among these services' targets that have no address, and calls `tell` from the control thread once
    /// each was found or not, which takes seconds where a name server does not answer. Changes nothing that is followed.
    pub fn ask(&self, services: Vec<Arc<Service>>, tell: impl FnOnce(Found) + Send + 'static) {
        self.order(Order::Ask(services, Box::new(tell)));
    }

    /// Follows the names of these services from now on. Reads the host's configuration of names anew.
    pub fn follow(&self, services: Vec<Arc<Service>>, found: Found) {
        self.order(Order::Follow(services, found));
    }

    /// Checks the targets of these services from now on.
    pub fn check(&self, services: Vec<Arc<Service>>) {
        self.order(Order::Checks(services));
    }

    /// Serves metrics there from now on.
    pub fn metrics(&self, listener: Option<std::net::TcpListener>) {
        self.order(Order::Metrics(listener));
    }

    /// Answers local tools there from now on.
    pub fn socket(&self, listener: Option<std::os::unix::net::UnixListener>) {
        self.order(Order::Socket(listener));
    }

    /// Ends it.
    pub fn stop(self) {
        self.order(Order::Stop);
        if self.thread.join().is_err() {
            tracing::error!("the control thread panicked");
        }
    }
}

async fn serve(board: Arc<Board>, mut inbox: UnboundedReceiver<Order>) {
    let mut names = Names::new(board.clone());
    let mut checks = Checks::new(board.clone());
    let (mut metrics, mut socket, mut _asking) = (None::<Task>, None::<Task>, None::<Task>);
    while let Some(order) = inbox.recv().await {
        match order {
            Order::Ask(services, tell) => {
                let found = names.ask(&services);
                _asking = Some(Task(tokio::spawn(async move { tell(found.await) })));
            }
            Order::Follow(services, found) => names.follow(&services, found),
            Order::Checks(services) => checks.follow(&services),
            Order::Metrics(listener) => {
                drop(metrics.take());
                metrics = listener.map(|l| Task(tokio::spawn(http::serve(l, board.clone()))));
            }
            Order::Socket(listener) => {
                drop(socket.take());
                socket = listener.map(|l| Task(tokio::spawn(socket::serve(l, board.clone()))));
            }
            Order::Stop => return,
        }
    }
}

/// A task that ends when this is dropped.
#[derive(Debug)]
pub struct Task(pub tokio::task::JoinHandle<()>);

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}

//! The control thread: all that runs beside the traffic and may wait. It answers what is asked over HTTP ([`http`]) and
//! the local socket ([`socket`]), resolves names and checks targets. It is the only thread with an async runtime, and no
//! worker ever waits for it.
pub mod board;
pub mod http;
pub mod place;
pub mod process;
pub mod snapshot;
pub mod socket;

use std::sync::Arc;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::Context;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use self::board::Board;
use super::checks::Checks;
use super::resolve::{Names, Unresolved};
use super::service::Service;

/// A resolver that answers nothing at all must not hold up a start for longer.
const NAMES_WAIT: Duration = Duration::from_secs(15);

/// What the main thread wants.
#[derive(Debug)]
enum Order {
    /// Follow the names of these services' targets, and answer once each has been asked for once.
    Names(Vec<Arc<Service>>, mpsc::Sender<Vec<Unresolved>>),
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

    /// Follows the names of these services from now on. Answers, once all that are new have been asked for, which of
    /// them have no address. Reads the host's configuration of names anew.
    pub fn resolve(&self, services: Vec<Arc<Service>>) -> Vec<Unresolved> {
        if services.iter().all(|s| super::resolve::names(s).next().is_none()) {
            self.order(Order::Names(services, mpsc::channel().0));
            return Vec::new();
        }
        let (answer, answered) = mpsc::channel();
        self.order(Order::Names(services, answer));
        answered.recv_timeout(NAMES_WAIT + Duration::from_secs(1)).unwrap_or_default()
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
            eprintln!("relay: the control thread panicked");
        }
    }
}

async fn serve(board: Arc<Board>, mut inbox: UnboundedReceiver<Order>) {
    let mut names = Names::new(board.clone());
    let mut checks = Checks::new(board.clone());
    let (mut metrics, mut socket) = (None::<Task>, None::<Task>);
    while let Some(order) = inbox.recv().await {
        match order {
            Order::Names(services, answer) => {
                let unresolved = names.follow(&services, NAMES_WAIT).await;
                // Nobody waits where there are no names.
                answer.send(unresolved).ok();
            }
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

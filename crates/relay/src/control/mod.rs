//! The control thread: it serves HTTP ([`http`]) and the control socket ([`socket`]), resolves names ([`resolve`]) and
//! checks targets ([`checks`]). It is the only thread with an async runtime, and no worker waits for it.
mod bounded;
mod checks;
pub mod http;
mod metrics;
pub mod resolve;
pub mod snapshot;
pub mod socket;
pub mod socket_path;
pub mod status;
mod task;

use std::sync::Arc;
use std::thread::JoinHandle;

use anyhow::Context;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use self::checks::Checks;
use self::resolve::{Names, Resolved};
use self::status::Status;
use self::task::Task;
use super::service::Service;

/// A command of the main thread.
enum Command {
    /// Resolves the names of these services' targets that have no address, and calls the function with the result.
    Resolve(Vec<Arc<Service>>, Box<dyn FnOnce(Resolved) + Send>),
    /// Keeps the addresses of these services' targets up to date, beginning with those already resolved.
    Refresh(Vec<Arc<Service>>, Resolved),
    /// Checks the targets of these services.
    Check(Vec<Arc<Service>>),
    ServeMetrics(Option<std::net::TcpListener>),
    ServeSocket(Option<std::os::unix::net::UnixListener>),
    Stop,
}

/// A handle of the control thread.
#[derive(Debug)]
pub struct Control {
    commands: UnboundedSender<Command>,
    thread: JoinHandle<()>,
}

impl Control {
    pub fn start(status: Arc<Status>) -> anyhow::Result<Self> {
        let (commands, inbox) = unbounded_channel();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .enable_time()
            .build()
            .context("no descriptors for the control thread")?;
        let thread = std::thread::Builder::new()
            .name("relay-control".into())
            .spawn(move || runtime.block_on(serve(status, inbox)))
            .context("no thread for the control of the relay")?;
        Ok(Self { commands, thread })
    }

    fn send(&self, command: Command) {
        // The thread ends only after `Stop`.
        self.commands.send(command).ok();
    }

    /// Resolves the names of these services' targets that have no address, and calls `on_result` from the control thread.
    /// That takes seconds where a name server does not answer. The names that are kept up to date do not change.
    pub fn resolve(&self, services: Vec<Arc<Service>>, on_result: impl FnOnce(Resolved) + Send + 'static) {
        self.send(Command::Resolve(services, Box::new(on_result)));
    }

    /// Keeps the addresses of these services' targets, and no others, up to date. Reads /etc/resolv.conf and /etc/hosts again.
    pub fn refresh(&self, services: Vec<Arc<Service>>, resolved: Resolved) {
        self.send(Command::Refresh(services, resolved));
    }

    /// Runs the active checks of these services' targets, and no others.
    pub fn check(&self, services: Vec<Arc<Service>>) {
        self.send(Command::Check(services));
    }

    /// Serves HTTP on this listener from now on; None stops that.
    pub fn serve_metrics(&self, listener: Option<std::net::TcpListener>) {
        self.send(Command::ServeMetrics(listener));
    }

    /// Serves the control socket on this listener from now on; None stops that.
    pub fn serve_socket(&self, listener: Option<std::os::unix::net::UnixListener>) {
        self.send(Command::ServeSocket(listener));
    }

    /// Ends the thread and waits for it.
    pub fn stop(self) {
        self.send(Command::Stop);
        if self.thread.join().is_err() {
            tracing::error!("the control thread panicked");
        }
    }
}

async fn serve(status: Arc<Status>, mut inbox: UnboundedReceiver<Command>) {
    let mut names = Names::new(status.clone());
    let mut checks = Checks::new(status.clone());
    let (mut metrics, mut socket, mut _resolving) = (None::<Task>, None::<Task>, None::<Task>);
    while let Some(command) = inbox.recv().await {
        match command {
            Command::Resolve(services, on_result) => {
                let resolved = names.resolve(&services);
                _resolving = Some(Task(tokio::spawn(async move { on_result(resolved.await) })));
            }
            Command::Refresh(services, resolved) => names.refresh(&services, resolved),
            Command::Check(services) => checks.check(&services),
            Command::ServeMetrics(listener) => {
                drop(metrics.take());
                metrics = listener.map(|l| Task(tokio::spawn(http::serve(l, status.clone()))));
            }
            Command::ServeSocket(listener) => {
                drop(socket.take());
                socket = listener.map(|l| Task(tokio::spawn(socket::serve(l, status.clone()))));
            }
            Command::Stop => return,
        }
    }
}

//! The control thread: it speaks the configuration protocol with `wg` and others on a Unix socket ([`uapi`]), and serves metrics
//! ([`metrics`]). Only this thread has an async runtime, and no client can slow packets down: requests are parsed here, and answers
//! written here.
//!
//! Requests of clients are carried out by the thread that owns the `Device`. It watches [`Requests::fd`] and calls
//! [`Requests::serve`] when that is readable.
mod metrics;
pub mod owner;
pub mod path;
pub mod report;
mod uapi;

use std::io;
use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::thread::JoinHandle;

use tokio::sync::oneshot;

pub use owner::{DeviceOwner, Requests, channel};
use report::Reporter;

/// Sockets that the control thread serves.
#[derive(Debug)]
pub struct Listeners {
    /// The configuration protocol.
    pub uapi: UnixListener,
    /// HTTP.
    pub metrics: Option<TcpListener>,
}

/// The control thread. It ends when this is dropped.
#[derive(Debug)]
pub struct Control {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Control {
    /// Starts the thread. `interface` is for reports.
    pub fn start(interface: &str, owner: DeviceOwner, listeners: Listeners) -> io::Result<Self> {
        let reporter = Reporter::new(interface, owner.clone());
        let (stop, stopped) = oneshot::channel::<()>();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
        let thread = std::thread::Builder::new().name("tunnel-control".into()).spawn(move || {
            runtime.block_on(async {
                tokio::spawn(uapi::serve(listeners.uapi, owner, reporter.clone()));
                if let Some(listener) = listeners.metrics {
                    tokio::spawn(metrics::serve(listener, reporter));
                }
                // The sender is dropped with the `Control`, and the tasks with the runtime.
                stopped.await.ok();
            });
        })?;
        Ok(Self { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        drop(self.stop.take());
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the control thread panicked");
        }
    }
}

#[cfg(test)]
mod tests;

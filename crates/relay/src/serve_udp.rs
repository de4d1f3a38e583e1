//! The UDP threads of the running relay, as many as there are TCP workers. Each has a socket of every UDP listener.
//!
//! The threads and their sessions stay when the configuration changes: a session keeps the port of its socket.
use std::fmt::Display;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::thread::JoinHandle;

use anyhow::Context;
use parshall_core::relay::Ns;

use super::connection_limit::ConnectionLimit;
use super::listener::RunningListener;
use super::service::Service;
use super::service::target::TargetState;
use super::udp;
use super::udp::plan::{Change, Chooser, UdpListener};
use super::udp::sockets::SharedPorts;
use super::udp::stop::{Order, Stop};
use super::udp::worker::UdpPlan;

/// A configuration for the UDP threads that is not yet in force.
pub struct UdpPrepared {
    /// The threads, if they had to be started for it.
    started: Option<UdpThreads>,
    /// By thread.
    listeners: Vec<Vec<UdpListener>>,
}

#[derive(Debug, Default)]
pub struct UdpThreads {
    threads: Vec<Handle>,
}

#[derive(Debug)]
struct Handle {
    stop: Arc<Stop>,
    thread: JoinHandle<std::io::Result<()>>,
}

/// Chooses targets by the balancing and health rules of a service.
struct ByRules {
    service: Arc<Service>,
    order: Vec<usize>,
}

impl Chooser for ByRules {
    fn choose(&mut self, client: IpAddr, _targets: &[Arc<TargetState>], now: Ns) -> Option<usize> {
        self.service.order_targets(client, now, &mut self.order);
        self.order.first().copied()
    }

    fn began(&mut self, target: usize) {
        self.service.targets[target].began();
    }

    fn ended(&mut self, target: usize) {
        self.service.targets[target].ended();
    }

    fn answered(&mut self, target: usize, now: Ns, first: bool) {
        if first || self.service.targets[target].is_failing() {
            self.service.target_succeeded(target, now);
        }
    }

    fn failed(&mut self, target: usize, now: Ns, why: &dyn Display) {
        self.service.target_failed(target, now, why);
    }
}

impl UdpThreads {
    /// Starts the threads, without listeners.
    pub fn start(threads: usize, session_limit: &Arc<ConnectionLimit>) -> anyhow::Result<Self> {
        let mut started = Self::default();
        let ports = Arc::new(SharedPorts::default());
        let stop = |_| Stop::new().map(Arc::new).context("no descriptor for a UDP worker");
        let workers: Arc<[Arc<Stop>]> = (0..threads).map(stop).collect::<anyhow::Result<_>>()?;
        for (number, stop) in workers.iter().enumerate() {
            let plan = UdpPlan {
                listeners: Vec::new(),
                session_limit: session_limit.clone(),
                workers: workers.clone(),
                ports: ports.clone(),
                counts: Arc::default(),
            };
            started.threads.push(spawn(number, plan, stop.clone())?);
        }
        Ok(started)
    }

    /// Prepares to serve these listeners; the flag of each says that the threads have yet to get its sockets. Starts the
    /// threads if there are none and a limit on their sessions is given.
    pub fn prepare(
        &self,
        running: &[(&RunningListener, bool)],
        threads: usize,
        session_limit: Option<&Arc<ConnectionLimit>>,
    ) -> anyhow::Result<UdpPrepared> {
        let started = match session_limit {
            Some(limit) if self.threads.is_empty() && !running.is_empty() => Some(Self::start(threads, limit)?),
            _ => None,
        };
        let listeners = (0..threads).map(|number| listeners(running, number)).collect();
        Ok(UdpPrepared { started, listeners })
    }

    /// Puts prepared listeners into force. Sessions of removed ones may go on until `drain_until`. The receiver returned is
    /// disconnected once every thread has applied the change.
    pub fn serve(&mut self, prepared: UdpPrepared, drain_until: Ns) -> Receiver<()> {
        let (applied, all_have) = channel();
        if let Some(started) = prepared.started {
            *self = started;
        }
        for (thread, listeners) in self.threads.iter().zip(prepared.listeners) {
            // A thread that has ended cannot be reached.
            thread.stop.change(Change { listeners, drain_until, applied: applied.clone() }).ok();
        }
        all_have
    }

    /// Begins no new sessions; open ones may go on until `until`. With `handed_over` another process reads the sockets, so
    /// that only answers of targets are forwarded.
    pub fn drain(&self, until: Ns, handed_over: bool) {
        let order = if handed_over { Order::HandOver(until) } else { Order::Drain(until) };
        for each in &self.threads {
            // A thread that has ended cannot be reached.
            each.stop.give(order).ok();
        }
    }

    pub fn ended(&self) -> bool {
        self.threads.iter().all(|each| each.thread.is_finished())
    }

    /// Waits for the threads to end.
    pub fn join(mut self) -> anyhow::Result<()> {
        for each in std::mem::take(&mut self.threads) {
            match each.thread.join() {
                Ok(result) => result.context("a UDP worker of the relay failed")?,
                Err(_) => anyhow::bail!("a UDP worker of the relay panicked"),
            }
        }
        Ok(())
    }
}

impl Drop for UdpThreads {
    fn drop(&mut self) {
        // The threads of a configuration that was refused have to end.
        for each in &self.threads {
            each.stop.give(Order::End).ok();
        }
    }
}

/// The listeners for one thread, with the sockets that it does not have yet.
fn listeners(running: &[(&RunningListener, bool)], number: usize) -> Vec<UdpListener> {
    let mut listeners = Vec::new();
    for (listener, needs_socket) in running {
        let sockets = listener.sockets.get(number).filter(|_| *needs_socket).cloned().unwrap_or_default();
        let mut udp = UdpListener::new(
            &listener.service.config,
            listener.bound.clone(),
            sockets,
            listener.service.targets.clone(),
            Box::new(ByRules { service: listener.service.clone(), order: Vec::new() }),
            admission(&listener.service),
            listener.service.limiter.connections.clone(),
        );
        udp.stats = listener.stats[number].clone();
        listeners.push(udp);
    }
    listeners
}

fn spawn(number: usize, plan: UdpPlan, stop: Arc<Stop>) -> anyhow::Result<Handle> {
    let worker_stop = stop.clone();
    let thread = std::thread::Builder::new()
        .name(format!("relay-udp-{number}"))
        .spawn(move || udp::run(plan, worker_stop))
        .context("no thread for a UDP worker")?;
    Ok(Handle { stop, thread })
}

fn admission(service: &Arc<Service>) -> Box<dyn Fn(IpAddr) -> bool + Send> {
    let service = service.clone();
    // The limits of a source and a rate are kept by the worker.
    Box::new(move |client| service.access.admits(client))
}

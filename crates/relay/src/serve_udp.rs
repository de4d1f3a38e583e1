//! The UDP side of the running relay: a thread with a socket of every UDP listener, as many as there are TCP workers.
//!
//! The threads stay when the configuration changes, and sessions with them: a session's port is its socket's.
use std::fmt::Display;
use std::net::{IpAddr, UdpSocket};
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
use super::udp::plan::{Change, Chooser, UdpListener, UdpPlan};
use super::udp::stop::{Order, Stop};

/// Listeners that UDP threads are about to serve.
pub struct UdpPrepared {
    /// The threads, if they had to be started.
    started: Option<UdpSide>,
    /// Of each thread.
    listeners: Vec<Vec<UdpListener>>,
}

/// The UDP threads.
#[derive(Debug, Default)]
pub struct UdpSide {
    threads: Vec<Handle>,
}

#[derive(Debug)]
struct Handle {
    stop: Arc<Stop>,
    thread: JoinHandle<std::io::Result<()>>,
}

/// Chooses by the rules of the configuration.
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
        if first {
            self.service.target_succeeded(target, now);
        } else {
            self.service.target_reached(target, now);
        }
    }

    fn failed(&mut self, target: usize, now: Ns, answered: bool, why: &dyn Display) {
        if answered {
            self.service.target_unreached(target, now, why);
        } else {
            self.service.target_failed(target, now, why);
        }
    }
}

impl UdpSide {
    /// Starts the threads, which serve nothing yet.
    pub fn start(threads: usize, session_limit: &Arc<ConnectionLimit>) -> anyhow::Result<Self> {
        let mut started = Self::default();
        for number in 0..threads {
            let plan = UdpPlan { listeners: Vec::new(), session_limit: session_limit.clone(), counts: Arc::default() };
            started.threads.push(spawn(number, plan)?);
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
        let listeners = (0..threads).map(|number| listeners(running, number)).collect::<Result<_, _>>()?;
        Ok(UdpPrepared { started, listeners })
    }

    /// Serves other listeners from now on. Sessions of those that are gone may go on until `drain_until`. The answer hangs
    /// up once every thread has taken it up.
    pub fn serve(&mut self, prepared: UdpPrepared, drain_until: Ns) -> Receiver<()> {
        let (applied, all_have) = channel();
        if let Some(started) = prepared.started {
            *self = started;
        }
        for (thread, listeners) in self.threads.iter().zip(prepared.listeners) {
            // A thread that has ended takes nothing up.
            thread.stop.change(Change { listeners, drain_until, applied: applied.clone() }).ok();
        }
        all_have
    }

    /// Takes no new sessions; those open may go on until then. Where another process has the sockets, only answers pass:
    /// what clients send is for that one to read.
    pub fn drain(&self, until: Ns, handed_over: bool) {
        let order = if handed_over { Order::HandOver(until) } else { Order::Drain(until) };
        for each in &self.threads {
            // A thread that has ended has nothing to be told.
            each.stop.give(order).ok();
        }
    }

    /// Whether all threads have ended.
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

impl Drop for UdpSide {
    fn drop(&mut self) {
        // Those of a configuration that was refused.
        for each in &self.threads {
            each.stop.give(Order::End).ok();
        }
    }
}

/// The listeners of one thread, with the sockets that it has not got yet.
fn listeners(running: &[(&RunningListener, bool)], number: usize) -> anyhow::Result<Vec<UdpListener>> {
    let mut listeners = Vec::new();
    for (one, lacking) in running {
        let socket = one.sockets.get(number).and_then(|each| each.first()).filter(|_| *lacking);
        let socket = socket.map(|s| s.try_clone()).transpose().context("no descriptor for a UDP worker")?;
        let mut listener = UdpListener::new(
            &one.service.config,
            one.bound.clone(),
            socket.map(UdpSocket::from),
            one.service.targets.clone(),
            Box::new(ByRules { service: one.service.clone(), order: Vec::new() }),
            admission(&one.service),
            one.service.limiter.connections.clone(),
        );
        listener.stats = one.stats[number].clone();
        listeners.push(listener);
    }
    Ok(listeners)
}

fn spawn(number: usize, plan: UdpPlan) -> anyhow::Result<Handle> {
    let stop = Arc::new(Stop::new().context("no descriptor for a UDP worker")?);
    let theirs = stop.clone();
    let thread = std::thread::Builder::new()
        .name(format!("relay-udp-{number}"))
        .spawn(move || udp::run(plan, theirs))
        .context("no thread for a UDP worker")?;
    Ok(Handle { stop, thread })
}

fn admission(service: &Arc<Service>) -> Box<dyn Fn(IpAddr) -> bool + Send> {
    let service = service.clone();
    // The limits of a source and a rate are kept by the worker.
    Box::new(move |client| service.access.admits(client))
}

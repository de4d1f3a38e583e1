//! The UDP side of the running relay: a thread with a socket of every UDP listener, as many as there are TCP workers.
//!
//! A new configuration that changes UDP listeners starts new threads on the same sockets and leaves the old ones the
//! sessions they have; one that does not leaves the threads alone, so that sessions keep their ports.
use std::net::{IpAddr, UdpSocket};
use std::sync::Arc;
use std::thread::JoinHandle;

use anyhow::Context;
use parshall_core::relay::Ns;
use parshall_core::relay::balance::Balancer;

use super::directory::TargetState;
use super::room::Room;
use super::serve::Running;
use super::service::Service;
use super::udp;
use super::udp::plan::{Chooser, UdpCounts, UdpListener, UdpPlan};
use super::udp::stop::{Order, Stop};

/// The UDP threads.
#[derive(Debug, Default)]
pub struct UdpSide {
    threads: Vec<Handle>,
    /// Those of earlier configurations, until their sessions end.
    leaving: Vec<Handle>,
}

#[derive(Debug)]
struct Handle {
    stop: Arc<Stop>,
    thread: JoinHandle<std::io::Result<()>>,
}

/// Chooses by the rules of the configuration.
struct ByRules {
    balancer: Balancer,
    open: Vec<u32>,
    down: Vec<bool>,
    order: Vec<usize>,
}

impl Chooser for ByRules {
    fn choose(&mut self, client: IpAddr, targets: &[Arc<TargetState>], now: Ns) -> Option<usize> {
        self.down.clear();
        self.down.extend(targets.iter().map(|t| t.is_down()));
        self.balancer.order(now, client, &self.open, &self.down, &mut self.order);
        self.order.first().copied()
    }

    fn began(&mut self, target: usize) {
        self.open[target] += 1;
    }

    fn ended(&mut self, target: usize) {
        self.open[target] = self.open[target].saturating_sub(1);
    }

    fn answered(&mut self, target: usize) {
        self.balancer.succeeded(target);
    }

    fn failed(&mut self, target: usize, now: Ns) {
        self.balancer.failed(target, now);
    }
}

impl UdpSide {
    /// Starts threads for these listeners; the earlier ones keep their sessions until `drain_until`.
    pub fn serve(
        &mut self,
        running: &[Running],
        threads: usize,
        room: &Arc<Room>,
        drain_until: Ns,
    ) -> anyhow::Result<()> {
        for old in self.threads.drain(..) {
            old.stop.give(Order::HandOver(drain_until)).context("a UDP worker cannot be told")?;
            self.leaving.push(old);
        }
        self.leaving.retain(|old| !old.thread.is_finished());
        let threads = if running.is_empty() { 0 } else { threads };
        for number in 0..threads {
            let mut listeners = Vec::new();
            for listener in running {
                let Some(socket) = listener.sockets.get(number).and_then(|each| each.first()) else { continue };
                let socket = UdpSocket::from(socket.try_clone().context("no descriptor for a UDP worker")?);
                let mut one = UdpListener::new(
                    &listener.service.config,
                    socket,
                    listener.service.targets.clone(),
                    Box::new(chooser(&listener.service)),
                    admission(&listener.service),
                    listener.service.gate.room.clone(),
                );
                one.stats = listener.stats[number].clone();
                listeners.push(one);
            }
            let plan = UdpPlan { listeners, room: room.clone(), counts: Arc::new(UdpCounts::default()) };
            let stop = Arc::new(Stop::new().context("no descriptor for a UDP worker")?);
            let theirs = stop.clone();
            let thread = std::thread::Builder::new()
                .name(format!("relay-udp-{number}"))
                .spawn(move || udp::run(plan, theirs))
                .context("no thread for a UDP worker")?;
            self.threads.push(Handle { stop, thread });
        }
        Ok(())
    }

    /// Takes no new sessions; those open may go on until then.
    pub fn drain(&self, until: Ns) {
        for each in self.threads.iter().chain(&self.leaving) {
            // A thread that has ended has nothing to be told.
            each.stop.give(Order::Drain(until)).ok();
        }
    }

    /// Whether all threads have ended.
    pub fn ended(&self) -> bool {
        self.threads.iter().chain(&self.leaving).all(|each| each.thread.is_finished())
    }

    /// Waits for the threads to end.
    pub fn join(self) -> anyhow::Result<()> {
        for each in self.threads.into_iter().chain(self.leaving) {
            match each.thread.join() {
                Ok(result) => result.context("a UDP worker of the relay failed")?,
                Err(_) => anyhow::bail!("a UDP worker of the relay panicked"),
            }
        }
        Ok(())
    }
}

fn chooser(service: &Service) -> ByRules {
    let config = &service.config;
    ByRules {
        balancer: Balancer::new(config.balance, &config.targets, &config.health),
        open: vec![0; config.targets.len()],
        down: Vec::new(),
        order: Vec::new(),
    }
}

fn admission(service: &Arc<Service>) -> Box<dyn Fn(IpAddr) -> bool + Send> {
    let service = service.clone();
    // Caps are the worker's own here; only the rules of access are asked.
    Box::new(move |client| service.access.admits(client))
}

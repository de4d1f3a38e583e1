//! Active checks of targets: connections at intervals. `parshall_core::relay::checks` decides by their results.
use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use parshall_core::relay::checks::Checked;
use parshall_core::relay::config::{Check, Protocol};
use parshall_sys::clock::monotonic_ns;
use parshall_sys::limits::is_local;
use parshall_sys::stream_socket::StreamAddr;
use tokio::net::{TcpSocket, UnixStream};

use super::status::Status;
use super::task::Task;
use crate::service::Service;
use crate::service::balancing::{report_down, report_up};
use crate::service::target::TargetState;

/// A target and how it is checked.
#[derive(Debug)]
struct Subject {
    state: Arc<TargetState>,
    check: Check,
    source: Option<IpAddr>,
    /// Its name, for messages.
    listener: String,
    target: String,
}

#[derive(Debug)]
struct Running {
    subject: Arc<Subject>,
    _task: Task,
}

#[derive(Debug)]
pub struct Checks {
    status: Arc<Status>,
    running: HashMap<usize, Running>,
}

impl Checks {
    pub fn new(status: Arc<Status>) -> Self {
        Self { status, running: HashMap::new() }
    }

    /// Checks the targets of these services from now on, and no others. A check that does not change keeps its state.
    pub fn check(&mut self, services: &[Arc<Service>]) {
        let mut before = std::mem::take(&mut self.running);
        for service in services.iter().filter(|s| s.config.protocol == Protocol::Tcp) {
            let config = &service.config;
            let Some(check) = config.health.check else { continue };
            for (target, state) in config.targets.iter().zip(&service.targets) {
                let key = Arc::as_ptr(state) as usize;
                let same = |r: &Running| r.subject.check == check && r.subject.source == config.source;
                let running = before.remove(&key).filter(same).unwrap_or_else(|| {
                    let subject = Arc::new(Subject {
                        state: state.clone(),
                        check,
                        source: config.source,
                        listener: config.name.clone(),
                        target: target.endpoint.to_string(),
                    });
                    let task = Task(tokio::spawn(run(subject.clone(), self.status.clone())));
                    Running { subject, _task: task }
                });
                self.running.insert(key, running);
            }
        }
        // A target without checks must not stay down.
        for gone in before.into_values() {
            if !self.running.contains_key(&(Arc::as_ptr(&gone.subject.state) as usize)) {
                gone.subject.state.set_down(false);
            }
        }
    }
}

fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}

async fn run(subject: Arc<Subject>, status: Arc<Status>) {
    let mut checked = Checked::new(subject.check, monotonic_ns(), random());
    subject.state.set_down(false);
    loop {
        tokio::time::sleep(Duration::from_nanos(checked.due().saturating_sub(monotonic_ns()))).await;
        let outcome = connect(&subject).await;
        let now = monotonic_ns();
        if outcome.as_ref().is_err_and(|failure| failure.local) {
            checked.skip(now, random());
            continue;
        }
        if outcome.is_err() {
            status.checks_failed.add();
        }
        if let Some(up) = checked.result(now, outcome.is_ok(), random()) {
            subject.state.set_down(!up);
            match outcome {
                Ok(()) => report_up(&subject.listener, &subject.target, &subject.state, now),
                Err(failure) => report_down(&subject.listener, &subject.target, &subject.state, now, &failure.why),
            }
        }
    }
}

/// Why a check has failed.
struct Failure {
    why: String,
    /// No address was tried, for want of descriptors, memory or local ports.
    local: bool,
}

/// Connects to one of the target's addresses; the error is that of the last one.
async fn connect(subject: &Subject) -> Result<(), Failure> {
    let addresses = subject.state.addresses();
    // Each address gets an equal part of the timeout, so that one that does not answer leaves time for the others.
    let share = subject.check.timeout / u32::try_from(addresses.len()).unwrap_or(u32::MAX).max(1);
    let mut why = "its name has no address".to_owned();
    let mut local = !addresses.is_empty();
    for address in addresses.iter() {
        match tokio::time::timeout(share, connect_to(address, subject.source)).await {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(error)) => {
                local &= matches!(address, StreamAddr::Ip(_)) && is_local(&error);
                why = error.to_string();
            }
            Err(_) => {
                local = false;
                why = format!("no answer within {} s", share.as_secs_f64());
            }
        }
    }
    Err(Failure { why, local })
}

async fn connect_to(address: &StreamAddr, source: Option<IpAddr>) -> std::io::Result<()> {
    match address {
        StreamAddr::Ip(ip) => connect_ip(*ip, source).await,
        StreamAddr::Unix(path) => {
            // An abstract name begins with a zero byte.
            let path = path.strip_prefix('@').map_or_else(|| path.clone(), |name| format!("\0{name}"));
            UnixStream::connect(path).await.map(drop)
        }
    }
}

async fn connect_ip(to: SocketAddr, source: Option<IpAddr>) -> std::io::Result<()> {
    let socket = if to.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    if let Some(source) = source.filter(|s| s.is_ipv4() == to.is_ipv4()) {
        socket.bind(SocketAddr::new(source, 0))?;
    }
    socket.connect(to).await.map(drop)
}

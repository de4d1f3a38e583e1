//! Resolves the names of targets, and looks them up again when their TTL expires. A name whose lookup fails keeps its
//! addresses and is looked up again after a pause that doubles.
use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use hickory_resolver::TokioResolver;
use hickory_resolver::config::{ConnectionConfig, LookupIpStrategy, NameServerConfig, ResolverConfig, ResolverOpts};
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use parshall_core::relay::config::Endpoint;
use parshall_core::relay::connection::happy_eyeballs::interleave;
use parshall_sys::stream_socket::StreamAddr;
use tokio::task::JoinSet;

use super::status::Status;
use super::task::Task;
use crate::own_address::leads_back;
use crate::service::Service;
use crate::service::target::TargetState;

/// The shortest time between two lookups: a TTL of zero must not make a loop.
const TTL_MIN: Duration = Duration::from_secs(1);
/// The longest time between two lookups. Changes of /etc/hosts are read at a reload.
const TTL_MAX: Duration = Duration::from_secs(86_400);
/// The pause after the first failure, and the longest.
const RETRY_MIN: Duration = Duration::from_secs(1);
const RETRY_MAX: Duration = Duration::from_secs(60);
/// The timeout of one lookup, including its retries.
const UDP_POLLUP_MAX: Duration = Duration::from_secs(12);
/// The variable with the `ADDRESS:PORT` of a name server to use instead of the host's; for tests.
const NAMESERVER: &str = "PARSHALL_RELAY_NAMESERVER";

/// The results of looking up names that had no address yet.
#[derive(Debug, Default)]
pub struct Resolved(HashMap<String, Result<Addresses, String>>);

#[derive(Debug)]
struct Addresses {
    ips: Vec<IpAddr>,
    /// When they expire.
    until: Instant,
}

impl Resolved {
    /// The names without an address, each with the resolver's error.
    pub fn unresolved(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().filter_map(|(name, outcome)| Some((name.as_str(), outcome.as_ref().err()?.as_str())))
    }

    /// The resolver's error for a name.
    pub fn why(&self, name: &str) -> Option<&str> {
        self.0.get(name)?.as_ref().err().map(String::as_str)
    }
}

/// The names among a service's targets.
pub fn names(service: &Service) -> impl Iterator<Item = (&str, NamedTarget)> {
    service.config.targets.iter().zip(&service.targets).filter_map(|(target, state)| match &target.endpoint {
        Endpoint::Name(name, port) => {
            let listener = (service.config.name.clone(), service.bound);
            Some((name.as_str(), NamedTarget { state: state.clone(), port: *port, listener }))
        }
        _ => None,
    })
}

/// A target whose address is a name.
#[derive(Debug, Clone)]
pub struct NamedTarget {
    state: Arc<TargetState>,
    port: u16,
    /// The name of its listener, and the address that this is bound to.
    listener: (String, Option<SocketAddr>),
}

impl NamedTarget {
    /// Sets the addresses but those of the listener itself: one connection would open connections without end.
    fn set_addresses(&self, addresses: &[IpAddr]) {
        let all = addresses.iter().map(|ip| SocketAddr::new(*ip, self.port));
        let (name, bound) = &self.listener;
        let (own, others): (Vec<_>, Vec<_>) = all.partition(|to| bound.is_some_and(|bound| leads_back(bound, *to)));
        if let (Some(first), true) = (own.first(), self.state.leads_back(!own.is_empty())) {
            tracing::warn!(
                "{name}: a target's name leads to {first}, which is this listener: that address is left out"
            );
        }
        self.state.set_addresses(others.into_iter().map(StreamAddr::Ip).collect());
    }
}

/// The targets of a name and its last addresses.
#[derive(Debug, Default)]
struct Known {
    targets: Vec<NamedTarget>,
    addresses: Option<Vec<IpAddr>>,
}

#[derive(Debug)]
struct Refreshed {
    known: Arc<Mutex<Known>>,
    _task: Task,
}

/// The names that are looked up again when they expire.
#[derive(Debug)]
pub struct Names {
    status: Arc<Status>,
    refreshed: HashMap<String, Refreshed>,
}

impl Names {
    pub fn new(status: Arc<Status>) -> Self {
        Self { status, refreshed: HashMap::new() }
    }

    /// Looks up the names of these services that have no address, all at the same time, and sets the addresses of their
    /// targets. The names that are refreshed do not change.
    pub fn resolve(&self, services: &[Arc<Service>]) -> impl Future<Output = Resolved> + use<> {
        let mut unresolved_names: HashMap<String, Vec<NamedTarget>> = HashMap::new();
        for (name, target) in services.iter().flat_map(|s| names(s)) {
            match self.refreshed.get(name).and_then(|f| lock(&f.known).addresses.clone()) {
                Some(ips) => target.set_addresses(&ips),
                None => unresolved_names.entry(name.to_owned()).or_default().push(target),
            }
        }
        let status = self.status.clone();
        async move {
            let found = look_up_all(unresolved_names.keys()).await;
            for (name, outcome) in &found {
                match outcome {
                    Ok(addresses) => {
                        unresolved_names[name].iter().for_each(|target| target.set_addresses(&addresses.ips))
                    }
                    Err(_) => status.lookups_failed.add(),
                }
            }
            Resolved(found)
        }
    }

    /// Refreshes the names of these services from now on, and no others. Names that were refreshed before are looked up at
    /// once with the host's present configuration; the others when `resolved` expires.
    pub fn refresh(&mut self, services: &[Arc<Service>], mut resolved: Resolved) {
        let mut wanted: HashMap<String, Vec<NamedTarget>> = HashMap::new();
        for (name, target) in services.iter().flat_map(|s| names(s)) {
            wanted.entry(name.to_owned()).or_default().push(target);
        }
        let before = std::mem::take(&mut self.refreshed);
        if wanted.is_empty() {
            return;
        }
        let resolver = match resolver() {
            Ok(resolver) => Arc::new(resolver),
            Err(why) => return tracing::warn!("names are not looked up again: {why}"),
        };
        for (name, targets) in wanted {
            let last = before.get(&name).and_then(|f| lock(&f.known).addresses.clone());
            let (addresses, pause, failures) = match resolved.0.remove(&name) {
                Some(Ok(new)) => {
                    let left = new.until.saturating_duration_since(Instant::now());
                    (Some(new.ips), left.clamp(TTL_MIN, TTL_MAX), 0)
                }
                Some(Err(_)) => (last, retry_after(1), 1),
                None => (last, Duration::ZERO, 0),
            };
            targets.iter().zip(addresses.iter().cycle()).for_each(|(target, ips)| target.set_addresses(ips));
            let known = Arc::new(Mutex::new(Known { targets, addresses }));
            let task =
                refresh_name(resolver.clone(), name.clone(), known.clone(), self.status.clone(), pause, failures);
            self.refreshed.insert(name, Refreshed { known, _task: Task(tokio::spawn(task)) });
        }
    }
}

/// Looks up all of these names at the same time.
async fn look_up_all(names: impl ExactSizeIterator<Item = &String>) -> HashMap<String, Result<Addresses, String>> {
    if names.len() == 0 {
        return HashMap::new();
    }
    let resolver = match resolver() {
        Ok(resolver) => Arc::new(resolver),
        Err(why) => return names.map(|name| (name.clone(), Err(why.clone()))).collect(),
    };
    let mut lookups = JoinSet::new();
    for name in names {
        let (resolver, name) = (resolver.clone(), name.clone());
        lookups.spawn(async move {
            let outcome = look_up(&resolver, &name).await;
            (name, outcome)
        });
    }
    // Each lookup has its own timeout.
    lookups.join_all().await.into_iter().collect()
}

fn lock(known: &Mutex<Known>) -> std::sync::MutexGuard<'_, Known> {
    known.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Looks up a name after a pause, and again whenever it expires. `failures` is the number of failures in a row so far.
async fn refresh_name(
    resolver: Arc<TokioResolver>,
    name: String,
    known: Arc<Mutex<Known>>,
    status: Arc<Status>,
    mut pause: Duration,
    mut failures: u32,
) {
    loop {
        tokio::time::sleep(pause).await;
        pause = match look_up(&resolver, &name).await {
            Ok(Addresses { ips, until }) => {
                let before = {
                    let mut known = lock(&known);
                    known.targets.iter().for_each(|target| target.set_addresses(&ips));
                    known.addresses.replace(ips)
                };
                if std::mem::take(&mut failures) > 0 {
                    let when = if before.is_some() { "again" } else { "now" };
                    tracing::info!("the name {name} has an address {when}");
                }
                until.saturating_duration_since(Instant::now()).clamp(TTL_MIN, TTL_MAX)
            }
            Err(why) => {
                status.lookups_failed.add();
                if failures == 0 {
                    tracing::warn!("the name {name} cannot be resolved: {why}; its last addresses stay in use");
                }
                failures = failures.saturating_add(1);
                retry_after(failures)
            }
        };
    }
}

/// The pause after this many failures in a row.
fn retry_after(failures: u32) -> Duration {
    RETRY_MIN.saturating_mul(1 << failures.saturating_sub(1).min(10)).min(RETRY_MAX)
}

async fn look_up(resolver: &TokioResolver, name: &str) -> Result<Addresses, String> {
    let answer = match tokio::time::timeout(UDP_POLLUP_MAX, resolver.lookup_ip(name)).await {
        Ok(Ok(answer)) => answer,
        Ok(Err(e)) if e.is_no_records_found() => return Err("it has no address".to_owned()),
        Ok(Err(e)) => return Err(e.to_string()),
        Err(_) => return Err("no answer in time".to_owned()),
    };
    let ips = in_order_of_attempts(answer.iter());
    if ips.is_empty() {
        return Err("it has no address".to_owned());
    }
    Ok(Addresses { ips, until: answer.valid_until() })
}

/// Each address once, the families in turns: where one of them has no route, only every second attempt waits for it.
fn in_order_of_attempts(answers: impl Iterator<Item = IpAddr>) -> Vec<IpAddr> {
    let mut ips = Vec::new();
    for ip in answers {
        if !ips.contains(&ip) {
            ips.push(ip);
        }
    }
    interleave(&mut ips, IpAddr::is_ipv6);
    ips
}

/// A resolver with the host's configuration: /etc/resolv.conf and /etc/hosts.
fn resolver() -> Result<TokioResolver, String> {
    let (config, options) = match std::env::var(NAMESERVER) {
        Ok(address) => (only(address.parse().map_err(|_| format!("{NAMESERVER} is no address and port"))?), None),
        Err(_) => match hickory_resolver::system_conf::read_system_conf() {
            Ok((config, options)) => (config, Some(options)),
            // Without name servers /etc/hosts is still used.
            Err(_) => (ResolverConfig::from_parts(None, Vec::new(), Vec::new()), None),
        },
    };
    let mut options = options.unwrap_or_else(ResolverOpts::default);
    options.ip_strategy = LookupIpStrategy::Ipv6AndIpv4;
    // Answers are kept in `Names` until they expire.
    options.cache_size = 0;
    let builder = TokioResolver::builder_with_config(config, TokioRuntimeProvider::default()).with_options(options);
    builder.build().map_err(|e| e.to_string())
}

fn only(server: SocketAddr) -> ResolverConfig {
    let mut connection = ConnectionConfig::udp();
    connection.port = server.port();
    ResolverConfig::from_name_servers(vec![NameServerConfig::new(server.ip(), true, vec![connection])])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_to_a_minute() {
        let pauses: Vec<u64> = (1..9).map(|n| retry_after(n).as_secs()).collect();
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 60, 60]);
        assert_eq!(retry_after(u32::MAX), RETRY_MAX);
    }

    #[test]
    fn the_families_of_addresses_take_turns() {
        let ips = |text: &str| text.split(' ').map(|ip| ip.parse::<IpAddr>().expect("an address")).collect::<Vec<_>>();
        let answers = ips("2001:db8::1 2001:db8::2 2001:db8::1 192.0.2.1 192.0.2.2");
        let expected = ips("2001:db8::1 192.0.2.1 2001:db8::2 192.0.2.2");
        assert_eq!(in_order_of_attempts(answers.into_iter()), expected);
    }
}

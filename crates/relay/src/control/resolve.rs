//! Names of targets: asked for again when their answers expire (TTL). A name that cannot be resolved keeps the addresses
//! it has, and is asked for again after a pause that doubles.
use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use hickory_resolver::TokioResolver;
use hickory_resolver::config::{ConnectionConfig, LookupIpStrategy, NameServerConfig, ResolverConfig, ResolverOpts};
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use parshall_core::relay::config::Endpoint;
use parshall_sys::stream_socket::StreamAddr;
use tokio::task::JoinSet;

use super::Task;
use super::board::Board;
use crate::service::Service;
use crate::service::target::TargetState;

/// A TTL of zero must not make a loop of lookups.
const TTL_MIN: Duration = Duration::from_secs(1);
/// An answer for weeks is still asked for once a day; what /etc/hosts says is read again at a reload.
const TTL_MAX: Duration = Duration::from_secs(86_400);
/// The pause after a failure, and the longest.
const RETRY_MIN: Duration = Duration::from_secs(1);
const RETRY_MAX: Duration = Duration::from_secs(60);
/// For one lookup, all its attempts included.
const LOOKUP_MAX: Duration = Duration::from_secs(12);
/// `ADDRESS:PORT` of the name server to ask instead of the host's; for tests.
const NAMESERVER: &str = "PARSHALL_RELAY_NAMESERVER";

/// What was found of names that had no address yet.
#[derive(Debug, Default)]
pub struct Found(HashMap<String, Result<Addresses, String>>);

#[derive(Debug)]
struct Addresses {
    ips: Vec<IpAddr>,
    /// When they expire.
    until: Instant,
}

impl Found {
    /// The names without an address, each with what the resolver said.
    pub fn unresolved(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().filter_map(|(name, outcome)| Some((name.as_str(), outcome.as_ref().err()?.as_str())))
    }

    /// Why a name has no address.
    pub fn why(&self, name: &str) -> Option<&str> {
        self.0.get(name)?.as_ref().err().map(String::as_str)
    }
}

/// The names among a service's targets, each with its port and what is to be told.
pub fn names(service: &Service) -> impl Iterator<Item = (&str, User)> {
    service.config.targets.iter().zip(&service.targets).filter_map(|(target, state)| match &target.endpoint {
        Endpoint::Name(name, port) => Some((name.as_str(), User { state: state.clone(), port: *port })),
        _ => None,
    })
}

/// A target that has a name.
#[derive(Debug, Clone)]
pub struct User {
    state: Arc<TargetState>,
    port: u16,
}

impl User {
    fn tell(&self, addresses: &[IpAddr]) {
        self.state.set_addresses(addresses.iter().map(|ip| StreamAddr::Ip(SocketAddr::new(*ip, self.port))).collect());
    }
}

/// What is known of a name.
#[derive(Debug, Default)]
struct Known {
    users: Vec<User>,
    addresses: Option<Vec<IpAddr>>,
}

#[derive(Debug)]
struct Followed {
    known: Arc<Mutex<Known>>,
    _task: Task,
}

/// All names that are followed.
#[derive(Debug)]
pub struct Names {
    board: Arc<Board>,
    followed: HashMap<String, Followed>,
}

impl Names {
    /// None yet.
    pub fn new(board: Arc<Board>) -> Self {
        Self { board, followed: HashMap::new() }
    }

    /// Asks for the names of these services that have no address, all at once, and gives the targets what is found. Whatever
    /// is followed goes on.
    pub fn ask(&self, services: &[Arc<Service>]) -> impl Future<Output = Found> + use<> {
        let mut lacking: HashMap<String, Vec<User>> = HashMap::new();
        for (name, user) in services.iter().flat_map(|s| names(s)) {
            match self.followed.get(name).and_then(|f| lock(&f.known).addresses.clone()) {
                Some(ips) => user.tell(&ips),
                None => lacking.entry(name.to_owned()).or_default().push(user),
            }
        }
        let board = self.board.clone();
        async move {
            let found = look_up_all(lacking.keys()).await;
            for (name, outcome) in &found {
                match outcome {
                    Ok(addresses) => lacking[name].iter().for_each(|user| user.tell(&addresses.ips)),
                    Err(_) => board.lookups_failed.add(),
                }
            }
            Found(found)
        }
    }

    /// Follows the names of these services from now on, and no others. Those that were followed before are asked for anew,
    /// by the host's configuration as it is now; the others when what was found of them expires.
    pub fn follow(&mut self, services: &[Arc<Service>], mut found: Found) {
        let mut wanted: HashMap<String, Vec<User>> = HashMap::new();
        for (name, user) in services.iter().flat_map(|s| names(s)) {
            wanted.entry(name.to_owned()).or_default().push(user);
        }
        let before = std::mem::take(&mut self.followed);
        if wanted.is_empty() {
            return;
        }
        let resolver = match resolver() {
            Ok(resolver) => Arc::new(resolver),
            Err(why) => return tracing::warn!("names are not asked for again: {why}"),
        };
        for (name, users) in wanted {
            let last = before.get(&name).and_then(|f| lock(&f.known).addresses.clone());
            let (addresses, pause, failures) = match found.0.remove(&name) {
                Some(Ok(new)) => {
                    let left = new.until.saturating_duration_since(Instant::now());
                    (Some(new.ips), left.clamp(TTL_MIN, TTL_MAX), 0)
                }
                Some(Err(_)) => (last, retry_after(1), 1),
                None => (last, Duration::ZERO, 0),
            };
            users.iter().zip(addresses.iter().cycle()).for_each(|(user, ips)| user.tell(ips));
            let known = Arc::new(Mutex::new(Known { users, addresses }));
            let task = follow_one(resolver.clone(), name.clone(), known.clone(), self.board.clone(), pause, failures);
            self.followed.insert(name, Followed { known, _task: Task(tokio::spawn(task)) });
        }
    }
}

/// Asks for all of these names at once.
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
    // Each has its own bound on time.
    lookups.join_all().await.into_iter().collect()
}

fn lock(known: &Mutex<Known>) -> std::sync::MutexGuard<'_, Known> {
    known.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Asks for a name after a pause, and then again and again. `failures`: in a row, so far.
async fn follow_one(
    resolver: Arc<TokioResolver>,
    name: String,
    known: Arc<Mutex<Known>>,
    board: Arc<Board>,
    mut pause: Duration,
    mut failures: u32,
) {
    loop {
        tokio::time::sleep(pause).await;
        pause = match look_up(&resolver, &name).await {
            Ok(Addresses { ips, until }) => {
                {
                    let mut known = lock(&known);
                    known.users.iter().for_each(|user| user.tell(&ips));
                    known.addresses = Some(ips);
                }
                if std::mem::take(&mut failures) > 0 {
                    tracing::info!("the name {name} has an address again");
                }
                until.saturating_duration_since(Instant::now()).clamp(TTL_MIN, TTL_MAX)
            }
            Err(why) => {
                board.lookups_failed.add();
                if failures == 0 {
                    tracing::warn!("the name {name} cannot be resolved: {why}; its last addresses stay in use");
                }
                failures = failures.saturating_add(1);
                retry_after(failures)
            }
        };
    }
}

/// The pause after so many failures in a row.
fn retry_after(failures: u32) -> Duration {
    RETRY_MIN.saturating_mul(1 << failures.saturating_sub(1).min(10)).min(RETRY_MAX)
}

/// The addresses of a name.
async fn look_up(resolver: &TokioResolver, name: &str) -> Result<Addresses, String> {
    let answer = match tokio::time::timeout(LOOKUP_MAX, resolver.lookup_ip(name)).await {
        Ok(Ok(answer)) => answer,
        Ok(Err(e)) if e.is_no_records_found() => return Err("it has no address".to_owned()),
        Ok(Err(e)) => return Err(e.to_string()),
        Err(_) => return Err("no answer in time".to_owned()),
    };
    let mut ips = Vec::new();
    for ip in answer.iter() {
        if !ips.contains(&ip) {
            ips.push(ip);
        }
    }
    if ips.is_empty() {
        return Err("it has no address".to_owned());
    }
    Ok(Addresses { ips, until: answer.valid_until() })
}

/// A resolver as the host configures it: /etc/resolv.conf and /etc/hosts.
fn resolver() -> Result<TokioResolver, String> {
    let (config, options) = match std::env::var(NAMESERVER) {
        Ok(address) => (only(address.parse().map_err(|_| format!("{NAMESERVER} is no address and port"))?), None),
        Err(_) => match hickory_resolver::system_conf::read_system_conf() {
            Ok((config, options)) => (config, Some(options)),
            // Without name servers /etc/hosts is still there.
            Err(_) => (ResolverConfig::from_parts(None, Vec::new(), Vec::new()), None),
        },
    };
    let mut options = options.unwrap_or_else(ResolverOpts::default);
    options.ip_strategy = LookupIpStrategy::Ipv6AndIpv4;
    // The answers are kept here, until they expire.
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
}

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
use tokio::sync::oneshot;

use super::control::Task;
use super::control::board::Board;
use super::directory::TargetState;
use super::service::Service;

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

/// A name without an address, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unresolved {
    /// The name.
    pub name: String,
    /// What the resolver said.
    pub why: String,
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

    /// Follows the names of these services from now on, and no others; all are asked for anew. Waits until each name
    /// without an address was asked for once, at most `patience`, and answers which have none.
    pub async fn follow(&mut self, services: &[Arc<Service>], patience: Duration) -> Vec<Unresolved> {
        let mut wanted: HashMap<String, Vec<User>> = HashMap::new();
        for (name, user) in services.iter().flat_map(|s| names(s)) {
            wanted.entry(name.to_owned()).or_default().push(user);
        }
        let mut before = std::mem::take(&mut self.followed);
        if wanted.is_empty() {
            return Vec::new();
        }
        let resolver = match resolver() {
            Ok(resolver) => Arc::new(resolver),
            Err(why) => return wanted.into_keys().map(|name| Unresolved { name, why: why.clone() }).collect(),
        };
        let mut first = Vec::new();
        for (name, users) in wanted {
            let addresses = before.remove(&name).and_then(|f| lock(&f.known).addresses.clone());
            users.iter().zip(addresses.iter().cycle()).for_each(|(user, addresses)| user.tell(addresses));
            let is_new = addresses.is_none();
            let known = Arc::new(Mutex::new(Known { users, addresses }));
            let (answer, answered) = oneshot::channel();
            let task = follow_one(resolver.clone(), name.clone(), known.clone(), self.board.clone(), answer);
            let task = Task(tokio::spawn(task));
            self.followed.insert(name.clone(), Followed { known, _task: task });
            if is_new {
                first.push((name, answered));
            }
        }
        let end = tokio::time::Instant::now() + patience;
        let mut unresolved = Vec::new();
        for (name, answered) in first {
            let why = match tokio::time::timeout_at(end, answered).await {
                Ok(Ok(Ok(()))) => continue,
                Ok(Ok(Err(why))) => why,
                Ok(Err(_)) | Err(_) => "no answer in time".to_owned(),
            };
            unresolved.push(Unresolved { name, why });
        }
        unresolved
    }
}

fn lock(known: &Mutex<Known>) -> std::sync::MutexGuard<'_, Known> {
    known.lock().unwrap_or_else(PoisonError::into_inner)
}

type Answer = Result<(), String>;

async fn follow_one(
    resolver: Arc<TokioResolver>,
    name: String,
    known: Arc<Mutex<Known>>,
    board: Arc<Board>,
    first: oneshot::Sender<Answer>,
) {
    let mut first = Some(first);
    let mut failures = 0_u32;
    loop {
        let outcome = look_up(&resolver, &name).await;
        let pause = match &outcome {
            Ok((addresses, ttl)) => {
                if std::mem::take(&mut failures) > 0 {
                    eprintln!("relay: the name {name} has an address again");
                }
                let mut known = lock(&known);
                known.users.iter().for_each(|user| user.tell(addresses));
                known.addresses = Some(addresses.clone());
                (*ttl).clamp(TTL_MIN, TTL_MAX)
            }
            Err(why) => {
                board.lookups_failed.add();
                // The first failure of a start or reload is told there.
                if failures == 0 && first.is_none() {
                    eprintln!("relay: the name {name} cannot be resolved: {why}; its last addresses stay in use");
                }
                failures = failures.saturating_add(1);
                retry_after(failures)
            }
        };
        if let Some(first) = first.take() {
            // It may have waited long enough.
            first.send(outcome.map(drop)).ok();
        }
        tokio::time::sleep(pause).await;
    }
}

/// The pause after so many failures in a row.
fn retry_after(failures: u32) -> Duration {
    RETRY_MIN.saturating_mul(1 << failures.saturating_sub(1).min(10)).min(RETRY_MAX)
}

/// The addresses of a name, and for how long they hold.
async fn look_up(resolver: &TokioResolver, name: &str) -> Result<(Vec<IpAddr>, Duration), String> {
    let answer = match tokio::time::timeout(LOOKUP_MAX, resolver.lookup_ip(name)).await {
        Ok(Ok(answer)) => answer,
        Ok(Err(e)) if e.is_no_records_found() => return Err("it has no address".to_owned()),
        Ok(Err(e)) => return Err(e.to_string()),
        Err(_) => return Err("no answer in time".to_owned()),
    };
    let mut addresses = Vec::new();
    for ip in answer.iter() {
        if !addresses.contains(&ip) {
            addresses.push(ip);
        }
    }
    if addresses.is_empty() {
        return Err("it has no address".to_owned());
    }
    Ok((addresses, answer.valid_until().saturating_duration_since(Instant::now())))
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

//! Looks up the names of endpoints, on threads of their own: the resolver of the C library waits for name servers, many seconds where
//! none answers.
use std::collections::VecDeque;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::{Duration, Instant};

use parshall_core::tunnel::HostPort;

/// Names that are looked up at once.
const THREADS: usize = 4;

/// The addresses of a name; none if it is not found.
fn addresses(name: &HostPort) -> Vec<SocketAddr> {
    match (name.host.as_str(), name.port).to_socket_addrs() {
        Ok(found) => found.collect(),
        Err(error) => {
            tracing::warn!(%error, "the endpoint {name} is not found; it is asked for again");
            Vec::new()
        }
    }
}

/// Looks up names side by side, for at most `limit`. Returns those that were found by then with their first addresses.
pub fn first_addresses(names: Vec<HostPort>, limit: Duration) -> Vec<(HostPort, SocketAddr)> {
    let begun = Instant::now();
    let threads = names.len().min(THREADS);
    let (queue, (found, answers)) = (Arc::new(Mutex::new(VecDeque::from(names))), mpsc::channel());
    for _ in 0..threads {
        let (queue, found) = (Arc::clone(&queue), found.clone());
        // A thread that waits for a name server ends with the process.
        std::thread::spawn(move || {
            let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
            while let Some(name) = next() {
                let addresses = addresses(&name);
                if found.send((name, addresses.first().copied())).is_err() {
                    return;
                }
            }
        });
    }
    drop(found);
    let mut all = Vec::new();
    while let Ok((name, address)) = answers.recv_timeout(limit.saturating_sub(begun.elapsed())) {
        all.extend(address.map(|address| (name, address)));
    }
    all
}

/// Threads that look up names. They begin with the first name, and end when this is dropped and they have their answers.
pub struct Resolver<T> {
    queue: Option<mpsc::Sender<(HostPort, T)>>,
    answer: Arc<dyn Fn(T, Vec<SocketAddr>) + Send + Sync>,
}

impl<T: Send + 'static> Resolver<T> {
    /// `answer` is called with what belongs to a name and with its addresses.
    pub fn new(answer: impl Fn(T, Vec<SocketAddr>) + Send + Sync + 'static) -> Self {
        Self { queue: None, answer: Arc::new(answer) }
    }

    /// Looks a name up.
    pub fn look_up(&mut self, name: HostPort, about: T) {
        let answer = &self.answer;
        let queue = self.queue.get_or_insert_with(|| start(answer));
        // The threads end only after this sender.
        let _ = queue.send((name, about));
    }
}

fn start<T: Send + 'static>(answer: &Arc<dyn Fn(T, Vec<SocketAddr>) + Send + Sync>) -> mpsc::Sender<(HostPort, T)> {
    let (queue, names) = mpsc::channel::<(HostPort, T)>();
    let names = Arc::new(Mutex::new(names));
    for _ in 0..THREADS {
        let (names, answer) = (Arc::clone(&names), Arc::clone(answer));
        std::thread::spawn(move || {
            let next = || names.lock().unwrap_or_else(PoisonError::into_inner).recv();
            while let Ok((name, about)) = next() {
                answer(about, addresses(&name));
            }
        });
    }
    queue
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(host: &str) -> HostPort {
        HostPort { host: host.to_owned(), port: 7 }
    }

    #[test]
    fn names_are_looked_up_side_by_side_and_those_that_are_not_found_are_left_out() {
        let mut names: Vec<_> = (1..20).map(|n| name(&format!("127.0.0.{n}"))).collect();
        names.push(name("no such name"));
        let mut found = first_addresses(names, Duration::from_secs(60));
        found.sort_unstable_by_key(|(_, address)| *address);
        let expected: Vec<SocketAddr> = (1..20).map(|n| SocketAddr::from(([127, 0, 0, n], 7))).collect();
        assert_eq!(found.into_iter().map(|(_, address)| address).collect::<Vec<_>>(), expected);
        assert!(first_addresses(Vec::new(), Duration::from_secs(60)).is_empty());
    }

    #[test]
    fn every_question_is_answered() {
        let (answer, answers) = mpsc::channel();
        let mut resolver = Resolver::new(move |about, addresses: Vec<SocketAddr>| {
            answer.send((about, addresses.len())).unwrap();
        });
        resolver.look_up(name("127.0.0.1"), "known");
        resolver.look_up(name("no such name"), "unknown");
        let mut all: Vec<(&str, usize)> = answers.iter().take(2).collect();
        all.sort_unstable();
        assert_eq!(all, [("known", 1), ("unknown", 0)]);
    }
}

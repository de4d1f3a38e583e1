//! Names of targets, which a name server of the test resolves, and checks of targets.
use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::kit::{Relay, Service, exchange, get, listener, until, unused_address, value};

/// A name server for IPv4 addresses with a TTL of a second. A name without an address gets SERVFAIL.
struct NameServer {
    address: SocketAddr,
    names: Arc<Mutex<HashMap<String, Option<Ipv4Addr>>>>,
    /// The number of queries so far.
    queries: Arc<AtomicU64>,
    /// While it is set, queries are not answered.
    holding: Arc<AtomicBool>,
}

impl NameServer {
    fn start() -> Self {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let address = socket.local_addr().unwrap();
        let names: Arc<Mutex<HashMap<String, Option<Ipv4Addr>>>> = Arc::default();
        let known = names.clone();
        let (queries, holding) = <(Arc<AtomicU64>, Arc<AtomicBool>)>::default();
        let (count, holds) = (queries.clone(), holding.clone());
        // The thread ends with the process.
        std::thread::spawn(move || {
            let mut query = [0; 1500];
            while let Ok((n, from)) = socket.recv_from(&mut query) {
                count.fetch_add(1, Ordering::SeqCst);
                while holds.load(Ordering::SeqCst) {
                    std::thread::sleep(Duration::from_millis(5));
                }
                if let Some(reply) = reply(&query[..n], &known.lock().unwrap()) {
                    socket.send_to(&reply, from).ok();
                }
            }
        });
        Self { address, names, queries, holding }
    }

    /// A name server that answers only after [`Self::answer`].
    fn holding() -> Self {
        let server = Self::start();
        server.holding.store(true, Ordering::SeqCst);
        server
    }

    fn answer(&self) {
        self.holding.store(false, Ordering::SeqCst);
    }

    /// Waits for the first query.
    fn wait_for_query(&self) {
        until("a query arrives", || self.queries.load(Ordering::SeqCst) > 0);
    }

    fn set(&self, name: &str, service: Option<&Service>) {
        match service {
            Some(service) => self.set_address(name, service.address),
            None => drop(self.names.lock().unwrap().insert(name.to_owned(), None)),
        }
    }

    fn set_address(&self, name: &str, address: SocketAddr) {
        let SocketAddr::V4(address) = address else { unreachable!("the kit's addresses are IPv4") };
        self.names.lock().unwrap().insert(name.to_owned(), Some(*address.ip()));
    }

    fn use_in(&self, command: &mut Command) {
        command.env("PARSHALL_RELAY_NAMESERVER", self.address.to_string());
    }
}

/// A reply (RFC 1035): the header, the question, and an answer with a pointer to the name in the question.
fn reply(query: &[u8], names: &HashMap<String, Option<Ipv4Addr>>) -> Option<Vec<u8>> {
    let mut labels = Vec::new();
    let mut at = 12;
    while *query.get(at)? > 0 {
        let end = at + 1 + usize::from(query[at]);
        labels.push(String::from_utf8_lossy(query.get(at + 1..end)?).to_lowercase());
        at = end;
    }
    let question = query.get(12..at + 5)?;
    let is_a = query.get(at + 1..at + 3)? == [0, 1];
    let (code, answer) = match names.get(&labels.join(".")) {
        None => (3, None),
        Some(None) => (2, None),
        Some(Some(ip)) => (0, is_a.then_some(*ip)),
    };
    let mut reply = [&query[..2], &[0x81, 0x80 | code, 0, 1, 0, u8::from(answer.is_some()), 0, 0, 0, 0]].concat();
    reply.extend_from_slice(question);
    if let Some(ip) = answer {
        reply.extend_from_slice(&[0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 1, 0, 4]);
        reply.extend_from_slice(&ip.octets());
    }
    Some(reply)
}

fn to_name(listen: SocketAddr, targets: &[&str]) -> String {
    let targets: Vec<String> = targets.iter().map(|t| format!("\"{t}:7000\"")).collect();
    format!("[[listener]]\nname = \"a\"\nlisten = \"{listen}\"\ntargets = [{}]\n", targets.join(", "))
}

#[test]
fn a_changed_address_is_used_and_a_failed_lookup_keeps_the_last_one() {
    let server = NameServer::start();
    let (one, two) = (Service::start("one"), Service::start("two"));
    let (listen, metrics) = (unused_address(), unused_address());
    server.set("svc.test", Some(&one));
    let config = format!("metrics = \"{metrics}\"\n{}", to_name(listen, &["svc.test"]));
    let relay = Relay::start_with(&config, |c| server.use_in(c));
    assert_eq!(exchange(listen).unwrap(), "one");
    server.set("svc.test", Some(&two));
    until("the new address is used", || exchange(listen).unwrap() == "two");
    server.set("svc.test", None);
    relay.wait_for("the name svc.test cannot be resolved", 1);
    assert_eq!(exchange(listen).unwrap(), "two", "the last address stays in use");
    assert!(value(&get(metrics, "/metrics").unwrap().1, &["lookups_failed_total"]) >= 1.0);
    server.set("svc.test", Some(&one));
    relay.wait_for("the name svc.test has an address again", 1);
    until("the address is used again", || exchange(listen).unwrap() == "one");
    assert_eq!(relay.count("cannot be resolved"), 1, "reported once");
}

#[test]
fn a_listener_whose_targets_have_no_address_is_an_error() {
    let server = NameServer::start();
    let mut relay = Relay::begin(&to_name(unused_address(), &["nowhere.test"]), |c| server.use_in(c));
    assert_eq!(relay.end(), Some(1));
    assert!(relay.stderr().contains("hint:"), "{}", relay.stderr());
    assert!(relay.stderr().contains("error: a: the name nowhere.test cannot be resolved"), "{}", relay.stderr());
}

#[test]
fn a_name_without_an_address_does_not_stop_other_listeners() {
    let server = NameServer::start();
    let (service, late) = (Service::start("s"), Service::start("late"));
    let (good, bad) = (unused_address(), unused_address());
    let text = listener("good", good, &[service.address]) + &to_name(bad, &["later.test"]);
    let relay = Relay::start_with(&text, |c| server.use_in(c));
    assert_eq!(exchange(good).unwrap(), "s");
    assert!(exchange(bad).is_err());
    assert_eq!(relay.count("a: none of its targets has an address yet"), 1, "{}", relay.stderr());
    // A reload neither, of a listener that has not served before.
    let other = unused_address();
    relay.reload(&(text + &to_name(other, &["never.test"]).replace("\"a\"", "\"b\"")));
    assert_eq!(exchange(good).unwrap(), "s");
    server.set("later.test", Some(&late));
    until("the name is used", || exchange(bad).is_ok_and(|answer| answer == "late"));
    relay.wait_for("the name later.test has an address now", 1);
}

#[test]
fn a_name_that_leads_to_the_listener_itself_makes_no_loop() {
    let server = NameServer::start();
    // The name stands for the address of the listener, which has the port of the kit's targets.
    let listen = unused_address();
    server.set_address("own.test", listen);
    let mut relay = Relay::begin(&to_name(listen, &["own.test"]), |c| server.use_in(c));
    assert_eq!(relay.end(), Some(1), "{}", relay.stderr());
    assert!(relay.stderr().contains("no other address than that of the listener itself"), "{}", relay.stderr());
    // With another target it serves.
    let service = Service::start("s");
    let both = to_name(listen, &["own.test", &service.address.ip().to_string()]);
    let relay = Relay::start_with(&both, |c| server.use_in(c));
    assert_eq!(relay.count("which is this listener: that address is left out"), 1, "{}", relay.stderr());
    for _ in 0..4 {
        assert_eq!(exchange(listen).unwrap(), "s");
    }
}

#[test]
fn a_name_is_retried_while_another_target_serves() {
    let server = NameServer::start();
    let service = Service::start("s");
    let late = Service::start("late");
    let listen = unused_address();
    let other = service.address.ip().to_string();
    let relay = Relay::start_with(&to_name(listen, &["later.test", &other]), |c| server.use_in(c));
    assert_eq!(relay.count("the name later.test cannot be resolved"), 1, "{}", relay.stderr());
    assert_eq!(exchange(listen).unwrap(), "s");
    server.set("later.test", Some(&late));
    until("the name is used", || exchange(listen).unwrap() == "late");
}

#[test]
fn a_reload_to_an_unknown_name_is_refused_and_the_old_name_stays_in_use() {
    let server = NameServer::start();
    let (one, two) = (Service::start("one"), Service::start("two"));
    let listen = unused_address();
    server.set("svc.test", Some(&one));
    let good = to_name(listen, &["svc.test"]);
    let relay = Relay::start_with(&good, |c| server.use_in(c));
    relay.write(&to_name(listen, &["nowhere.test"]));
    relay.signal("HUP");
    relay.wait_for("not reloaded", 1);
    assert!(relay.stderr().contains("nowhere.test"), "{}", relay.stderr());
    assert_eq!(exchange(listen).unwrap(), "one");
    server.set("svc.test", Some(&two));
    until("the new address of the name is used", || exchange(listen).unwrap() == "two");
}

#[test]
fn sigterm_stops_a_relay_that_waits_for_a_name_server() {
    let server = NameServer::holding();
    let mut relay = Relay::begin(&to_name(unused_address(), &["svc.test"]), |c| server.use_in(c));
    server.wait_for_query();
    relay.signal("TERM");
    assert_eq!(relay.end(), Some(0), "{}", relay.stderr());
    until("it is reported", || relay.count("stopped before it was started") == 1);
    assert_eq!(relay.count("cannot be resolved"), 0, "{}", relay.stderr());
}

#[test]
fn a_reload_that_waits_for_a_name_server_blocks_nothing() {
    let server = NameServer::holding();
    let (one, listen, metrics) = (Service::start("one"), unused_address(), unused_address());
    let head = format!("metrics = \"{metrics}\"\n");
    let good = head.clone() + &listener("a", listen, &[one.address]);
    let mut relay = Relay::start_with(&good, |c| server.use_in(c));
    relay.write(&(head + &to_name(listen, &["svc.test"])));
    relay.signal("HUP");
    server.wait_for_query();
    assert_eq!(exchange(listen).unwrap(), "one");
    assert_eq!(get(metrics, "/healthz").unwrap().0, 200);
    relay.signal("USR2");
    relay.wait_for("not upgraded: it is reloading already", 1);
    relay.signal("TERM");
    assert_eq!(relay.end(), Some(0), "{}", relay.stderr());
    assert_eq!(relay.count("cannot be resolved"), 0, "it did not wait for the name:\n{}", relay.stderr());
    assert_eq!(relay.count("relay: drained"), 1, "{}", relay.stderr());
}

#[test]
fn a_file_that_changes_while_its_names_are_resolved_is_read_again() {
    let server = NameServer::holding();
    let (one, two, listen) = (Service::start("one"), Service::start("two"), unused_address());
    server.set("svc.test", Some(&one));
    let relay = Relay::start_with(&listener("a", listen, &[one.address]), |c| server.use_in(c));
    relay.write(&to_name(listen, &["svc.test"]));
    relay.signal("HUP");
    server.wait_for_query();
    relay.write(&listener("a", listen, &[two.address]));
    relay.signal("HUP");
    relay.signal("HUP");
    assert_eq!(exchange(listen).unwrap(), "one");
    server.answer();
    relay.wait_for("relay: reloaded", 2);
    assert_eq!(exchange(listen).unwrap(), "two");
}

#[test]
fn a_configuration_in_a_pipe_without_a_writer_blocks_nothing() {
    let (service, listen) = (Service::start("s"), unused_address());
    let mut relay = Relay::start(&listener("a", listen, &[service.address]));
    let file = relay.scratch.file("relay.toml");
    std::fs::remove_file(&file).unwrap();
    assert!(Command::new("mkfifo").arg(&file).status().unwrap().success());
    relay.signal("HUP");
    assert_eq!(exchange(listen).unwrap(), "s");
    relay.signal("TERM");
    assert_eq!(relay.end(), Some(0), "{}", relay.stderr());
}

#[test]
fn localhost_needs_no_name_server() {
    let nobody = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let listening = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listening.local_addr().unwrap().port();
    std::thread::spawn(move || {
        let (mut stream, _) = listening.accept().unwrap();
        std::io::Write::write_all(&mut stream, b"here").unwrap();
    });
    let listen = unused_address();
    let config = format!("[[listener]]\nlisten = \"{listen}\"\ntarget = \"localhost:{port}\"\n");
    let _relay = Relay::start_with(&config, |c| {
        c.env("PARSHALL_RELAY_NAMESERVER", nobody.to_string());
    });
    let mut stream = std::net::TcpStream::connect(listen).unwrap();
    stream.set_read_timeout(Some(super::kit::TIMEOUT)).unwrap();
    let mut received = [0; 4];
    std::io::Read::read_exact(&mut stream, &mut received).unwrap();
    assert_eq!(&received, b"here");
}

#[test]
fn checks_find_a_target_down_and_up_again() {
    let listen = unused_address();
    let metrics = unused_address();
    let (one, two) = (Service::start("one"), Service::start("two"));
    let where_two = two.address;
    let check = "health = { check = { interval = \"300ms\", timeout = \"250ms\", rise = 2, fall = 2 } }\n";
    let listeners = listener("a", listen, &[one.address, where_two]);
    let config = format!("metrics = \"{metrics}\"\n{listeners}{check}");
    let relay = Relay::start(&config);
    let up = || value(&get(metrics, "/metrics").unwrap().1, &["target_up", &where_two.to_string()]);
    assert_eq!(up(), 1.0);
    drop(two);
    relay.wait_for(&format!("a: the target {where_two} is down"), 1);
    assert_eq!(up(), 0.0);
    assert_eq!(exchange(listen).unwrap(), "one");
    // The state of a target survives a reload.
    relay.reload(&config);
    assert_eq!(up(), 0.0);
    std::thread::sleep(Duration::from_millis(50));
    let _two = Service::at("two", where_two);
    relay.wait_for(&format!("a: the target {where_two} is up"), 1);
    assert_eq!(up(), 1.0);
    assert!(value(&get(metrics, "/metrics").unwrap().1, &["checks_failed_total"]) >= 2.0);
}

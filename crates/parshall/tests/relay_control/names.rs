//! Names of targets, answered by a name server of the test's own, and checks of targets.
use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::kit::{Relay, Service, address, exchange, get, listener, until, value};

/// A name server for addresses of IPv4 that expire after a second. A name without an address fails.
struct NameServer {
    address: SocketAddr,
    names: Arc<Mutex<HashMap<String, Option<Ipv4Addr>>>>,
}

impl NameServer {
    fn start() -> Self {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let address = socket.local_addr().unwrap();
        let names: Arc<Mutex<HashMap<String, Option<Ipv4Addr>>>> = Arc::default();
        let known = names.clone();
        // It ends with the process, like the socket.
        std::thread::spawn(move || {
            let mut query = [0; 1500];
            while let Ok((n, from)) = socket.recv_from(&mut query) {
                if let Some(reply) = reply(&query[..n], &known.lock().unwrap()) {
                    socket.send_to(&reply, from).ok();
                }
            }
        });
        Self { address, names }
    }

    fn set(&self, name: &str, service: Option<&Service>) {
        let ip = service.map(|s| match s.address {
            SocketAddr::V4(v4) => *v4.ip(),
            SocketAddr::V6(_) => unreachable!("the kit's addresses are IPv4"),
        });
        self.names.lock().unwrap().insert(name.to_owned(), ip);
    }

    fn told_to(&self, command: &mut Command) {
        command.env("PARSHALL_RELAY_NAMESERVER", self.address.to_string());
    }
}

/// RFC 1035: header, the question again, and an answer that points to the question's name.
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
fn a_name_that_moves_is_followed_and_one_that_fails_keeps_its_address() {
    let server = NameServer::start();
    let (one, two) = (Service::start("one"), Service::start("two"));
    let (place, metrics) = (address(), address());
    server.set("svc.test", Some(&one));
    let config = format!("metrics = \"{metrics}\"\n{}", to_name(place, &["svc.test"]));
    let relay = Relay::start_with(&config, |c| server.told_to(c));
    assert_eq!(exchange(place).unwrap(), "one");
    server.set("svc.test", Some(&two));
    until("the new address is used", || exchange(place).unwrap() == "two");
    server.set("svc.test", None);
    relay.wait_for("the name svc.test cannot be resolved", 1);
    assert_eq!(exchange(place).unwrap(), "two", "the last address stays in use");
    assert!(value(&get(metrics, "/metrics").unwrap().1, &["lookups_failed_total"]) >= 1.0);
    server.set("svc.test", Some(&one));
    relay.wait_for("the name svc.test has an address again", 1);
    assert_eq!(exchange(place).unwrap(), "one");
    assert_eq!(relay.count("cannot be resolved"), 1, "told once");
}

#[test]
fn a_listener_without_any_address_is_an_error_that_names_it() {
    let server = NameServer::start();
    let mut relay = Relay::begin(&to_name(address(), &["nowhere.test"]), |c| server.told_to(c));
    assert_eq!(relay.end(), Some(1));
    until("the error is told", || relay.said().contains("hint:"));
    assert!(relay.said().contains("error: a: the name nowhere.test cannot be resolved"), "{}", relay.said());
}

#[test]
fn beside_another_target_a_name_is_retried() {
    let server = NameServer::start();
    let service = Service::start("s");
    let late = Service::start("late");
    let place = address();
    let other = service.address.ip().to_string();
    let relay = Relay::start_with(&to_name(place, &["later.test", &other]), |c| server.told_to(c));
    assert_eq!(relay.count("the name later.test cannot be resolved"), 1, "{}", relay.said());
    assert_eq!(exchange(place).unwrap(), "s");
    server.set("later.test", Some(&late));
    until("the name is used", || exchange(place).unwrap() == "late");
}

#[test]
fn a_reload_to_an_unknown_name_is_refused_and_a_known_one_goes_on() {
    let server = NameServer::start();
    let (one, two) = (Service::start("one"), Service::start("two"));
    let place = address();
    server.set("svc.test", Some(&one));
    let good = to_name(place, &["svc.test"]);
    let relay = Relay::start_with(&good, |c| server.told_to(c));
    relay.write(&to_name(place, &["nowhere.test"]));
    relay.signal("HUP");
    relay.wait_for("not reloaded", 1);
    assert!(relay.said().contains("nowhere.test"), "{}", relay.said());
    assert_eq!(exchange(place).unwrap(), "one");
    server.set("svc.test", Some(&two));
    until("the name is still followed", || exchange(place).unwrap() == "two");
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
    let place = address();
    let config = format!("[[listener]]\nlisten = \"{place}\"\ntarget = \"localhost:{port}\"\n");
    let _relay = Relay::start_with(&config, |c| {
        c.env("PARSHALL_RELAY_NAMESERVER", nobody.to_string());
    });
    let mut stream = std::net::TcpStream::connect(place).unwrap();
    stream.set_read_timeout(Some(crate::kit::PATIENCE)).unwrap();
    let mut said = [0; 4];
    std::io::Read::read_exact(&mut stream, &mut said).unwrap();
    assert_eq!(&said, b"here");
}

#[test]
fn a_target_that_dies_is_found_down_and_up_again() {
    let place = address();
    let metrics = address();
    let (one, two) = (Service::start("one"), Service::start("two"));
    let where_two = two.address;
    let check = "health = { check = { interval = \"300ms\", timeout = \"250ms\", rise = 2, fall = 2 } }\n";
    let listeners = listener("a", place, &[one.address, where_two]);
    let config = format!("metrics = \"{metrics}\"\n{listeners}{check}");
    let relay = Relay::start(&config);
    let up = || value(&get(metrics, "/metrics").unwrap().1, &["target_up", &where_two.to_string()]);
    assert_eq!(up(), 1.0);
    drop(two);
    relay.wait_for(&format!("a: the target {where_two} is down"), 1);
    assert_eq!(up(), 0.0);
    assert_eq!(exchange(place).unwrap(), "one");
    // What is known outlives a reload.
    relay.reload(&config);
    assert_eq!(up(), 0.0);
    std::thread::sleep(Duration::from_millis(50));
    let _two = Service::at("two", where_two);
    relay.wait_for(&format!("a: the target {where_two} is up"), 1);
    assert_eq!(up(), 1.0);
    assert!(value(&get(metrics, "/metrics").unwrap().1, &["checks_failed_total"]) >= 2.0);
}

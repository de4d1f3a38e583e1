//! With real sockets and processes.
use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use crate::subject::{self, Select};
use crate::testkit::child;

use super::*;

/// The subject's waits, once there are some; the clock of sockets has ticks, and young waits are left out.
fn until_something_waits(select: &Select, wanted: impl Fn(&Waiting) -> bool) -> Waiting {
    let deadline = Instant::now() + Duration::from_secs(20);
    let resolved = subject::resolve(select).expect("the subject");
    loop {
        let watch = Watch::start(&resolved);
        std::thread::sleep(Duration::from_millis(20));
        match watch.finish() {
            Some(waiting) if wanted(&waiting) => return waiting,
            found => assert!(Instant::now() < deadline, "{found:?}"),
        }
    }
}

#[test]
fn a_connection_in_the_accept_queue_of_a_child() {
    let child = child::start("full-queues");
    let mut client = TcpStream::connect(("127.0.0.1", child.port)).expect("loopback");
    client.write_all(b"GET").expect("loopback");
    let port = Select::Ports(vec![child.port], crate::subject::Within::Own);
    for select in [Select::Pids(vec![child.pid()]), port] {
        let waiting = until_something_waits(&select, |w| w.ends.iter().any(|end| end.serves && end.still_ns > 0));
        let own = client.local_addr().expect("connected");
        let queued = waiting.ends.iter().find(|end| end.subject && end.remote == own).expect("the connection");
        assert_eq!((queued.accepted, queued.unread_bytes, &queued.pids[..]), (false, 3, &[child.pid()][..]));
        let threads: Vec<_> = waiting.threads.iter().filter(|thread| thread.pid == child.pid()).collect();
        assert!(!threads.is_empty() && threads.iter().all(|t| t.seen && !t.process.is_empty()), "{threads:?}");
    }
}

#[test]
fn nothing_waits_on_idle_connections() {
    let child = child::start("idle");
    let resolved = subject::resolve(&Select::Pids(vec![child.pid()])).expect("our child");
    let watch = Watch::start(&resolved);
    assert_eq!(watch.finish(), None);
    // Ours are nobody's: whoever observes is no part of what it observes.
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
    let _waits = TcpStream::connect(listener.local_addr().expect("bound")).expect("loopback");
    assert_eq!(watch.finish(), None);
}

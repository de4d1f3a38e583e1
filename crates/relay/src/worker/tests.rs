//! A worker that no thread runs.
use std::sync::mpsc::{channel, sync_channel};

use parshall_core::relay::config::{Protocol, Target};

use super::*;
use crate::service::target::TargetState;

fn worker() -> Worker {
    let (_orders, inbox) = channel();
    let (closed, _ended) = sync_channel(1);
    let wake = Arc::new(parshall_sys::eventfd::new().expect("a descriptor"));
    Worker::new(Parts { connection_limit: ConnectionLimit::new(None), pipes_max: 1, inbox, wake, closed }, 8192)
        .expect("a worker")
}

#[test]
fn a_new_configuration_may_have_larger_buffers() {
    let mut worker = worker();
    let place = Endpoint::Ip("127.0.0.1:1".parse().expect("an address"));
    let targets = vec![Target { endpoint: place.clone(), weight: 1 }];
    for (buffer, largest) in [(1 << 20, 1 << 20), (4096, 1 << 20)] {
        let mut listener = Listener::new(Protocol::Tcp, place.clone(), targets.clone());
        listener.buffer = buffer;
        let service = Arc::new(Service::new(listener, Vec::new(), None, 0));
        worker.apply(vec![Assigned { service, stats: Arc::default(), socket: None }], 0);
        assert_eq!(worker.buffer_max, largest);
    }
}

#[test]
fn a_connection_keeps_its_listener_across_reloads_that_free_slots() {
    let mut worker = worker();
    let socket = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    socket.set_nonblocking(true).expect("an option");
    let place = Endpoint::Ip(socket.local_addr().expect("bound"));
    let targets = vec![Target { endpoint: place.clone(), weight: 1 }];
    let known = vec![Arc::new(TargetState::new(Vec::new()))];
    let service = Arc::new(Service::new(Listener::new(Protocol::Tcp, place, targets), known, None, 0));
    let assigned = |socket| Assigned { service: service.clone(), stats: Arc::default(), socket };
    // Removed listeners, through each of which a connection came that lasts.
    for _ in 0..1 << 16 {
        let mut removed = Listening::new(assigned(None), None);
        removed.active = 1;
        worker.listeners.push(removed);
    }
    let index = worker.listeners.len();
    worker.listeners.push(Listening::new(assigned(None), Some(Arc::new(socket.into()))));
    let place = worker.listeners[index].service.config.listen.to_string();
    let _client = std::net::TcpStream::connect(place).expect("a connection");
    worker.accept(index);
    // Its only target has no address, so the connection ends at once: at the listener that it came through.
    assert_eq!(worker.listeners[index].stats.accepted.get(), 1);
    assert_eq!((worker.listeners[index].active, worker.listeners[0].active), (0, 1));
}

//! A worker that no thread runs.
use std::sync::mpsc::{channel, sync_channel};

use parshall_core::relay::config::{Protocol, Target};

use super::*;

#[test]
fn a_new_configuration_may_have_larger_buffers() {
    let (_orders, inbox) = channel();
    let (closed, _ended) = sync_channel(1);
    let wake = Arc::new(parshall_sys::eventfd::new().expect("a descriptor"));
    let mut worker =
        Worker::new(Parts { room: Room::new(None), pipes_max: 1, inbox, wake, closed }, 8192).expect("a worker");
    let place = Endpoint::Ip("127.0.0.1:1".parse().expect("an address"));
    let targets = vec![Target { endpoint: place.clone(), weight: 1 }];
    for (buffer, room) in [(1 << 20, 1 << 20), (4096, 1 << 20)] {
        let mut listener = Listener::new(Protocol::Tcp, place.clone(), targets.clone());
        listener.buffer = buffer;
        let service = Arc::new(Service::new(listener, Vec::new(), None, 0));
        worker.apply(vec![Assigned { service, stats: Arc::default(), socket: None }], 0);
        assert_eq!(worker.buffer_max, room);
    }
}

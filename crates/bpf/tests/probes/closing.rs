//! Connections that are closed with something left to send.
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use parshall_bpf::diagnose::{Config, Event, Probes};
use parshall_evidence::FlowState;

use crate::probed::{Talker, alone, end_with_parent, ready};

/// For so long, a client does not read.
const AWAY: Duration = Duration::from_millis(200);
const CLOSED_MIN: usize = 3;

/// A server closes each connection when its buffer is full, and the client takes what is left later.
#[test]
#[ignore = "not a test: the body of the child process"]
fn closes_early() {
    if std::env::var_os("TALK").is_none() {
        return;
    }
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    end_with_parent();
    println!("talking");
    loop {
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut server, _) = listener.accept().unwrap();
        server.set_nonblocking(true).unwrap();
        while server.write(&[7; 4096]).is_ok() {}
        // The window is shut by then.
        std::thread::sleep(Duration::from_millis(20));
        drop(server);
        std::thread::sleep(AWAY);
        client.read_to_end(&mut Vec::new()).unwrap();
    }
}

#[test]
fn what_is_left_to_send_is_accounted_for() {
    if !ready("connections that are closed early") {
        return;
    }
    let _alone = alone();
    for as_older in [false, true] {
        let talker = Talker::start_as("closing::closes_early", "1");
        let mut probes = Probes::load(&Config { as_older, ..talker.config(64) }).unwrap();
        probes.attach_always().unwrap();
        probes.begin_slice().unwrap();
        let (mut held, mut events) = (Vec::new(), Vec::new());
        let give_up = Instant::now() + Duration::from_secs(60);
        while held.len() < CLOSED_MIN {
            assert!(Instant::now() < give_up, "older {as_older}: {held:?}");
            std::thread::sleep(Duration::from_millis(10));
            while probes.drain(&mut events) {}
            // Of those that were seen from their begin on.
            let whole = events.drain(..).filter_map(|event| match event {
                Event::FlowEnd(dump) if dump.calls().sends > 2 && dump.calls().send_bytes > 65_536 => Some(dump),
                _ => None,
            });
            let shut = |state| state == FlowState::PeerWindow;
            held.extend(whole.map(|dump| dump.cells().iter().filter(|c| shut(c.state)).map(|c| c.ns).sum::<u64>()));
        }
        // The first one may have been closed before the slice began.
        let away = held[1..].iter().filter(|ns| **ns >= AWAY.as_nanos() as u64).count();
        assert!(away >= CLOSED_MIN - 1, "older {as_older}: {held:?} ns");
    }
}

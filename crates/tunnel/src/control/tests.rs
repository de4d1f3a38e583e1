//! Clients of the configuration protocol, over socket pairs in a directory of the test.
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parshall_core::tunnel::{Device, KeyText, Limits, Output, PrivateKey};
use parshall_sys::eventfd;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::*;
use crate::counters::Counters;
use crate::system_random::SystemBytes;

/// A served device, whose sockets are a pair of numbers.
struct Served {
    path: PathBuf,
    stop: Arc<OwnedFd>,
    thread: Option<JoinHandle<(u16, u32)>>,
    _scratch: tempfile::TempDir,
}

/// The port that cannot be listened on.
const TAKEN: u16 = 4711;

impl Served {
    fn start() -> Self {
        let scratch = tempfile::tempdir().unwrap();
        let (bound, listener) = path::bind(scratch.path(), "wg0").unwrap();
        let stop = Arc::new(eventfd::new().unwrap());
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            let (owner, mut requests) = channel().unwrap();
            let _control = Control::start("wg0", owner, Listeners { uapi: listener, metrics: None }).unwrap();
            let mut device = Device::new(Limits::default(), Box::new(SystemBytes));
            let (mut out, mut sockets, _bound) = (Output::default(), (0, 0), bound);
            loop {
                let fds = &mut [PollFd::new(&requests.wake, PollFlags::IN), PollFd::new(&stopped, PollFlags::IN)];
                poll(fds, Some(&Timespec { tv_sec: 60, tv_nsec: 0 })).unwrap();
                if !fds[1].revents().is_empty() {
                    return sockets;
                }
                requests.serve(0, &mut device, &mut out, &Counters::default(), |port, mark| {
                    if port == TAKEN {
                        return Err(Errno::ADDRINUSE.into());
                    }
                    sockets = (if port == 0 { 50_000 } else { port }, mark);
                    Ok(sockets.0)
                });
            }
        });
        Self { path: path::of_interface(scratch.path(), "wg0"), stop, thread: Some(thread), _scratch: scratch }
    }

    fn connect(&self) -> UnixStream {
        let stream = UnixStream::connect(&self.path).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        stream
    }

    fn ask(&self, request: &str) -> String {
        exchange(&mut self.connect(), request)
    }

    fn end(mut self) -> (u16, u32) {
        eventfd::signal(&self.stop);
        self.thread.take().unwrap().join().unwrap()
    }
}

fn exchange(stream: &mut UnixStream, request: &str) -> String {
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = Vec::new();
    while !answer.ends_with(b"\n\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        answer.push(byte[0]);
    }
    String::from_utf8(answer).unwrap()
}

#[test]
fn what_is_set_is_what_is_got() {
    let served = Served::start();
    let key = PrivateKey::new([7; 32]);
    let (private, peer) = (key.to_hex(), PrivateKey::new([8; 32]).public().to_hex());
    let mut client = served.connect();
    let set = format!(
        "set=1\nprivate_key={}\nlisten_port=0\nfwmark=9\npublic_key={}\nallowed_ip=10.0.0.2/32\n\n",
        *private, *peer
    );
    assert_eq!(exchange(&mut client, &set), "errno=0\n\n");
    let state = exchange(&mut client, "get=1\n\n");
    let head = format!("private_key={}\nlisten_port=50000\nfwmark=9\npublic_key={}\n", *private, *peer);
    assert!(state.starts_with(&head) && state.ends_with("allowed_ip=10.0.0.2/32\nerrno=0\n\n"), "{state}");
    assert_eq!(served.end(), (50_000, 9));
}

#[test]
fn a_report_is_one_line_without_keys() {
    let served = Served::start();
    let key = PrivateKey::new([7; 32]);
    served.ask(&format!("set=1\nprivate_key={}\n\n", *key.to_hex()));
    let answer = served.ask("report=1\n\n");
    let line = answer.strip_prefix("report=").unwrap().strip_suffix("\nerrno=0\n\n").unwrap();
    let report: report::Report = serde_json::from_str(line).unwrap();
    assert_eq!((report.interface.as_str(), report.public_key), ("wg0", Some(key.public().to_string())));
    assert!(!line.contains(key.to_base64().as_str()) && !line.contains(key.to_hex().as_str()));
    served.end();
}

#[test]
fn a_request_that_fails_changes_nothing() {
    let served = Served::start();
    assert_eq!(served.ask(&format!("set=1\nfwmark=1\nlisten_port={TAKEN}\n\n")), "errno=-98\n\n");
    assert_eq!(served.ask("set=1\nfwmark=1\nno_such_key=1\n\n"), "errno=-22\n\n");
    assert_eq!(served.ask("put=1\n\n"), "errno=-71\n\n");
    assert_eq!(served.ask("get=1\n\n"), "errno=0\n\n");
    assert_eq!(served.end(), (0, 0));
}

#[test]
fn clients_that_send_nothing_are_closed_and_others_served() {
    let served = Served::start();
    let mut silent: Vec<UnixStream> = (0..uapi::CLIENTS_MAX).map(|_| served.connect()).collect();
    silent[0].write_all(b"get=1\n").unwrap();
    let begun = Instant::now();
    assert_eq!(served.ask("get=1\n\n"), "errno=0\n\n");
    assert!(begun.elapsed() < uapi::TIME_MAX * 2, "served after {:?}", begun.elapsed());
    let mut left = Vec::new();
    silent[0].read_to_end(&mut left).unwrap();
    assert!(left.is_empty());
    served.end();
}

#[test]
fn a_long_request_in_small_parts_is_read() {
    let served = Served::start();
    let mut request = "set=1\n".to_owned();
    for n in 0..500u64 {
        let mut key = [0; 32];
        key[..8].copy_from_slice(&(n + 1).to_le_bytes());
        request.push_str(&format!("public_key={}\n", *parshall_core::tunnel::PublicKey(key).to_hex()));
    }
    request.push('\n');
    let mut client = served.connect();
    for part in request.as_bytes().chunks(777) {
        client.write_all(part).unwrap();
    }
    assert_eq!(exchange(&mut client, "get=1\n\n"), "errno=0\n\n");
    let state = served.ask("get=1\n\n");
    assert_eq!(state.matches("public_key=").count(), 500);
    served.end();
}

//! Threads that move only streams run as SCHED_BATCH, until a connection exchanges requests and replies.
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use super::kit::{Relay, TIMEOUT, listener, until, unused_address};

/// SCHED_BATCH (uapi/linux/sched.h).
const BATCH: u32 = 3;
/// The last byte of a message that the service answers, and the answer.
const END: u8 = b'!';

/// The number of workers with the policy SCHED_BATCH: field 41 of stat (proc(5)).
fn batch_workers(pid: u32) -> usize {
    let policy = |task: std::io::Result<std::fs::DirEntry>| -> Option<u32> {
        let stat = std::fs::read_to_string(task.ok()?.path().join("stat")).ok()?;
        let (name, rest) = stat.rsplit_once(") ")?;
        name.contains("(relay-").then(|| rest.split(' ').nth(41 - 3)?.parse().ok())?
    };
    std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().filter_map(policy).filter(|&p| p == BATCH).count()
}

/// Reads all, and answers messages that end with [`END`].
fn answer_the_last(mut stream: TcpStream) {
    let mut piece = vec![0; 1 << 16];
    while let Ok(n @ 1..) = stream.read(&mut piece) {
        if piece[n - 1] == END && stream.write_all(&[END]).is_err() {
            return;
        }
    }
}

#[test]
fn a_worker_with_only_a_stream_is_batch_until_an_exchange() {
    let service = TcpListener::bind(unused_address()).unwrap();
    let listen = unused_address();
    let relay = Relay::start(&listener("a", listen, &[service.local_addr().unwrap()]));
    let mut client = TcpStream::connect(listen).unwrap();
    client.set_read_timeout(Some(TIMEOUT)).unwrap();
    let (stream, _) = service.accept().unwrap();
    let service = thread::spawn(|| answer_the_last(stream));
    for _ in 0..2 {
        assert_eq!(batch_workers(relay.pid()), 0, "before there is a stream");
        let streams = AtomicBool::new(true);
        thread::scope(|scope| {
            scope.spawn(|| {
                while streams.load(Ordering::Relaxed) {
                    client.write_all(&[0; 1 << 16]).unwrap();
                }
            });
            until("a worker is SCHED_BATCH", || batch_workers(relay.pid()) == 1);
            streams.store(false, Ordering::Relaxed);
        });
        client.write_all(&[END]).unwrap();
        client.read_exact(&mut [0]).unwrap();
        until("no worker is SCHED_BATCH", || batch_workers(relay.pid()) == 0);
    }
    drop(client);
    service.join().unwrap();
}

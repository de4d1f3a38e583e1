//! A service that is asked over a connection of its own each time, on the rungs that sample.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use parshall_evidence::{Rung, Status};

use crate::common::parshall;

/// Answers each connection after this time.
fn serve(work: Duration) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for connection in listener.incoming() {
            let mut connection = connection.unwrap();
            let _ = connection.read(&mut [0; 64]);
            std::thread::sleep(work);
            let _ = connection.write_all(b"answer");
        }
    });
    address
}

/// Asks a dozen times a second until the sender is dropped.
fn ask(address: SocketAddr) -> mpsc::Sender<()> {
    let (going, ended) = mpsc::channel();
    std::thread::spawn(move || {
        while ended.recv_timeout(Duration::from_millis(80)) == Err(RecvTimeoutError::Timeout) {
            let mut connection = TcpStream::connect(address).unwrap();
            connection.write_all(b"question").unwrap();
            let _ = connection.read_to_end(&mut Vec::new());
        }
    });
    going
}

#[test]
fn they_are_no_proof_of_health_where_samples_miss_them() {
    for work in [Duration::from_millis(1), Duration::from_millis(50)] {
        let address = serve(work);
        let _asking = ask(address);
        let port = address.port().to_string();
        for rung in [Rung::Procfs, Rung::Tracepoint] {
            let attach = ["attach", "--port", &port, "--for", "2s", "--format", "json", "--rung", rung.as_str()];
            let report = parshall(&attach).orderly().report();
            assert_eq!(report.verdict.status, Status::InsufficientEvidence, "{work:?}, {rung:?}: {report:#?}");
        }
    }
}

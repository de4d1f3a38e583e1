//! The collector's HTTP endpoint: `/metrics`, `/healthz` and `/debug/pprof/profile`, in a thread of its own.
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use hyper::StatusCode;
use tokio::sync::oneshot;

use super::profile::{self, Refused};
use super::self_metrics::Board;
use super::sink::prometheus;
use crate::http::{Answer, TEXT, answer};

/// Profiles may take this long.
const PROFILE_SECONDS_MAX: u64 = 120;
/// What `go tool pprof` expects when it does not say.
const PROFILE_SECONDS: u64 = 30;
/// From the connection to the last byte of the answer: a profile, and naming what was sampled.
const TIME_MAX: Duration = Duration::from_secs(PROFILE_SECONDS_MAX + 30);

/// What is never sent.
#[derive(Debug)]
enum Never {}

/// The endpoint; it ends when this is dropped.
#[derive(Debug)]
pub struct Endpoint {
    address: SocketAddr,
    stop: Option<oneshot::Sender<Never>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Endpoint {
    /// Listens there and answers from now on.
    ///
    /// # Errors
    /// If the address cannot be had.
    pub fn start(at: SocketAddr, board: Arc<Board>) -> anyhow::Result<Self> {
        let listener = TcpListener::bind(at).with_context(|| format!("cannot serve metrics on {at}"))?;
        let address = listener.local_addr()?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
        let (stop, stopped) = oneshot::channel::<Never>();
        let serve = async move {
            let respond = move |request: hyper::Request<hyper::body::Incoming>| {
                let board = board.clone();
                async move { respond(request.uri().path(), request.uri().query().unwrap_or_default(), &board).await }
            };
            let server = tokio::spawn(crate::http::serve(listener, "sockets", TIME_MAX, respond));
            // Its sender says nothing: it is dropped.
            stopped.await.ok();
            server.abort();
        };
        let thread = std::thread::Builder::new().name("sockets-http".into()).spawn(move || runtime.block_on(serve))?;
        Ok(Self { address, stop: Some(stop), thread: Some(thread) })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        self.stop.take();
        if let Some(thread) = self.thread.take() {
            thread.join().ok();
        }
    }
}

async fn respond(path: &str, query: &str, board: &Board) -> Answer {
    match path {
        "/metrics" => match prometheus::text(board) {
            Ok(text) => answer(StatusCode::OK, prometheus::CONTENT_TYPE, text),
            Err(_) => answer(StatusCode::INTERNAL_SERVER_ERROR, TEXT, "the metrics could not be written\n"),
        },
        "/healthz" => match board.late() {
            None => answer(StatusCode::OK, TEXT, "ok\n"),
            Some(since) => {
                let text = format!("no dump for {} s\n", since.as_secs());
                answer(StatusCode::SERVICE_UNAVAILABLE, TEXT, text)
            }
        },
        "/debug/pprof/profile" => match seconds(query) {
            Some(seconds) => profiled(Duration::from_secs(seconds)).await,
            None => {
                let text = format!("seconds must be a number from 1 to {PROFILE_SECONDS_MAX}\n");
                answer(StatusCode::BAD_REQUEST, TEXT, text)
            }
        },
        _ => answer(StatusCode::NOT_FOUND, TEXT, "here are /metrics, /healthz and /debug/pprof/profile?seconds=N\n"),
    }
}

fn seconds(query: &str) -> Option<u64> {
    let given = query.split('&').find_map(|part| part.strip_prefix("seconds="));
    let seconds = given.map_or(Some(PROFILE_SECONDS), |text| text.parse().ok())?;
    (1..=PROFILE_SECONDS_MAX).contains(&seconds).then_some(seconds)
}

/// Takes a profile in a thread of its own, so that metrics are answered meanwhile.
async fn profiled(duration: Duration) -> Answer {
    let (send, taken) = oneshot::channel();
    let work = move || send.send(profile::take(duration)).map_or((), drop);
    if let Err(e) = std::thread::Builder::new().name("sockets-profile".into()).spawn(work) {
        return answer(StatusCode::SERVICE_UNAVAILABLE, TEXT, format!("no thread for a profile: {e}\n"));
    }
    match taken.await {
        Ok(Ok(profile)) => answer(StatusCode::OK, "application/octet-stream", profile),
        Ok(Err(Refused::Busy)) => {
            answer(StatusCode::TOO_MANY_REQUESTS, TEXT, "another profile is being taken: one at a time\n")
        }
        Ok(Err(Refused::Host(e))) => {
            let text = format!("this host does not allow perf_event_open(2): {e}\n");
            answer(StatusCode::FORBIDDEN, TEXT, text)
        }
        Err(_) => answer(StatusCode::INTERNAL_SERVER_ERROR, TEXT, "the profile failed\n"),
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpStream;

    use super::*;

    fn ask(at: SocketAddr, head: &str) -> (u16, Vec<u8>) {
        let mut stream = TcpStream::connect(at).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        write!(stream, "{head} HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).unwrap();
        let end = bytes.windows(4).position(|w| w == b"\r\n\r\n").unwrap() + 4;
        let status = String::from_utf8_lossy(&bytes[9..12]).parse().unwrap();
        (status, bytes.split_off(end))
    }

    #[test]
    fn answers_and_refusals() {
        let board = Board::new(Some(Duration::from_secs(5)));
        let endpoint = Endpoint::start("127.0.0.1:0".parse().unwrap(), board).unwrap();
        let at = endpoint.address();
        assert_eq!(ask(at, "GET /healthz"), (200, b"ok\n".to_vec()));
        let (status, metrics) = ask(at, "GET /metrics");
        let metrics = String::from_utf8(metrics).unwrap();
        assert!(status == 200 && metrics.contains("parshall_sockets_collector_resident_bytes"), "{metrics}");
        assert_eq!(ask(at, "GET /").0, 404);
        assert_eq!(ask(at, "POST /metrics").0, 405);
        for wrong in ["0", "9999", "x", "-1"] {
            assert_eq!(ask(at, &format!("GET /debug/pprof/profile?seconds={wrong}")).0, 400, "{wrong}");
        }
        let second = std::thread::spawn(move || ask(at, "GET /debug/pprof/profile?seconds=1"));
        // While a profile is taken, everything else is answered.
        assert_eq!(ask(at, "GET /healthz").0, 200);
        let (status, profile) = second.join().unwrap();
        // 429: another test takes one; 403: the host does not allow it.
        assert!(status == 200 && profile.starts_with(&[0x1f, 0x8b]) || status == 403 || status == 429, "{status}");
        drop(endpoint);
        assert!(TcpStream::connect(at).is_err(), "it ends with its owner");
    }
}

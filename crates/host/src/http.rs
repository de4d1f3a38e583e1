//! The HTTP server of metrics endpoints. Every request is bounded in size and time. Callers supply the responses.
//!
//! The number of connections is bounded too, and no client can exclude others: when there are too many, the oldest is closed. A
//! client that sends its request at once has its response long before that; one that sends nothing, or does not read its
//! response, becomes the oldest sooner or later. Large responses have a lower limit, because they stay in memory until they
//! are read.
use std::collections::VecDeque;
use std::convert::Infallible;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Body, Bytes, Incoming};
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderValue};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;

/// Longest time until the head of the request has arrived.
const HEAD_TIME_MAX: Duration = Duration::from_secs(3);
/// Largest head of a request.
const HEAD_BYTES_MAX: usize = 16 * 1024;
/// Longest time to send a response: Prometheus gives up after 10 s.
const SEND_TIME_MAX: Duration = Duration::from_secs(10);
/// Limit of concurrent connections.
const CONNECTIONS_MAX: usize = 64;
/// Limit of concurrent connections with a large response.
const LARGE_MAX: usize = 8;
/// A response of more bytes is large: a smaller one fits into the socket's buffer.
const LARGE_BYTES: u64 = 16 * 1024;
/// Pause after a failed accept: descriptors may have run out.
const PAUSE: Duration = Duration::from_millis(200);
/// A content type.
pub const TEXT: &str = "text/plain; charset=utf-8";

/// The response to a request.
pub type Answer = Response<Full<Bytes>>;

/// The client's address; each request carries it as an extension.
#[derive(Debug, Clone, Copy)]
pub struct Peer(pub SocketAddr);

/// Serves until the task is dropped. `time_max` bounds how long `answer` may take; sending has a separate limit.
pub async fn serve<F, R>(listener: std::net::TcpListener, time_max: Duration, answer: F)
where
    F: Fn(Request<Incoming>) -> R + Clone + Send + 'static,
    R: Future<Output = Answer> + Send + 'static,
{
    serve_within(listener, Times { answer: time_max, send: SEND_TIME_MAX }, answer).await;
}

/// Time limits.
#[derive(Debug, Clone, Copy)]
struct Times {
    /// For making a response.
    answer: Duration,
    /// For sending it.
    send: Duration,
}

async fn serve_within<F, R>(listener: std::net::TcpListener, times: Times, answer: F)
where
    F: Fn(Request<Incoming>) -> R + Clone + Send + 'static,
    R: Future<Output = Answer> + Send + 'static,
{
    let prepared = listener.set_nonblocking(true).and_then(|()| TcpListener::from_std(listener));
    let listener = match prepared {
        Ok(listener) => listener,
        Err(e) => return tracing::warn!("the metrics cannot be served: {e}"),
    };
    let clients = Clients::default();
    loop {
        let Ok((stream, peer)) = listener.accept().await else {
            tokio::time::sleep(PAUSE).await;
            continue;
        };
        let (client, closed) = clients.enter();
        let served = connection(stream, Peer(peer), times, answer.clone(), client);
        tokio::spawn(first(served, async { closed.await.unwrap_or_default() }));
    }
}

/// Completes when either future does.
async fn first(one: impl Future<Output = ()>, other: impl Future<Output = ()>) {
    let (mut one, mut other) = (pin!(one), pin!(other));
    poll_fn(|context| {
        let is_over = one.as_mut().poll(context).is_ready() || other.as_mut().poll(context).is_ready();
        if is_over { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}

async fn connection<F, R>(stream: TcpStream, peer: Peer, times: Times, answer: F, client: Client)
where
    F: Fn(Request<Incoming>) -> R,
    R: Future<Output = Answer>,
{
    let (ready, is_ready) = oneshot::channel();
    let (ready, client) = (&Mutex::new(Some(ready)), &client);
    let answer = service_fn(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(peer);
        let only_reads = matches!(*request.method(), Method::GET | Method::HEAD);
        let answered = only_reads.then(|| answer(request));
        let ready = ready.lock().unwrap_or_else(PoisonError::into_inner).take();
        async move {
            let response = match answered {
                Some(answered) => answered.await,
                None => not_allowed(),
            };
            if response.body().size_hint().lower() > LARGE_BYTES {
                client.has_large_answer();
            }
            // The receiver may be gone with the connection.
            ready.map(|ready| ready.send(()));
            Ok::<_, Infallible>(response)
        }
    });
    let connection = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIME_MAX)
        .max_buf_size(HEAD_BYTES_MAX)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), answer);
    let time_is_up = async {
        tokio::time::timeout(HEAD_TIME_MAX + times.answer, is_ready).await.map(drop).ok();
        tokio::time::sleep(times.send).await;
    };
    // Errors that a client causes are not logged.
    first(async { connection.await.unwrap_or_default() }, time_is_up).await;
}

/// The open connections.
#[derive(Debug, Clone, Default)]
struct Clients(Arc<Mutex<List>>);

#[derive(Debug, Default)]
struct List {
    /// The number of the next connection.
    number: u64,
    /// The oldest first.
    entries: VecDeque<Entry>,
}

#[derive(Debug)]
struct Entry {
    number: u64,
    is_large: bool,
    /// The connection ends when this is dropped.
    _open: oneshot::Sender<()>,
}

/// A connection; dropping it removes it from the list.
#[derive(Debug)]
struct Client {
    clients: Clients,
    number: u64,
}

impl Clients {
    fn list(&self) -> MutexGuard<'_, List> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a connection. If there are too many, the oldest is closed. The receiver completes when this one must close.
    fn enter(&self) -> (Client, oneshot::Receiver<()>) {
        let (open, closed) = oneshot::channel();
        let mut list = self.list();
        let number = list.number;
        list.number += 1;
        list.entries.push_back(Entry { number, is_large: false, _open: open });
        if list.entries.len() > CONNECTIONS_MAX {
            list.entries.pop_front();
        }
        (Client { clients: self.clone(), number }, closed)
    }
}

impl Client {
    /// Marks the response as large. If there are too many large ones, the oldest of them is closed.
    fn has_large_answer(&self) {
        let entries = &mut self.clients.list().entries;
        entries.iter_mut().filter(|entry| entry.number == self.number).for_each(|entry| entry.is_large = true);
        if entries.iter().filter(|entry| entry.is_large).count() > LARGE_MAX
            && let Some(oldest) = entries.iter().position(|entry| entry.is_large)
        {
            entries.remove(oldest);
        }
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.clients.list().entries.retain(|entry| entry.number != self.number);
    }
}

fn not_allowed() -> Answer {
    let mut response = self::answer(StatusCode::METHOD_NOT_ALLOWED, TEXT, "only GET and HEAD\n");
    response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
    response
}

/// A response with this content type.
pub fn answer(status: StatusCode, kind: &'static str, body: impl Into<Bytes>) -> Answer {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpStream;

    use super::*;

    const GIVE_UP: Duration = Duration::from_secs(60);

    /// More than the buffers of two sockets hold.
    const LARGE: usize = 32 << 20;

    /// A server with a large answer and a small one, in a thread that ends with the process.
    fn server(send: Duration) -> SocketAddr {
        let large = Bytes::from(vec![b'x'; LARGE]);
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap();
        let respond = move |request: Request<Incoming>| {
            let body = if request.uri().path() == "/large" { large.clone() } else { Bytes::from("ok") };
            std::future::ready(answer(StatusCode::OK, TEXT, body))
        };
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build().unwrap();
            let times = Times { answer: GIVE_UP, send };
            runtime.block_on(serve_within(listener, times, respond));
        });
        at
    }

    fn connect(at: SocketAddr, request: &str) -> TcpStream {
        let mut stream = TcpStream::connect(at).unwrap();
        stream.set_read_timeout(Some(GIVE_UP)).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        stream
    }

    fn get(at: SocketAddr, path: &str) -> Vec<u8> {
        let mut bytes = Vec::new();
        connect(at, &format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n")).read_to_end(&mut bytes).unwrap();
        bytes
    }

    #[test]
    fn neither_slow_readers_nor_silent_clients_keep_others_out() {
        let at = server(GIVE_UP * 10);
        let slow = "GET /large HTTP/1.1\r\nHost: x\r\n\r\n";
        let clients: Vec<TcpStream> =
            (0..4 * CONNECTIONS_MAX).map(|n| connect(at, if n % 2 == 0 { slow } else { "GET /" })).collect();
        for _ in 0..20 {
            assert!(get(at, "/").ends_with(b"ok"), "a small answer");
        }
        // The read times out long before any connection does.
        assert!(get(at, "/large").len() > LARGE, "a large one, to its end");
        drop(clients);
    }

    #[test]
    fn a_slow_reader_is_closed() {
        let at = server(Duration::from_millis(50));
        let mut slow = connect(at, "GET /large HTTP/1.1\r\nHost: x\r\n\r\n");
        std::thread::sleep(Duration::from_secs(2));
        let mut bytes = Vec::new();
        let all = slow.read_to_end(&mut bytes).is_ok() && bytes.len() > LARGE;
        assert!(!all, "the response was kept for it");
    }

    #[test]
    fn the_oldest_is_closed_and_large_responses_are_fewer() {
        let clients = Clients::default();
        let mut all: Vec<_> = (0..CONNECTIONS_MAX).map(|_| clients.enter()).collect();
        all[3..4 + LARGE_MAX].iter().for_each(|(client, _)| client.has_large_answer());
        let is_closed =
            |closed: &mut oneshot::Receiver<()>| closed.try_recv() == Err(oneshot::error::TryRecvError::Closed);
        let closed: Vec<usize> = (0..all.len()).filter(|at| is_closed(&mut all[*at].1)).collect();
        assert_eq!(closed, [3], "the oldest of the large ones");
        let two = [clients.enter(), clients.enter()];
        assert!(is_closed(&mut all[0].1) && !is_closed(&mut all[1].1), "one connection was closed");
        drop((two, all));
        assert!(clients.list().entries.is_empty());
    }
}

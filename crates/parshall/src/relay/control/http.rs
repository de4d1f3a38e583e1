//! `/metrics` and `/healthz` over HTTP. Whoever asks is a stranger: every request is bounded in size and time, and so is
//! the number of them; traffic runs in other threads.
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{ALLOW, CONTENT_TYPE};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};

use super::board::Board;
use super::bounded;
use super::snapshot::Snapshot;
use crate::relay::metrics;

/// From the connection to the last byte of the answer.
const TIME_MAX: Duration = Duration::from_secs(10);
/// For the head of the request.
const HEAD_TIME_MAX: Duration = Duration::from_secs(3);
/// Bytes of the head of the request.
const HEAD_BYTES_MAX: usize = 16 * 1024;

/// Answers until the task is dropped.
pub async fn serve(listener: std::net::TcpListener, board: Arc<Board>) {
    let prepared = listener.set_nonblocking(true).and_then(|()| TcpListener::from_std(listener));
    let listener = match prepared {
        Ok(listener) => listener,
        Err(e) => return eprintln!("relay: the metrics cannot be served: {e}"),
    };
    bounded::serve(listener, |stream| connection(stream, board.clone())).await;
}

async fn connection(stream: TcpStream, board: Arc<Board>) {
    let answer = service_fn(move |request| {
        let response = respond(&request, &board);
        async move { Ok::<_, Infallible>(response) }
    });
    let connection = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIME_MAX)
        .max_buf_size(HEAD_BYTES_MAX)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), answer);
    // What a stranger does wrong is no concern of the log.
    tokio::time::timeout(TIME_MAX, connection).await.map(drop).ok();
}

fn respond(request: &Request<Incoming>, board: &Board) -> Response<Full<Bytes>> {
    let plain = "text/plain; charset=utf-8";
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        let mut response = answer(StatusCode::METHOD_NOT_ALLOWED, plain, "only GET and HEAD\n".to_owned());
        response.headers_mut().insert(ALLOW, hyper::header::HeaderValue::from_static("GET, HEAD"));
        return response;
    }
    match request.uri().path() {
        "/metrics" => match metrics::text(Snapshot::take(board)) {
            Ok(text) => answer(StatusCode::OK, metrics::CONTENT_TYPE, text),
            Err(_) => answer(StatusCode::INTERNAL_SERVER_ERROR, plain, "the metrics could not be written\n".to_owned()),
        },
        // A load balancer in front takes it out while connections finish.
        "/healthz" if board.draining() => answer(StatusCode::SERVICE_UNAVAILABLE, plain, "draining\n".to_owned()),
        "/healthz" => answer(StatusCode::OK, plain, "ok\n".to_owned()),
        _ => answer(StatusCode::NOT_FOUND, plain, "here are /metrics and /healthz\n".to_owned()),
    }
}

fn answer(status: StatusCode, kind: &'static str, text: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(text)));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, hyper::header::HeaderValue::from_static(kind));
    response
}

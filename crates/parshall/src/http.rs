//! The HTTP server of metrics endpoints. Whoever asks is a stranger: every request is bounded in size and time, and so is
//! the number of them. What is answered belongs to the callers.
use std::convert::Infallible;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderValue};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};

use crate::bounded;

/// For the head of the request.
const HEAD_TIME_MAX: Duration = Duration::from_secs(3);
/// Bytes of the head of the request.
const HEAD_BYTES_MAX: usize = 16 * 1024;
/// Plain text.
pub const TEXT: &str = "text/plain; charset=utf-8";

/// An answer.
pub type Answer = Response<Full<Bytes>>;

/// Answers until the task is dropped. `time_max` is from the connection to the last byte of the answer.
pub async fn serve<F, R>(listener: std::net::TcpListener, who: &str, time_max: Duration, answer: F)
where
    F: Fn(Request<Incoming>) -> R + Clone + Send + 'static,
    R: Future<Output = Answer> + Send + 'static,
{
    let prepared = listener.set_nonblocking(true).and_then(|()| TcpListener::from_std(listener));
    let listener = match prepared {
        Ok(listener) => listener,
        Err(e) => return eprintln!("{who}: the metrics cannot be served: {e}"),
    };
    bounded::serve(listener, |stream| connection(stream, time_max, answer.clone())).await;
}

async fn connection<F, R>(stream: TcpStream, time_max: Duration, answer: F)
where
    F: Fn(Request<Incoming>) -> R,
    R: Future<Output = Answer>,
{
    let answer = service_fn(move |request: Request<Incoming>| {
        let only_reads = matches!(*request.method(), Method::GET | Method::HEAD);
        let answered = only_reads.then(|| answer(request));
        async move {
            Ok::<_, Infallible>(match answered {
                Some(answered) => answered.await,
                None => not_allowed(),
            })
        }
    });
    let connection = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIME_MAX)
        .max_buf_size(HEAD_BYTES_MAX)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), answer);
    // What a stranger does wrong is no concern of the log.
    tokio::time::timeout(time_max, connection).await.map(drop).ok();
}

fn not_allowed() -> Answer {
    let mut response = self::answer(StatusCode::METHOD_NOT_ALLOWED, TEXT, "only GET and HEAD\n");
    response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
    response
}

/// An answer of this kind.
pub fn answer(status: StatusCode, kind: &'static str, body: impl Into<Bytes>) -> Answer {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

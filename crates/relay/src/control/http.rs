//! What the relay answers over HTTP: `/metrics` and `/healthz`. Traffic runs in other threads.
use std::sync::Arc;
use std::time::Duration;

use hyper::StatusCode;

use super::board::Board;
use super::metrics;
use super::snapshot::Snapshot;
use parshall_host::http::{Answer, TEXT, answer};

/// From the connection to the last byte of the answer.
const TIME_MAX: Duration = Duration::from_secs(10);

/// Answers until the task is dropped.
pub async fn serve(listener: std::net::TcpListener, board: Arc<Board>) {
    let respond =
        move |request: hyper::Request<hyper::body::Incoming>| std::future::ready(respond(request.uri().path(), &board));
    parshall_host::http::serve(listener, TIME_MAX, respond).await;
}

fn respond(path: &str, board: &Board) -> Answer {
    match path {
        "/metrics" => match metrics::text(Snapshot::take(board)) {
            Ok(text) => answer(StatusCode::OK, metrics::CONTENT_TYPE, text),
            Err(_) => answer(StatusCode::INTERNAL_SERVER_ERROR, TEXT, "the metrics could not be written\n"),
        },
        // A load balancer in front takes it out while connections finish.
        "/healthz" if board.draining() => answer(StatusCode::SERVICE_UNAVAILABLE, TEXT, "draining\n"),
        "/healthz" => answer(StatusCode::OK, TEXT, "ok\n"),
        _ => answer(StatusCode::NOT_FOUND, TEXT, "here are /metrics and /healthz\n"),
    }
}

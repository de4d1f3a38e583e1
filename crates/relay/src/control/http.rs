//! The HTTP endpoint: `/metrics` and `/healthz`.
use std::sync::Arc;
use std::time::Duration;

use hyper::StatusCode;

use super::metrics;
use super::snapshot::Snapshot;
use super::status::Status;
use parshall_host::http::{Answer, TEXT, answer};
use parshall_host::open_metrics::CONTENT_TYPE;

/// The time from accept to the last byte of the response.
const TIME_MAX: Duration = Duration::from_secs(10);

/// Serves until the task is dropped.
pub async fn serve(listener: std::net::TcpListener, status: Arc<Status>) {
    let respond = move |request: hyper::Request<hyper::body::Incoming>| {
        std::future::ready(respond(request.uri().path(), &status))
    };
    parshall_host::http::serve(listener, TIME_MAX, respond).await;
}

fn respond(path: &str, status: &Status) -> Answer {
    match path {
        "/metrics" => match metrics::text(Snapshot::take(status)) {
            Ok(text) => answer(StatusCode::OK, CONTENT_TYPE, text),
            Err(_) => answer(StatusCode::INTERNAL_SERVER_ERROR, TEXT, "the metrics could not be written\n"),
        },
        // A load balancer in front then sends no new connections.
        "/healthz" if status.draining() => answer(StatusCode::SERVICE_UNAVAILABLE, TEXT, "draining\n"),
        "/healthz" => answer(StatusCode::OK, TEXT, "ok\n"),
        _ => answer(StatusCode::NOT_FOUND, TEXT, "here are /metrics and /healthz\n"),
    }
}

//! Sends one compressed request to an OTLP/HTTP receiver, and classifies its response (opentelemetry.io/docs/specs/otlp).
use std::io::Write;
use std::sync::Arc;
use std::time::{Duration, Instant};

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper::header::{CONTENT_ENCODING, CONTENT_TYPE, HOST, HeaderMap, RETRY_AFTER};
use hyper::rt::{Read, Write as AsyncWrite};
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use parshall_core::text::printable;
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio::runtime::Runtime;

use super::config::{OtlpConfig, Receiver};
use super::encode::rejected;
use crate::sink::delivery::{Chunk, Delivery, Refusal, Rejected};

/// The maximum size of a response body.
const RESPONSE_BYTES_MAX: usize = 64 * 1024;
/// The maximum pause of a `Retry-After` header. The delivery queue has its own pauses.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(30);

pub struct OtlpDelivery {
    config: OtlpConfig,
    receiver: Receiver,
    tls: Option<Arc<rustls::ClientConfig>>,
    /// `None` once it is closed.
    runtime: Option<Runtime>,
    /// The time of the last `Retry-After` header.
    not_before: Option<Instant>,
}

impl OtlpDelivery {
    /// Checks the configuration. Does not connect.
    ///
    /// # Errors
    /// A configuration error.
    pub fn new(config: OtlpConfig) -> anyhow::Result<Self> {
        let receiver = Receiver::parse(&config.url)?;
        let tls = if receiver.tls { Some(config.tls.clone().unwrap_or_default().load()?) } else { None };
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .enable_time()
            // Name lookups block, and at most one thread may be blocked by them.
            .max_blocking_threads(1)
            .build()?;
        Ok(Self { config, receiver, tls, runtime: Some(runtime), not_before: None })
    }

    fn post(&mut self, runtime: &Runtime, chunk: &Chunk) -> Result<Option<Rejected>, Refusal> {
        let limit = self.config.timeout;
        let exchange = exchange(&self.config, &self.receiver, self.tls.clone(), &chunk.bytes);
        let exchange = async { tokio::time::timeout(limit, exchange).await };
        let (status, headers, body) = match runtime.block_on(exchange) {
            Ok(answer) => answer?,
            Err(_) => {
                let text = format!("no answer from {} within {} ms", self.receiver.authority, limit.as_millis());
                return Err(Refusal { kind: "timeout", text, retriable: true });
            }
        };
        if status == StatusCode::OK {
            let (points, text) = rejected(&body);
            let text = match printable(&text, ' ') {
                text if text.is_empty() => format!("{} rejected {points} data points", self.receiver.authority),
                text => format!("{} rejected {points} data points: {text}", self.receiver.authority),
            };
            return Ok((points > 0).then_some(Rejected { rows: points, text }));
        }
        if let Some(pause) = headers.get(RETRY_AFTER).and_then(|v| v.to_str().ok()?.trim().parse().ok()) {
            self.not_before = Instant::now().checked_add(Duration::from_secs(pause).min(RETRY_AFTER_MAX));
        }
        Err(by_status(status, &body))
    }
}

impl Delivery for OtlpDelivery {
    fn deliver(&mut self, chunk: &Chunk) -> Result<Option<Rejected>, Refusal> {
        let Some(runtime) = self.runtime.take() else {
            return Err(Refusal { kind: "closed", text: "the sink is closed".to_owned(), retriable: false });
        };
        if let Some(pause) = self.not_before.take().map(|at| at.saturating_duration_since(Instant::now())) {
            std::thread::sleep(pause);
        }
        let outcome = self.post(&runtime, chunk);
        self.runtime = Some(runtime);
        outcome
    }

    fn close(&mut self, _: Duration) {
        if let Some(runtime) = self.runtime.take() {
            // Without waiting, because a name lookup may hang.
            runtime.shutdown_background();
        }
    }
}

impl Drop for OtlpDelivery {
    fn drop(&mut self) {
        self.close(Duration::ZERO);
    }
}

/// Classifies a status. The specification allows a retry after four of them.
fn by_status(status: StatusCode, body: &[u8]) -> Refusal {
    let (kind, retriable) = match status.as_u16() {
        429 => ("throttled", true),
        502..=504 => ("not-ready", true),
        401 | 403 => ("auth", false),
        413 => ("too-large", false),
        _ => ("rejected", false),
    };
    let said = String::from_utf8_lossy(&body[..body.len().min(200)]);
    Refusal { kind, text: format!("the receiver answers {status}: {}", printable(&said, ' ')), retriable }
}

type Answered = (StatusCode, HeaderMap, Bytes);

async fn exchange(
    config: &OtlpConfig,
    receiver: &Receiver,
    tls: Option<Arc<rustls::ClientConfig>>,
    body: &[u8],
) -> Result<Answered, Refusal> {
    let failed = |kind, error: &dyn std::fmt::Display| {
        let text = format!("{}: {}", receiver.authority, printable(&error.to_string(), ' '));
        Refusal { kind, text, retriable: true }
    };
    let stream = TcpStream::connect((receiver.host.as_str(), receiver.port)).await.map_err(|e| {
        let kind = if e.kind() == std::io::ErrorKind::ConnectionRefused { "refused" } else { "connection" };
        failed(kind, &e)
    })?;
    let request = request(config, receiver, body).map_err(|e| failed("internal", &e))?;
    let Some(tls) = tls else {
        return converse(TokioIo::new(stream), request).await.map_err(|e| failed("connection", &e));
    };
    let name = ServerName::try_from(receiver.host.clone()).map_err(|e| failed("tls", &e))?;
    let stream = tokio_rustls::TlsConnector::from(tls).connect(name, stream).await.map_err(|e| failed("tls", &e))?;
    converse(TokioIo::new(stream), request).await.map_err(|e| failed("connection", &e))
}

fn request(config: &OtlpConfig, receiver: &Receiver, body: &[u8]) -> Result<Request<Full<Bytes>>, hyper::http::Error> {
    let mut request = Request::post(receiver.path.as_str())
        .header(HOST, receiver.authority.as_str())
        .header(CONTENT_TYPE, "application/x-protobuf");
    for (name, value) in &config.headers {
        request = request.header(name, value);
    }
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    match gzip.write_all(body).and_then(|()| gzip.finish()) {
        Ok(packed) => request.header(CONTENT_ENCODING, "gzip").body(Full::from(packed)),
        Err(_) => request.body(Full::from(body.to_vec())),
    }
}

async fn converse<S>(
    stream: S,
    request: Request<Full<Bytes>>,
) -> Result<Answered, Box<dyn std::error::Error + Send + Sync>>
where
    S: Read + AsyncWrite + Unpin + Send + 'static,
{
    let (mut sender, connection) = hyper::client::conn::http1::handshake(stream).await?;
    let driver = tokio::spawn(connection);
    let answer = sender.send_request(request).await;
    let outcome = match answer {
        Ok(answer) => {
            let (head, body) = answer.into_parts();
            let body = Limited::new(body, RESPONSE_BYTES_MAX).collect().await?;
            Ok((head.status, head.headers, body.to_bytes()))
        }
        Err(error) => Err(error.into()),
    };
    driver.abort();
    outcome
}

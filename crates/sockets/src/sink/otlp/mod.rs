//! OTLP: the aggregates of every dump by HTTP to a receiver of OpenTelemetry; behind a delivery queue, so a receiver that is slow or
//! gone is never waited for by the collector. Rows that an account counts are data points here.
mod delivery;
mod encode;
pub mod table;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use parshall_core::sockets::aggregate::{Aggregator, Settings};
use parshall_core::sockets::{Dump, Row};
use parshall_evidence::socket::Completeness;

use self::delivery::{OtlpDelivery, Rejected};
use super::delivery::Chunk;
use super::delivery_queue::{DeliveryQueue, QueueConfig};
pub use super::tls::TlsConfig;
use super::{Account, Sink};
use parshall_host::error::UserError;

/// Where to, and how.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OtlpConfig {
    /// `http://HOST:PORT[/PATH]` or `https://...`; without a path it is `/v1/metrics`.
    pub url: String,
    /// Headers of every request (tokens, tenants).
    pub headers: Vec<(String, String)>,
    /// Whom to trust and who we are, for https.
    pub tls: Option<TlsConfig>,
    /// How long one request may take, connecting included.
    pub timeout: Duration,
}

/// The parts of a URL.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Receiver {
    tls: bool,
    host: String,
    port: u16,
    /// Host and port as they were given.
    authority: String,
    path: String,
}

impl Receiver {
    fn parse(url: &str) -> Result<Self, UserError> {
        let wrong = || {
            let hint = "give http://HOST:PORT or https://HOST:PORT, such as http://localhost:4318";
            UserError::new(format!("`{url}` is no address of an OTLP receiver"), hint)
        };
        let uri: hyper::Uri = url.parse().map_err(|_| wrong())?;
        let tls = match uri.scheme_str() {
            Some("http") => false,
            Some("https") => true,
            _ => return Err(wrong()),
        };
        let authority = uri.authority().filter(|a| !a.as_str().contains('@')).ok_or_else(wrong)?;
        // A port that is none would be taken for no port.
        if authority.port_u16().is_none() && authority.as_str() != authority.host() {
            return Err(wrong());
        }
        let path = match uri.path() {
            "" | "/" => "/v1/metrics",
            path => path,
        };
        Ok(Self {
            tls,
            host: authority.host().trim_start_matches('[').trim_end_matches(']').to_owned(),
            port: authority.port_u16().unwrap_or(if tls { 443 } else { 4318 }),
            authority: authority.as_str().to_owned(),
            path: path.to_owned(),
        })
    }
}

/// The sink.
pub struct OtlpSink {
    aggregator: Aggregator,
    queue: DeliveryQueue,
    rejected: Arc<Rejected>,
    /// When counting began.
    start_unix_ns: Option<u64>,
}

impl OtlpSink {
    /// Starts it. No receiver need be there yet. Needs whole dumps, with the groups of `aggregate::groups()`.
    ///
    /// # Errors
    /// A [`UserError`] for what cannot work; else if the delivery queue cannot be started.
    pub fn start(config: OtlpConfig, settings: Settings, queue: QueueConfig) -> anyhow::Result<Self> {
        for (name, value) in &config.headers {
            let good = name.parse::<hyper::header::HeaderName>().is_ok()
                && value.parse::<hyper::header::HeaderValue>().is_ok();
            if !good {
                return Err(UserError::new(format!("`{name}` is no header of HTTP"), "give NAME=VALUE").into());
            }
        }
        let rejected = Arc::<Rejected>::default();
        let delivery = OtlpDelivery::new(config, rejected.clone())?;
        let queue = DeliveryQueue::start("otlp", queue, Box::new(delivery))?;
        Ok(Self { aggregator: Aggregator::new(settings), queue, rejected, start_unix_ns: None })
    }
}

/// Points that were rejected by a receiver that took the rest are given up, not delivered.
fn account(mut account: Account, rejected: &Rejected) -> Account {
    let points = rejected.points.load(Ordering::Relaxed);
    let answers = rejected.answers.load(Ordering::Relaxed);
    account.rows_out = account.rows_out.saturating_sub(points);
    account.rows_dropped += points;
    if answers > 0 {
        account.errors.insert("partial", answers);
    }
    account
}

impl Sink for OtlpSink {
    fn name(&self) -> &str {
        "otlp"
    }

    fn rows(&mut self, _: &Dump, rows: &[Row<'_>]) -> anyhow::Result<()> {
        rows.iter().for_each(|row| self.aggregator.add(row));
        Ok(())
    }

    fn end(&mut self, dump: &Dump, _: &Completeness) -> anyhow::Result<()> {
        let start = *self.start_unix_ns.get_or_insert(dump.at_unix_ns);
        for request in encode::requests(&self.aggregator.end(), dump, start) {
            self.queue.offer(Chunk {
                sequence: dump.sequence,
                at_unix_ns: dump.at_unix_ns,
                rows: request.points,
                bytes: request.bytes.into(),
            });
        }
        Ok(())
    }

    fn account(&self) -> Account {
        account(self.queue.account(), &self.rejected)
    }

    fn close(self: Box<Self>, timeout: Duration) -> Account {
        account(self.queue.close(timeout), &self.rejected)
    }
}

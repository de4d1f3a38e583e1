//! OTLP over HTTP: sends the aggregates of every dump to an OpenTelemetry receiver. A delivery queue separates it from the
//! collector, which therefore never waits for a receiver. The rows of its account are data points.
mod delivery;
mod encode;
pub mod table;
#[cfg(test)]
mod tests;

use std::time::Duration;

use parshall_core::sockets::aggregate::{Aggregator, Settings};
use parshall_core::sockets::{Dump, Row};
use parshall_evidence::socket::Completeness;

use self::delivery::OtlpDelivery;
use super::delivery::Chunk;
use super::delivery_queue::{DeliveryQueue, QueueConfig};
pub use super::tls::TlsConfig;
use super::{Account, Sink};
use parshall_host::error::UserError;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OtlpConfig {
    /// `http://HOST:PORT[/PATH]` or `https://...`; the default path is `/v1/metrics`.
    pub url: String,
    /// Headers of every request, such as tokens.
    pub headers: Vec<(String, String)>,
    /// For https.
    pub tls: Option<TlsConfig>,
    /// The timeout of one request, including the connection.
    pub timeout: Duration,
}

/// The parts of a URL.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Receiver {
    tls: bool,
    host: String,
    port: u16,
    /// Host and port as in the URL.
    authority: String,
    path: String,
}

impl Receiver {
    fn parse(url: &str) -> Result<Self, UserError> {
        let wrong = || {
            let hint = "give http://HOST:PORT or https://HOST:PORT, such as http://localhost:4318";
            UserError::new(format!("`{url}` is not the address of an OTLP receiver"), hint)
        };
        let uri: hyper::Uri = url.parse().map_err(|_| wrong())?;
        let tls = match uri.scheme_str() {
            Some("http") => false,
            Some("https") => true,
            _ => return Err(wrong()),
        };
        let authority = uri.authority().filter(|a| !a.as_str().contains('@')).ok_or_else(wrong)?;
        // An invalid port would be treated as a missing one.
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

pub struct OtlpSink {
    aggregator: Aggregator,
    queue: DeliveryQueue,
}

impl OtlpSink {
    /// Starts the delivery queue. The receiver need not be reachable yet. Needs complete dumps with the groups of
    /// `aggregate::groups()`.
    ///
    /// # Errors
    /// A [`UserError`] for a configuration error, or the delivery queue cannot be started.
    pub fn start(config: OtlpConfig, settings: Settings, queue: QueueConfig) -> anyhow::Result<Self> {
        for (name, value) in &config.headers {
            let good = name.parse::<hyper::header::HeaderName>().is_ok()
                && value.parse::<hyper::header::HeaderValue>().is_ok();
            if !good {
                return Err(UserError::new(format!("`{name}` is not a valid HTTP header"), "give NAME=VALUE").into());
            }
        }
        let delivery = OtlpDelivery::new(config)?;
        let queue = DeliveryQueue::start("otlp", queue, Box::new(delivery))?;
        Ok(Self { aggregator: Aggregator::new(settings), queue })
    }
}

impl Sink for OtlpSink {
    fn name(&self) -> &str {
        "otlp"
    }

    fn rows(&mut self, _: &Dump, rows: &[Row<'_>]) -> anyhow::Result<()> {
        rows.iter().for_each(|row| self.aggregator.add(row));
        Ok(())
    }

    fn end(&mut self, dump: &Dump, completeness: &Completeness) -> anyhow::Result<()> {
        for request in encode::requests(&self.aggregator.end(dump.at_unix_ns, completeness), dump) {
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
        self.queue.account()
    }

    fn close(self: Box<Self>, timeout: Duration) -> Account {
        self.queue.close(timeout)
    }
}

//! OTLP over HTTP: sends the aggregates of every dump to an OpenTelemetry receiver. A delivery queue separates it from the
//! collector, which therefore never waits for a receiver. The rows of its account are data points.
mod config;
mod delivery;
mod encode;
pub mod table;
#[cfg(test)]
mod tests;

use std::time::Duration;

use parshall_core::sockets::aggregate::{Aggregator, Settings};
use parshall_core::sockets::{Dump, Row};
use parshall_evidence::socket::Completeness;

pub use self::config::OtlpConfig;
use self::delivery::OtlpDelivery;
use super::account::{Account, Sink};
use super::delivery::Chunk;
use super::delivery_queue::{DeliveryQueue, QueueConfig};
use parshall_host::error::UserError;

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

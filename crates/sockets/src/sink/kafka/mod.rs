//! Kafka: one envelope per message, of limited size. A delivery queue separates it from the collector, which therefore never
//! waits for a broker.
mod config;
mod delivery;
pub mod envelope;
mod key;
pub mod table;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::time::Duration;

use parshall_core::sockets::{Dump, Row};
use parshall_evidence::socket::Completeness;

pub use config::{Codec, KafkaConfig, Login, MESSAGE_BYTES, Mechanism};
pub use delivery::KafkaDelivery;
pub use key::Key;

use super::account::{Account, Sink};
use super::delivery::{Chunk, Refusal};
use super::delivery_queue::{DeliveryQueue, QueueConfig};
use envelope::{EnvelopeBuilder, Framing};

/// The maximum number of open envelopes with [`Key::Namespace`].
const OPEN_MAX: usize = 256;
/// The maximum size of all open envelopes.
const OPEN_BYTES_MAX: usize = 8 << 20;

pub struct KafkaSink {
    builders: Builders,
    queue: DeliveryQueue,
    reported_too_large: u64,
}

impl KafkaSink {
    /// Starts the delivery queue. Brokers need not be reachable yet.
    ///
    /// # Errors
    /// A `UserError` for a configuration error, or the delivery queue cannot be started.
    pub fn start(config: KafkaConfig, queue: QueueConfig) -> anyhow::Result<Self> {
        config.check()?;
        let builders = Builders::new(&config);
        let delivery = KafkaDelivery::new(config)?;
        Ok(Self { builders, queue: DeliveryQueue::start("kafka", queue, Box::new(delivery))?, reported_too_large: 0 })
    }

    fn report_too_large(&mut self) {
        let new = self.builders.too_large() - self.reported_too_large;
        if new > 0 {
            self.reported_too_large += new;
            let text = format!("{new} rows are larger than `message-size`");
            self.queue.count_dropped(new, Refusal { kind: "too-large", text, retriable: false });
        }
    }
}

impl Sink for KafkaSink {
    fn name(&self) -> &str {
        "kafka"
    }

    fn rows(&mut self, dump: &Dump, rows: &[Row<'_>]) -> anyhow::Result<()> {
        let queue = &self.queue;
        for row in rows {
            self.builders.row(dump, row, &mut |chunk| queue.offer(chunk));
        }
        Ok(())
    }

    fn end(&mut self, dump: &Dump, completeness: &Completeness) -> anyhow::Result<()> {
        let queue = &self.queue;
        self.builders.end(dump, completeness, &mut |chunk| queue.offer(chunk));
        self.report_too_large();
        Ok(())
    }

    fn account(&self) -> Account {
        let mut account = self.queue.account();
        // Rows in envelopes that are not complete yet.
        let open = self.builders.rows();
        account.rows_in += open;
        account.rows_waiting += open;
        account
    }

    fn close(mut self: Box<Self>, timeout: Duration) -> Account {
        let queue = &self.queue;
        self.builders.flush(&mut |chunk| queue.offer(chunk));
        self.report_too_large();
        self.queue.close(timeout)
    }
}

/// The open envelopes: one, or one for each namespace.
struct Builders {
    message_bytes: usize,
    framing: Framing,
    by_namespace: bool,
    /// The envelope of all rows, or of those without a namespace.
    host: EnvelopeBuilder,
    namespaces: BTreeMap<u32, EnvelopeBuilder>,
    /// The size of all envelopes in `namespaces`.
    open_bytes: usize,
    /// Rows that were too large for builders that no longer exist.
    too_large: u64,
}

impl Builders {
    fn new(config: &KafkaConfig) -> Self {
        Self {
            message_bytes: config.message_bytes,
            framing: config.framing,
            by_namespace: config.key == Key::Namespace,
            host: EnvelopeBuilder::new(config.message_bytes, config.framing),
            namespaces: BTreeMap::new(),
            open_bytes: 0,
            too_large: 0,
        }
    }

    fn row(&mut self, dump: &Dump, row: &Row<'_>, take: &mut dyn FnMut(Chunk)) {
        if !self.by_namespace {
            return self.host.row(dump, row, take);
        }
        if self.namespaces.len() >= OPEN_MAX && !self.namespaces.contains_key(&row.record.netns)
            || self.open_bytes >= OPEN_BYTES_MAX
        {
            self.flush(take);
        }
        let new = || EnvelopeBuilder::new(self.message_bytes, self.framing);
        let builder = self.namespaces.entry(row.record.netns).or_insert_with(new);
        let before = builder.wire_bytes();
        builder.row(dump, row, take);
        self.open_bytes = (self.open_bytes + builder.wire_bytes()).saturating_sub(before);
    }

    fn end(&mut self, dump: &Dump, completeness: &Completeness, take: &mut dyn FnMut(Chunk)) {
        // The completeness of a dump comes after all of its rows.
        self.flush_namespaces(take);
        self.host.end(dump, completeness, take);
    }

    fn flush(&mut self, take: &mut dyn FnMut(Chunk)) {
        self.flush_namespaces(take);
        self.host.flush(take);
    }

    fn flush_namespaces(&mut self, take: &mut dyn FnMut(Chunk)) {
        for mut builder in std::mem::take(&mut self.namespaces).into_values() {
            builder.flush(take);
            self.too_large += builder.too_large();
        }
        self.open_bytes = 0;
    }

    fn rows(&self) -> u64 {
        u64::from(self.host.rows()) + self.namespaces.values().map(|b| u64::from(b.rows())).sum::<u64>()
    }

    fn too_large(&self) -> u64 {
        self.too_large + self.host.too_large() + self.namespaces.values().map(EnvelopeBuilder::too_large).sum::<u64>()
    }
}

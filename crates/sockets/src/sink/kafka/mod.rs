//! Kafka: one envelope per message, of at most so many bytes; behind a delivery queue, so a broker that refuses, hangs or goes away
//! is never waited for by the collector.
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
use rskafka::client::{Credentials, SaslConfig};

pub use delivery::KafkaDelivery;
pub use key::Key;

use super::delivery::{Chunk, Refusal};
use super::delivery_queue::{DeliveryQueue, QueueConfig};
pub use super::tls::TlsConfig;
use super::{Account, Sink};
use envelope::{EnvelopeBuilder, Framing};
use parshall_host::error::UserError;

/// The largest envelope by default: brokers take 1,048,588 bytes (`message.max.bytes`), with at most some hundred of them
/// for the batch around the envelope and its key.
pub const MESSAGE_BYTES: usize = 1_000_000;
/// With a key by namespace: how many envelopes may be begun at a time, and how large all of them may be together.
const OPEN_MAX: usize = 256;
const OPEN_BYTES_MAX: usize = 8 << 20;

/// How a login proves itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mechanism {
    /// The password itself; only over TLS.
    Plain,
    /// SCRAM-SHA-256.
    ScramSha256,
    /// SCRAM-SHA-512.
    ScramSha512,
}

/// Who we are to the broker (SASL).
#[derive(Clone, PartialEq, Eq)]
pub struct Login {
    /// How it is proved.
    pub mechanism: Mechanism,
    /// User.
    pub user: String,
    /// Password.
    pub password: String,
}

// A password has no business in a log.
impl std::fmt::Debug for Login {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Login").field("mechanism", &self.mechanism).field("user", &self.user).finish_non_exhaustive()
    }
}

impl Login {
    fn sasl(&self) -> SaslConfig {
        let credentials = Credentials::new(self.user.clone(), self.password.clone());
        match self.mechanism {
            Mechanism::Plain => SaslConfig::Plain(credentials),
            Mechanism::ScramSha256 => SaslConfig::ScramSha256(credentials),
            Mechanism::ScramSha512 => SaslConfig::ScramSha512(credentials),
        }
    }
}

/// Compression of messages.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Codec {
    None,
    Gzip,
    Lz4,
    Snappy,
    #[default]
    Zstd,
}

impl Codec {
    /// Every codec with its name.
    pub const NAMES: [(&'static str, Self); 5] = [
        ("none", Self::None),
        ("gzip", Self::Gzip),
        ("lz4", Self::Lz4),
        ("snappy", Self::Snappy),
        ("zstd", Self::Zstd),
    ];
}

/// Where to, and how.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KafkaConfig {
    /// Brokers to begin with, as `HOST:PORT`.
    pub brokers: Vec<String>,
    /// The topic; it must exist.
    pub topic: String,
    /// TLS, if the listener wants it.
    pub tls: Option<TlsConfig>,
    /// Login, if the listener wants it.
    pub login: Option<Login>,
    /// Compression.
    pub compression: Codec,
    /// What decides on the partition.
    pub key: Key,
    /// Whether an envelope carries its length; ClickHouse's ProtobufList wants it.
    pub framing: Framing,
    /// Bytes of an envelope, exactly.
    pub message_bytes: usize,
    /// How long one message may take, connecting included.
    pub timeout: Duration,
}

impl KafkaConfig {
    /// With everything at its default.
    pub fn new(brokers: Vec<String>, topic: impl Into<String>) -> Self {
        Self {
            brokers,
            topic: topic.into(),
            tls: None,
            login: None,
            compression: Codec::default(),
            key: Key::default(),
            framing: Framing::Bare,
            message_bytes: MESSAGE_BYTES,
            timeout: Duration::from_secs(10),
        }
    }

    /// What cannot work, before anything is tried.
    fn check(&self) -> Result<(), UserError> {
        let port =
            |broker: &str| broker.rsplit_once(':').is_some_and(|(h, p)| !h.is_empty() && p.parse::<u16>().is_ok());
        if let Some(broker) = self.brokers.iter().find(|b| !port(b)) {
            return Err(UserError::new(format!("`{broker}` is no broker"), "give HOST:PORT, such as kafka1:9092"));
        }
        if self.brokers.is_empty() || self.topic.is_empty() {
            return Err(UserError::new("the Kafka sink needs a broker and a topic", "give HOST:PORT/TOPIC"));
        }
        if self.tls.is_none() && self.login.as_ref().is_some_and(|l| l.mechanism == Mechanism::Plain) {
            let hint = "use TLS, or one of the SCRAM mechanisms";
            return Err(UserError::new("a plain login without TLS would show the password to the network", hint));
        }
        Ok(())
    }
}

/// The sink.
pub struct KafkaSink {
    builders: Builders,
    queue: DeliveryQueue,
    reported_too_large: u64,
}

impl KafkaSink {
    /// Starts it. No broker need be there yet.
    ///
    /// # Errors
    /// A [`UserError`] for what cannot work; else if the delivery queue cannot be started.
    pub fn start(config: KafkaConfig, queue: QueueConfig) -> anyhow::Result<Self> {
        config.check()?;
        let builders = Builders::new(&config);
        let delivery = KafkaDelivery::new(config)?;
        Ok(Self { builders, queue: DeliveryQueue::start("kafka", queue, Box::new(delivery))?, reported_too_large: 0 })
    }

    fn tell_too_large(&mut self) {
        let new = self.builders.too_large() - self.reported_too_large;
        if new > 0 {
            self.reported_too_large += new;
            let text = format!("{new} rows are larger than a message may be");
            self.queue.give_up(new, Refusal { kind: "too-large", text, retriable: false });
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
        self.tell_too_large();
        Ok(())
    }

    fn account(&self) -> Account {
        let mut account = self.queue.account();
        // Rows of envelopes that are not full yet.
        let begun = self.builders.rows();
        account.rows_in += begun;
        account.rows_waiting += begun;
        account
    }

    fn close(mut self: Box<Self>, timeout: Duration) -> Account {
        let queue = &self.queue;
        self.builders.flush(&mut |chunk| queue.offer(chunk));
        self.tell_too_large();
        self.queue.close(timeout)
    }
}

/// The envelopes that are being filled: one, or one for each namespace.
struct Builders {
    message_bytes: usize,
    framing: Framing,
    by_namespace: bool,
    /// The envelope of everything, or of what has no namespace.
    host: EnvelopeBuilder,
    namespaces: BTreeMap<u32, EnvelopeBuilder>,
    /// Bytes of all envelopes of namespaces.
    open_bytes: usize,
    /// Counted by builders that are gone.
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
        // The account of a dump comes after all of its rows.
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

//! Delivers one envelope to a broker within a timeout: connects, chooses a partition, produces, and classifies errors.
//!
//! After an error that a new connection may solve, the client is dropped: a new one finds brokers that moved or returned, and
//! does not wait for a connection that hangs. The client's own retries are off, because every retransmission of a message that
//! the broker may have stored must be counted.
use std::time::Duration;

use parshall_core::text::printable;
use rskafka::client::error::{Error, ProtocolError};
use rskafka::client::partition::{Compression, PartitionClient, UnknownTopicHandling};
use rskafka::client::{Client, ClientBuilder};
use rskafka::record::Record;
use rskafka::{BackoffConfig, BackoffError};
use tokio::runtime::Runtime;

use super::config::{Codec, KafkaConfig};
use super::key;
use crate::sink::delivery::{Chunk, Delivery, Refusal, Rejected};
use crate::sink::tls::TlsConfig;

/// The maximum size of a response. The metadata of a large cluster is the longest one.
const RESPONSE_BYTES_MAX: usize = 16 << 20;

/// Delivers envelopes to the partitions of one topic.
pub struct KafkaDelivery {
    config: KafkaConfig,
    tls: Option<std::sync::Arc<rustls::ClientConfig>>,
    /// `None` once it is closed.
    runtime: Option<Runtime>,
    connected: Option<Connected>,
    /// Counts messages without a key, which go to the partitions in turn.
    round_robin: usize,
}

struct Connected {
    client: Client,
    /// Numbers of the topic's partitions, ascending.
    partitions: Vec<i32>,
    /// Clients of the partitions that were used.
    open: std::collections::BTreeMap<i32, PartitionClient>,
}

impl KafkaDelivery {
    /// Reads the files of the TLS configuration. Does not connect, because brokers may start later.
    ///
    /// # Errors
    /// A file of the TLS configuration cannot be used.
    pub fn new(config: KafkaConfig) -> anyhow::Result<Self> {
        let tls = config.tls.as_ref().map(TlsConfig::load).transpose()?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .enable_time()
            // Name lookups block, and at most one thread may be blocked by them.
            .max_blocking_threads(1)
            .build()?;
        Ok(Self { config, tls, runtime: Some(runtime), connected: None, round_robin: 0 })
    }
}

impl Delivery for KafkaDelivery {
    fn deliver(&mut self, chunk: &Chunk) -> Result<Option<Rejected>, Refusal> {
        let Some(runtime) = self.runtime.take() else {
            return Err(Refusal { kind: "closed", text: "the sink is closed".to_owned(), retriable: false });
        };
        let mut sent = false;
        let attempt = async {
            let limit = self.config.timeout;
            let (connected, round_robin) = (&mut self.connected, &mut self.round_robin);
            let attempt = attempt(&self.config, &self.tls, connected, round_robin, chunk, &mut sent);
            tokio::time::timeout(limit, attempt).await
        };
        let outcome = runtime.block_on(attempt);
        self.runtime = Some(runtime);
        let refusal = match outcome {
            Ok(Ok(())) => return Ok(None),
            Ok(Err(error)) => refusal(&error, sent),
            Err(_) => timed_out(sent, self.config.timeout),
        };
        if refusal.retriable {
            self.connected = None;
        }
        Err(refusal)
    }

    fn close(&mut self, _: Duration) {
        self.connected = None;
        if let Some(runtime) = self.runtime.take() {
            // Without waiting, because a name lookup may hang.
            runtime.shutdown_background();
        }
    }
}

impl Drop for KafkaDelivery {
    fn drop(&mut self) {
        self.close(Duration::ZERO);
    }
}

async fn attempt(
    config: &KafkaConfig,
    tls: &Option<std::sync::Arc<rustls::ClientConfig>>,
    connected: &mut Option<Connected>,
    round_robin: &mut usize,
    chunk: &Chunk,
    sent: &mut bool,
) -> Result<(), Error> {
    let place = match connected {
        Some(place) => place,
        None => connected.insert(connect(config, tls).await?),
    };
    let key = key::of(config.key, &chunk.bytes);
    let at = match &key {
        Some(key) => key::partition(key, place.partitions.len()),
        None => {
            *round_robin = round_robin.wrapping_add(1);
            *round_robin % place.partitions.len()
        }
    };
    let number = place.partitions[at];
    let partition = match place.open.entry(number) {
        std::collections::btree_map::Entry::Occupied(entry) => entry.into_mut(),
        std::collections::btree_map::Entry::Vacant(entry) => {
            let topic = config.topic.as_str();
            entry.insert(place.client.partition_client(topic, number, UnknownTopicHandling::Error).await?)
        }
    };
    let timestamp = i64::try_from(chunk.at_unix_ns).unwrap_or(i64::MAX);
    let record = Record {
        key,
        value: Some(chunk.bytes.to_vec()),
        headers: std::collections::BTreeMap::new(),
        timestamp: chrono::DateTime::from_timestamp_nanos(timestamp),
    };
    *sent = true;
    partition.produce(vec![record], config.compression.into()).await.map(drop)
}

async fn connect(config: &KafkaConfig, tls: &Option<std::sync::Arc<rustls::ClientConfig>>) -> Result<Connected, Error> {
    let once = BackoffConfig { deadline: Some(Duration::ZERO), ..BackoffConfig::default() };
    let mut builder = ClientBuilder::new(config.brokers.clone())
        .client_id("parshall")
        .max_message_size(RESPONSE_BYTES_MAX)
        .backoff_config(once);
    if let Some(tls) = tls {
        builder = builder.tls_config(tls.clone());
    }
    if let Some(login) = &config.login {
        builder = builder.sasl_config(login.sasl());
    }
    let client = builder.build().await?;
    let topics = client.list_topics().await?;
    let Some(topic) = topics.into_iter().find(|topic| topic.name == config.topic) else {
        return Err(Error::InvalidResponse(format!("{NO_TOPIC} {}", config.topic)));
    };
    let partitions: Vec<i32> = topic.partitions.into_iter().collect();
    if partitions.is_empty() {
        return Err(Error::InvalidResponse(format!("the topic {} has no partitions", config.topic)));
    }
    Ok(Connected { client, partitions, open: std::collections::BTreeMap::new() })
}

const NO_TOPIC: &str = "there is no topic";

fn timed_out(sent: bool, limit: Duration) -> Refusal {
    let text = format!("no answer from the broker within {} ms", limit.as_millis());
    Refusal { kind: if sent { "unacknowledged" } else { "timeout" }, text, retriable: true }
}

/// Classifies an error. The broker may have stored a message that it did not acknowledge. Such a message is sent again, and
/// `unacknowledged` counts it, so that the count is an upper bound of duplicates.
fn refusal(error: &Error, sent: bool) -> Refusal {
    let error = innermost(error);
    let text = one_line(error);
    let (kind, retriable) = match error {
        Error::ServerError { protocol_error, .. } => by_protocol_error(*protocol_error),
        // Without a connection nothing was sent.
        Error::Connection(_) => (by_text(&text), true),
        _ if sent => ("unacknowledged", true),
        _ => (by_text(&text), true),
    };
    Refusal { kind, text, retriable }
}

/// The error inside the one that the client returns when its retries are used up.
fn innermost(error: &Error) -> &Error {
    match error {
        Error::RetryFailed(BackoffError::DeadlineExceded { source, .. }) => {
            source.downcast_ref::<Error>().map_or(error, innermost)
        }
        _ => error,
    }
}

/// The kind of an error that a broker returned, and whether another attempt can succeed. Except for `unacknowledged`, the
/// broker has not stored the message.
fn by_protocol_error(error: ProtocolError) -> (&'static str, bool) {
    match error {
        ProtocolError::MessageTooLarge | ProtocolError::RecordListTooLarge => ("too-large", false),
        ProtocolError::CorruptMessage | ProtocolError::InvalidRecord => ("rejected", false),
        ProtocolError::TopicAuthorizationFailed
        | ProtocolError::ClusterAuthorizationFailed
        | ProtocolError::SaslAuthenticationFailed => ("auth", true),
        ProtocolError::UnknownTopicOrPartition => ("no-topic", true),
        ProtocolError::RequestTimedOut | ProtocolError::NotEnoughReplicasAfterAppend => ("unacknowledged", true),
        ProtocolError::KafkaStorageError => ("disk-full", true),
        _ => ("not-ready", true),
    }
}

/// The kind of an error of the client, whose causes are boxed, by its text.
fn by_text(text: &str) -> &'static str {
    let lower = text.to_ascii_lowercase();
    let any = |words: &[&str]| words.iter().any(|word| lower.contains(word));
    if any(&["sasl", "authentication"]) {
        "auth"
    } else if any(&["certificate", "tls", "handshake"]) {
        "tls"
    } else if any(&["refused"]) {
        "refused"
    } else if any(&["lookup", "name or service", "name resolution"]) {
        "name"
    } else if any(&[NO_TOPIC]) {
        "no-topic"
    } else {
        "connection"
    }
}

/// The text of an error as one line of at most 300 characters, without the prefix that every failed connection has.
fn one_line(error: &Error) -> String {
    const WRAPPING: &str = "Connection error: all retries failed: Retry exceeded deadline. Source: ";
    let text = error.to_string();
    let text = text.strip_prefix(WRAPPING).unwrap_or(&text);
    printable(text, ' ').chars().take(300).collect()
}

impl From<Codec> for Compression {
    fn from(codec: Codec) -> Self {
        match codec {
            Codec::None => Self::NoCompression,
            Codec::Gzip => Self::Gzip,
            Codec::Lz4 => Self::Lz4,
            Codec::Snappy => Self::Snappy,
            Codec::Zstd => Self::Zstd,
        }
    }
}

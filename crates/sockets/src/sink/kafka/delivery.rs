//! One envelope to a broker, and no later than agreed: connecting, choosing a partition, producing, and what a refusal is.
//!
//! After any failure that may be the connection's the client is thrown away: a fresh one finds brokers that moved or came
//! back, and nothing that hung is waited for again. The client's own retries are off, because every repetition of a
//! message that may have arrived has to be counted.
use std::time::Duration;

use rskafka::client::error::{Error, ProtocolError};
use rskafka::client::partition::{Compression, PartitionClient, UnknownTopicHandling};
use rskafka::client::{Client, ClientBuilder};
use rskafka::record::Record;
use rskafka::{BackoffConfig, BackoffError};
use tokio::runtime::Runtime;

use super::{KafkaConfig, key};
use crate::sink::delivery::{Chunk, Delivery, Refusal};

/// Answers of brokers are short; metadata of a large cluster is the longest.
const ANSWER_BYTES_MAX: usize = 16 << 20;

/// Brings envelopes to the partitions of one topic.
pub struct KafkaDelivery {
    config: KafkaConfig,
    tls: Option<std::sync::Arc<rustls::ClientConfig>>,
    /// Taken when it is closed.
    runtime: Option<Runtime>,
    connected: Option<Connected>,
    /// The next partition for messages without a key.
    turn: usize,
}

struct Connected {
    client: Client,
    /// Numbers of the topic's partitions, ascending.
    partitions: Vec<i32>,
    /// Clients of those that were used.
    open: std::collections::BTreeMap<i32, PartitionClient>,
}

impl KafkaDelivery {
    /// Reads what the configuration names; connects to nothing yet, because brokers may come later.
    ///
    /// # Errors
    /// If a file of keys is of no use.
    pub fn new(config: KafkaConfig) -> anyhow::Result<Self> {
        let tls = config.tls.as_ref().map(super::TlsConfig::load).transpose()?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .enable_time()
            // For looking up names, which may hang: no more than one thread ever does.
            .max_blocking_threads(1)
            .build()?;
        Ok(Self { config, tls, runtime: Some(runtime), connected: None, turn: 0 })
    }
}

impl Delivery for KafkaDelivery {
    fn deliver(&mut self, chunk: &Chunk) -> Result<(), Refusal> {
        let Some(runtime) = self.runtime.take() else {
            return Err(Refusal { kind: "closed", text: "the sink is closed".to_owned(), retriable: false });
        };
        let mut sent = false;
        let attempt = async {
            let limit = self.config.timeout;
            let attempt = attempt(&self.config, &self.tls, &mut self.connected, &mut self.turn, chunk, &mut sent);
            tokio::time::timeout(limit, attempt).await
        };
        let outcome = runtime.block_on(attempt);
        self.runtime = Some(runtime);
        let refusal = match outcome {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(error)) => refusal(&error, sent),
            Err(_) => late(sent, self.config.timeout),
        };
        if refusal.retriable {
            self.connected = None;
        }
        Err(refusal)
    }

    fn close(&mut self, _: Duration) {
        self.connected = None;
        if let Some(runtime) = self.runtime.take() {
            // Not waited for: a lookup of a name may hang.
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
    turn: &mut usize,
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
            *turn = turn.wrapping_add(1);
            *turn % place.partitions.len()
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
        .max_message_size(ANSWER_BYTES_MAX)
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

fn late(sent: bool, limit: Duration) -> Refusal {
    let text = format!("no answer from the broker within {} ms", limit.as_millis());
    Refusal { kind: if sent { "unacknowledged" } else { "timeout" }, text, retriable: true }
}

/// What an error means for the message. A message that was sent and not answered may be there or not; it is sent again,
/// and `unacknowledged` counts how often, which bounds how many messages can be there twice.
fn refusal(error: &Error, sent: bool) -> Refusal {
    let error = innermost(error);
    let text = told(error);
    let (kind, retriable) = match error {
        Error::ServerError { protocol_error, .. } => by_answer(*protocol_error),
        // No connection, nothing sent.
        Error::Connection(_) => (by_text(&text), true),
        _ if sent => ("unacknowledged", true),
        _ => (by_text(&text), true),
    };
    Refusal { kind, text, retriable }
}

/// The client wraps what it might have tried again.
fn innermost(error: &Error) -> &Error {
    match error {
        Error::RetryFailed(BackoffError::DeadlineExceded { source, .. }) => {
            source.downcast_ref::<Error>().map_or(error, innermost)
        }
        _ => error,
    }
}

/// A broker that answers has not written anything.
fn by_answer(error: ProtocolError) -> (&'static str, bool) {
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

/// The client hides causes behind boxes, so their words have to do.
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

/// An error in one line of bounded length, without the words that every failure to connect begins with.
fn told(error: &Error) -> String {
    const WRAPPING: &str = "Connection error: all retries failed: Retry exceeded deadline. Source: ";
    let text = error.to_string();
    let text = text.strip_prefix(WRAPPING).unwrap_or(&text);
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(300).collect()
}

impl From<super::Codec> for Compression {
    fn from(codec: super::Codec) -> Self {
        match codec {
            super::Codec::None => Self::NoCompression,
            super::Codec::Gzip => Self::Gzip,
            super::Codec::Lz4 => Self::Lz4,
            super::Codec::Snappy => Self::Snappy,
            super::Codec::Zstd => Self::Zstd,
        }
    }
}

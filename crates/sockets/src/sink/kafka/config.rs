//! The brokers and the topic of a Kafka sink, and its messages.
use std::time::Duration;

use parshall_host::error::UserError;
use rskafka::client::{Credentials, SaslConfig};

use super::envelope::Framing;
use super::key::Key;
use crate::sink::tls::TlsConfig;

/// The default maximum of an envelope. Brokers accept 1,048,588 bytes (`message.max.bytes`), of which the batch around the
/// envelope and its key take some hundred.
pub const MESSAGE_BYTES: usize = 1_000_000;
/// The SASL mechanism.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mechanism {
    /// Sends the password itself, so it is allowed only with TLS.
    Plain,
    ScramSha256,
    ScramSha512,
}

/// The SASL credentials.
#[derive(Clone, PartialEq, Eq)]
pub struct Login {
    pub mechanism: Mechanism,
    pub user: String,
    pub password: String,
}

// The password must not be logged.
impl std::fmt::Debug for Login {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Login").field("mechanism", &self.mechanism).field("user", &self.user).finish_non_exhaustive()
    }
}

impl Login {
    pub(super) fn sasl(&self) -> SaslConfig {
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
pub enum Codec {
    None,
    Gzip,
    Lz4,
    Snappy,
    #[default]
    Zstd,
}

impl Codec {
    /// Every codec, with its name in the table.
    pub const NAMES: [(&'static str, Self); 5] = [
        ("none", Self::None),
        ("gzip", Self::Gzip),
        ("lz4", Self::Lz4),
        ("snappy", Self::Snappy),
        ("zstd", Self::Zstd),
    ];
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KafkaConfig {
    /// Bootstrap brokers, as `HOST:PORT`.
    pub brokers: Vec<String>,
    /// The topic, which must exist.
    pub topic: String,
    pub tls: Option<TlsConfig>,
    pub login: Option<Login>,
    pub compression: Codec,
    pub key: Key,
    pub framing: Framing,
    /// The maximum size of an envelope.
    pub message_bytes: usize,
    /// The timeout of one message, including a new connection.
    pub timeout: Duration,
}

impl KafkaConfig {
    /// A configuration with defaults for all else.
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

    /// Finds errors that need no connection.
    pub(super) fn check(&self) -> Result<(), UserError> {
        let port =
            |broker: &str| broker.rsplit_once(':').is_some_and(|(h, p)| !h.is_empty() && p.parse::<u16>().is_ok());
        if let Some(broker) = self.brokers.iter().find(|b| !port(b)) {
            return Err(UserError::new(
                format!("`{broker}` is not the address of a broker"),
                "give HOST:PORT, such as kafka1:9092",
            ));
        }
        if self.brokers.is_empty() || self.topic.is_empty() {
            return Err(UserError::new(
                "the Kafka sink needs a broker and a topic",
                "write `brokers = [\"HOST:PORT\"]` and `topic = \"NAME\"`",
            ));
        }
        if self.tls.is_none() && self.login.as_ref().is_some_and(|l| l.mechanism == Mechanism::Plain) {
            let hint = "use TLS, or one of the SCRAM mechanisms";
            return Err(UserError::new("a plain login without TLS would send the password unencrypted", hint));
        }
        Ok(())
    }
}

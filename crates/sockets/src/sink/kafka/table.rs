//! The table `[[kafka]]`.
use std::path::PathBuf;
use std::time::Duration;

use parshall_host::error::UserError;
use serde::{Deserialize, Deserializer};

use super::envelope::Framing;
use super::{Codec, KafkaConfig, KafkaSink, Key, Login, MESSAGE_BYTES, Mechanism};
use crate::sink::account::Sink;
use crate::sink::delivery_queue::{QueueConfig, SpoolTable, queue_bytes};
use crate::sink::request::{Shared, SinkRequest, SinkTable};
use crate::sink::table::{duration, one_of, secret, size, timeout};
use crate::sink::tls::TlsTable;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Table {
    brokers: Vec<String>,
    topic: String,
    tls: Option<TlsTable>,
    login: Option<LoginTable>,
    #[serde(default, deserialize_with = "codec")]
    compression: Codec,
    #[serde(default, deserialize_with = "key")]
    key: Key,
    #[serde(default)]
    delimited: bool,
    #[serde(default = "message_size", deserialize_with = "size")]
    message_size: u64,
    #[serde(default = "timeout", deserialize_with = "duration")]
    timeout: Duration,
    #[serde(default = "queue_bytes", deserialize_with = "size")]
    queue: u64,
    spool: Option<SpoolTable>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct LoginTable {
    #[serde(deserialize_with = "mechanism")]
    mechanism: Mechanism,
    user: String,
    password: Option<String>,
    password_file: Option<PathBuf>,
}

// The password must not be logged.
impl std::fmt::Debug for LoginTable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LoginTable").field("user", &self.user).finish_non_exhaustive()
    }
}

#[derive(Debug)]
struct KafkaRequest(KafkaConfig, QueueConfig);

impl SinkTable for Table {
    fn validate(self) -> Result<Box<dyn SinkRequest>, UserError> {
        let config = KafkaConfig {
            tls: self.tls.map(TlsTable::validate).transpose()?,
            login: self.login.map(LoginTable::validate).transpose()?,
            compression: self.compression,
            key: self.key,
            framing: if self.delimited { Framing::Delimited } else { Framing::Bare },
            message_bytes: self.message_size as usize,
            timeout: self.timeout,
            ..KafkaConfig::new(self.brokers, self.topic)
        };
        Ok(Box::new(KafkaRequest(config, QueueConfig::of_table(self.queue, self.spool))))
    }
}

impl LoginTable {
    fn validate(self) -> Result<Login, UserError> {
        let password = match (self.password, self.password_file) {
            (Some(password), None) => password,
            (None, Some(path)) => secret("password", &path)?,
            _ => {
                let hint = "give `password-file`, or `password` in a file that only this user may read";
                return Err(UserError::new("`login` needs one password", hint));
            }
        };
        Ok(Login { mechanism: self.mechanism, user: self.user, password })
    }
}

impl SinkRequest for KafkaRequest {
    fn kind(&self) -> &'static str {
        "kafka"
    }

    fn open(self: Box<Self>, _: &mut Shared) -> anyhow::Result<Box<dyn Sink>> {
        Ok(Box::new(KafkaSink::start(self.0, self.1)?))
    }
}

fn message_size() -> u64 {
    MESSAGE_BYTES as u64
}

fn codec<'de, D: Deserializer<'de>>(from: D) -> Result<Codec, D::Error> {
    one_of(from, "compression", &Codec::NAMES)
}

fn key<'de, D: Deserializer<'de>>(from: D) -> Result<Key, D::Error> {
    one_of(from, "key", &[("host", Key::Host), ("namespace", Key::Namespace), ("none", Key::None)])
}

fn mechanism<'de, D: Deserializer<'de>>(from: D) -> Result<Mechanism, D::Error> {
    let names = [
        ("plain", Mechanism::Plain),
        ("scram-sha-256", Mechanism::ScramSha256),
        ("scram-sha-512", Mechanism::ScramSha512),
    ];
    one_of(from, "mechanism", &names)
}

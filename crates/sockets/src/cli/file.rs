//! The file of `parshall sockets stream -c`: which sinks, each with what it needs. TOML, one table per sink.
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use parshall_core::sockets::aggregate::{Label, Labels, Settings};
use parshall_core::sockets::retry::Retry;
use parshall_core::text::position;
use parshall_core::values::{self, ValueError};
use serde::{Deserialize, Deserializer};

use super::validate::KEEP_FILES;
use crate::endpoint::Token;
use crate::format::envelope::Framing;
use crate::request::{SinkRequest, SocketFormat};
use crate::sink::files::{FileFormat, FilesConfig};
use crate::sink::kafka::{Codec, KafkaConfig, Key, Login, Mechanism};
use crate::sink::otlp::OtlpConfig;
use crate::sink::outlet::OutletConfig;
use crate::sink::spool::SpoolConfig;
use crate::sink::tls::TlsConfig;
use parshall_host::error::UserError;

/// Bytes that wait in memory before the spool, or before rows are refused.
const QUEUE_BYTES: u64 = 16 << 20;
/// Room in a spool is given back in pieces of this size.
const SEGMENT_BYTES: u64 = 16 << 20;
/// Where the collector's endpoint listens if nobody says.
pub const LISTEN: &str = "127.0.0.1:9474";

/// Reads the file.
///
/// # Errors
/// It cannot be read, or the first mistake in it with its line and column.
pub fn read(path: &Path) -> Result<Vec<SinkRequest>, UserError> {
    let text = std::fs::read_to_string(path).map_err(|error| {
        UserError::new(format!("cannot read {}: {error}", path.display()), "give the path of a TOML file of sinks")
    })?;
    parse(&text).map_err(|UserError { what, hint }| UserError::new(format!("{}: {what}", path.display()), hint))
}

/// The sinks of a file's text.
fn parse(text: &str) -> Result<Vec<SinkRequest>, UserError> {
    let file: File = toml::from_str(text).map_err(|error| {
        let (line, column) = position(text, error.span().map_or(0, |span| span.start));
        let (what, hint) = error.message().split_once('\n').unwrap_or((error.message(), "see docs/sockets.md, Sinks"));
        UserError::new(format!("{line}:{column} {what}"), hint)
    })?;
    file.validate()
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct File {
    stdout: Option<StdoutTable>,
    #[serde(default)]
    files: Vec<FilesTable>,
    #[serde(default)]
    kafka: Vec<KafkaTable>,
    #[serde(default)]
    otlp: Vec<OtlpTable>,
    prometheus: Option<PrometheusTable>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct StdoutTable {
    #[serde(deserialize_with = "stdout_format")]
    format: SocketFormat,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct FilesTable {
    directory: PathBuf,
    #[serde(deserialize_with = "file_format")]
    format: FileFormat,
    #[serde(default = "rotate_size", deserialize_with = "size")]
    rotate_size: u64,
    #[serde(default = "rotate_every", deserialize_with = "duration")]
    rotate_every: Duration,
    #[serde(default = "keep", deserialize_with = "size")]
    keep: u64,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct KafkaTable {
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
    #[serde(default = "queue", deserialize_with = "size")]
    queue: u64,
    spool: Option<SpoolTable>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct OtlpTable {
    url: String,
    #[serde(default)]
    headers: BTreeMap<String, String>,
    tls: Option<TlsTable>,
    #[serde(default = "timeout", deserialize_with = "duration")]
    timeout: Duration,
    #[serde(default)]
    series: SeriesTable,
    #[serde(default = "queue", deserialize_with = "size")]
    queue: u64,
    spool: Option<SpoolTable>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct PrometheusTable {
    #[serde(default = "listen")]
    listen: SocketAddr,
    profile_token_file: Option<PathBuf>,
    #[serde(default)]
    series: SeriesTable,
}

/// What sockets are told apart by, and how many series that may give.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct SeriesTable {
    #[serde(default, deserialize_with = "labels")]
    by: Option<Vec<Label>>,
    max: Option<u16>,
    v4_bits: Option<u8>,
    v6_bits: Option<u8>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct TlsTable {
    ca: Option<PathBuf>,
    cert: Option<PathBuf>,
    key: Option<PathBuf>,
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

// A password has no business in a log.
impl std::fmt::Debug for LoginTable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LoginTable").field("user", &self.user).finish_non_exhaustive()
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct SpoolTable {
    directory: PathBuf,
    #[serde(deserialize_with = "size")]
    size: u64,
}

impl File {
    fn validate(self) -> Result<Vec<SinkRequest>, UserError> {
        let mut sinks = Vec::new();
        sinks.extend(self.stdout.map(|table| SinkRequest::Stdout(table.format)));
        sinks.extend(self.files.into_iter().map(|table| SinkRequest::Files(table.validate())));
        for table in self.kafka {
            sinks.push(table.validate()?);
        }
        for table in self.otlp {
            sinks.push(table.validate()?);
        }
        if let Some(table) = self.prometheus {
            let profile_token = table.profile_token_file.map(|path| token(&path)).transpose()?;
            let settings = table.series.validate()?;
            sinks.push(SinkRequest::Prometheus { listen: table.listen, settings, profile_token });
        }
        if sinks.is_empty() {
            return Err(UserError::new(
                "it names no sink",
                "write a table such as [[files]], [[kafka]], [[otlp]], [prometheus] or [stdout]",
            ));
        }
        Ok(sinks)
    }
}

impl FilesTable {
    fn validate(self) -> FilesConfig {
        FilesConfig {
            directory: self.directory,
            format: self.format,
            rotate_bytes: self.rotate_size,
            rotate_every: self.rotate_every,
            keep_bytes: self.keep,
            keep_files: KEEP_FILES,
        }
    }
}

impl KafkaTable {
    fn validate(self) -> Result<SinkRequest, UserError> {
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
        Ok(SinkRequest::Kafka(config, outlet(self.queue, self.spool)))
    }
}

impl OtlpTable {
    fn validate(self) -> Result<SinkRequest, UserError> {
        let config = OtlpConfig {
            url: self.url,
            headers: self.headers.into_iter().collect(),
            tls: self.tls.map(TlsTable::validate).transpose()?,
            timeout: self.timeout,
        };
        Ok(SinkRequest::Otlp(config, self.series.validate()?, outlet(self.queue, self.spool)))
    }
}

impl SeriesTable {
    fn validate(self) -> Result<Settings, UserError> {
        let bits = |name: &str, bits: Option<u8>, usual: u8, most: u8| match bits {
            Some(bits) if bits > most => {
                Err(UserError::new(format!("`{name}` is {bits}"), format!("choose from 0 to {most}")))
            }
            bits => Ok(bits.unwrap_or(usual)),
        };
        let usual = Settings::default();
        let labels = Labels {
            v4_bits: bits("v4-bits", self.v4_bits, usual.labels.v4_bits, 32)?,
            v6_bits: bits("v6-bits", self.v6_bits, usual.labels.v6_bits, 128)?,
            chosen: self.by.unwrap_or_else(|| usual.labels.chosen.clone()),
            ..usual.labels
        };
        Ok(Settings { labels, series_max: self.max.map_or(usual.series_max, usize::from), ..usual })
    }
}

impl TlsTable {
    fn validate(self) -> Result<TlsConfig, UserError> {
        let identity = match (self.cert, self.key) {
            (Some(cert), Some(key)) => Some((cert, key)),
            (None, None) => None,
            _ => return Err(UserError::new("`tls` has one of `cert` and `key`", "give both, or neither")),
        };
        Ok(TlsConfig { authorities: self.ca, identity })
    }
}

impl LoginTable {
    fn validate(self) -> Result<Login, UserError> {
        let password = match (self.password, self.password_file) {
            (Some(password), None) => password,
            (None, Some(path)) => secret("password", &path)?,
            _ => {
                let hint = "give `password-file`, or `password` in a file that nobody else may read";
                return Err(UserError::new("`login` needs one password", hint));
            }
        };
        Ok(Login { mechanism: self.mechanism, user: self.user, password })
    }
}

/// The first lines of a file that holds nothing else, without the end of the last.
fn secret(what: &str, path: &Path) -> Result<String, UserError> {
    let text = std::fs::read_to_string(path).map_err(|error| {
        let what = format!("cannot read the {what} in {}: {error}", path.display());
        UserError::new(what, "give a file that this user may read")
    })?;
    Ok(text.trim_end_matches(['\r', '\n']).to_owned())
}

fn token(path: &Path) -> Result<Token, UserError> {
    Token::new(&secret("token", path)?).ok_or_else(|| {
        let hint = "write a token into it: `openssl rand -hex 16` makes one";
        UserError::new(format!("there is no token in {}", path.display()), hint)
    })
}

fn outlet(queue: u64, spool: Option<SpoolTable>) -> OutletConfig {
    let spool = spool.map(|table| SpoolConfig {
        directory: table.directory,
        max_bytes: table.size,
        // A quarter at most, so that room is given back before all of it is used.
        segment_bytes: SEGMENT_BYTES.min(table.size / 4).max(1),
    });
    OutletConfig { queue_bytes: queue as usize, spool, retry: Retry::default() }
}

fn rotate_size() -> u64 {
    128 << 20
}
fn rotate_every() -> Duration {
    Duration::from_secs(3600)
}
fn keep() -> u64 {
    4 << 30
}
fn message_size() -> u64 {
    crate::sink::kafka::MESSAGE_BYTES as u64
}
fn timeout() -> Duration {
    Duration::from_secs(10)
}
fn queue() -> u64 {
    QUEUE_BYTES
}
fn listen() -> SocketAddr {
    LISTEN.parse().expect("an address")
}

/// A text read by one of the parsers of `core`; its hint follows behind a line feed.
fn text<'de, D: Deserializer<'de>, T>(
    from: D,
    parse: impl Fn(&str) -> Result<T, ValueError>,
) -> Result<T, <D as Deserializer<'de>>::Error> {
    let text = String::deserialize(from)?;
    parse(&text).map_err(|wrong| serde::de::Error::custom(format!("{}\n{}", wrong.what, wrong.hint)))
}

/// One of a few names.
fn one_of<'de, D: Deserializer<'de>, T: Copy>(from: D, what: &str, names: &[(&str, T)]) -> Result<T, D::Error> {
    text(from, |given| {
        names.iter().find(|(name, _)| *name == given).map(|(_, it)| *it).ok_or_else(|| {
            let all: Vec<&str> = names.iter().map(|(name, _)| *name).collect();
            ValueError::new(format!("there is no {what} `{given}`"), format!("choose from {}", all.join(", ")))
        })
    })
}

fn size<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
    text(from, |given| values::size_within(given, 1 << 10, 1 << 50))
}

fn duration<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
    text(from, values::duration)
}

fn stdout_format<'de, D: Deserializer<'de>>(from: D) -> Result<SocketFormat, D::Error> {
    let names = [
        ("text", SocketFormat::Text),
        ("json", SocketFormat::Json),
        ("protobuf", SocketFormat::Protobuf),
        ("parquet", SocketFormat::Parquet),
    ];
    one_of(from, "format", &names)
}

fn file_format<'de, D: Deserializer<'de>>(from: D) -> Result<FileFormat, D::Error> {
    let names = [
        ("json", FileFormat::Json),
        ("protobuf", FileFormat::Protobuf),
        ("protobuf-zstd", FileFormat::ProtobufZstd),
        ("parquet", FileFormat::Parquet),
    ];
    one_of(from, "format of files", &names)
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

fn labels<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Vec<Label>>, D::Error> {
    let mut labels = Vec::new();
    for name in Vec::<String>::deserialize(from)? {
        labels.push(Label::named(&name).ok_or_else(|| {
            let all: Vec<&str> = Label::ALL.iter().map(|label| label.name()).collect();
            serde::de::Error::custom(format!("there is no label `{name}`\nchoose from {}", all.join(", ")))
        })?);
    }
    labels.sort_unstable();
    labels.dedup();
    Ok(Some(labels))
}

#[cfg(test)]
mod tests {
    use super::*;

    const FULL: &str = r#"
[stdout]
format = "json"

[[files]]
directory = "/var/lib/parshall/sockets"
format = "parquet"
rotate-size = "64MiB"
rotate-every = "10m"
keep = "1GiB"

[[kafka]]
brokers = ["kafka1:9093", "kafka2:9093"]
topic = "sockets"
compression = "lz4"
key = "namespace"
message-size = "500KB"
login = { mechanism = "scram-sha-512", user = "collector", password = "secret" }
tls = { ca = "/etc/ssl/kafka.pem" }
spool = { directory = "/var/spool/parshall", size = "1GiB" }

[[otlp]]
url = "http://collector:4318"
headers = { "X-Tenant" = "blue" }
series = { by = ["local_port", "cgroup"], max = 100 }

[prometheus]
listen = "[::1]:9999"
"#;

    #[test]
    fn every_sink_is_read() {
        let sinks = parse(FULL).unwrap();
        assert!(matches!(sinks[0], SinkRequest::Stdout(SocketFormat::Json)));
        let SinkRequest::Files(files) = &sinks[1] else { panic!("{sinks:?}") };
        assert_eq!((files.rotate_bytes, files.keep_bytes, files.format), (64 << 20, 1 << 30, FileFormat::Parquet));
        let SinkRequest::Kafka(kafka, outlet) = &sinks[2] else { panic!("{sinks:?}") };
        assert_eq!((kafka.message_bytes, kafka.compression, kafka.key), (500_000, Codec::Lz4, Key::Namespace));
        assert_eq!(kafka.login.as_ref().unwrap().password, "secret");
        assert_eq!(outlet.spool.as_ref().unwrap().max_bytes, 1 << 30);
        let SinkRequest::Otlp(otlp, settings, _) = &sinks[3] else { panic!("{sinks:?}") };
        assert_eq!(otlp.headers, [("X-Tenant".to_owned(), "blue".to_owned())]);
        assert_eq!((settings.series_max, &settings.labels.chosen[..]), (100, &[Label::Cgroup, Label::LocalPort][..]));
        assert!(matches!(&sinks[4], SinkRequest::Prometheus { listen, .. } if listen.port() == 9999));
        assert!(!format!("{:?}", sinks[2]).contains("secret"));
    }

    #[test]
    fn mistakes_say_where_and_what() {
        for (text, what, hint) in [
            ("", "it names no sink", "[[kafka]]"),
            ("[[files]]\nformat = \"json\"\n", "1:1 missing field `directory`", "docs"),
            ("[stdout]\nformat = \"jsn\"\n", "2:10 there is no format `jsn`", "json, protobuf"),
            ("[stdout]\nformat = \"json\"\ncolour = 1\n", "3:1 unknown field `colour`", "docs"),
            (
                "[[kafka]]\nbrokers = []\ntopic = \"t\"\nqueue = \"much\"\n",
                "4:9 `much` is not a number of bytes",
                "64KiB",
            ),
            ("[prometheus]\nlisten = \"here\"\n", "2:10 invalid socket address", "docs"),
            ("[prometheus]\nseries = { by = [\"colour\"] }\n", "there is no label `colour`", "cgroup"),
            ("[prometheus]\nseries = { v4-bits = 40 }\n", "`v4-bits` is 40", "0 to 32"),
            ("[[otlp]]\nurl = \"x\"\ntls = { cert = \"a\" }\n", "one of `cert` and `key`", "both"),
            ("[prometheus]\nprofile-token-file = \"/dev/null\"\n", "no token in /dev/null", "openssl"),
            ("[prometheus]\nprofile-token-file = \"/no/such\"\n", "cannot read the token", "may read"),
            ("[[kafka]\n", "1:9", ""),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.what.contains(what) && error.hint.contains(hint), "{text}: {error:?}");
        }
    }
}

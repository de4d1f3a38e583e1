//! The sink with a real broker, and with listeners that are not brokers.
mod broker;

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::time::{Duration, Instant};

use parshall_core::sockets::retry::Retry;
use parshall_core::sockets::schema::number;
use parshall_evidence::socket::SocketRecord;
use rskafka::client::partition::{OffsetAt, UnknownTopicHandling};
use rskafka::client::{Client, ClientBuilder};

use self::broker::{Broker, PASSWORD, USER};
use super::*;
use crate::sink::spool::SpoolConfig;
use crate::sink::tls::TlsConfig;
use crate::wire::{MessageReader, Value};
use parshall_host::error::UserError;

/// The timeout of each wait. It is long, because a broker starts slowly on a busy host.
const TIMEOUT: Duration = Duration::from_secs(180);

fn quick(queue_bytes: usize, spool: Option<SpoolConfig>) -> QueueConfig {
    QueueConfig { queue_bytes, spool, retry: Retry { first_ns: 20_000_000, longest_ns: 500_000_000 } }
}

fn dump(sequence: u64) -> Dump {
    Dump { at_unix_ns: 1_700_000_000_000_000_000 + sequence, sequence, host: "test-host".into(), backend: "walk" }
}

/// Passes `count` rows to the sink, in dumps of `per_dump` rows. Each row has its own key.
fn send_rows(sink: &mut KafkaSink, first: u64, count: u64, per_dump: u64) {
    for start in (first..first + count).step_by(per_dump as usize) {
        let dump = dump(1 + start / per_dump);
        let records: Vec<SocketRecord> = (start..start + per_dump)
            .map(|i| SocketRecord {
                family: 2,
                protocol: 6,
                state: 1,
                netns: 4_026_531_840 + (i % 5) as u32,
                local_port: 443,
                bytes_sent: i * 1000,
                rtt_us: 150,
                congestion: *b"cubic\0\0\0\0\0\0\0\0\0\0\0",
                ..Default::default()
            })
            .collect();
        let rows: Vec<Row<'_>> =
            records.iter().zip(start..).map(|(record, i)| Row { socket: i + 1, ..Row::bare(record) }).collect();
        sink.rows(&dump, &rows).unwrap();
        sink.end(&dump, &Completeness { expected: per_dump, emitted: per_dump, ..Default::default() }).unwrap();
    }
}

/// Waits until all rows are delivered or dropped.
fn drain(sink: &KafkaSink) -> Account {
    let begun = Instant::now();
    loop {
        let account = sink.account();
        if account.rows_waiting == 0 {
            return account;
        }
        assert!(begun.elapsed() < TIMEOUT, "{account:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The content of a topic: the number of times that it has each row, by the row's key; the number of ends of dumps; the size of
/// the largest message; and the partitions that have messages with each key.
#[derive(Default)]
struct Consumed {
    rows: BTreeMap<u64, u32>,
    ends: u64,
    largest: usize,
    partitions: BTreeMap<Vec<u8>, Vec<i32>>,
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

async fn client(broker: &Broker) -> Client {
    tokio::time::timeout(Duration::from_secs(180), ClientBuilder::new(vec![broker.plain.to_string()]).build())
        .await
        .expect("the broker answers")
        .unwrap()
}

fn create(broker: &Broker, topic: &str, partitions: i32) {
    runtime().block_on(async {
        let controller = client(broker).await.controller_client().unwrap();
        controller.create_topic(topic, partitions, 1, 60_000).await.unwrap();
    });
}

fn consume(broker: &Broker, topic: &str, partitions: i32) -> Consumed {
    let mut all = Consumed::default();
    runtime().block_on(async {
        let client = client(broker).await;
        for number in 0..partitions {
            let partition = client.partition_client(topic, number, UnknownTopicHandling::Retry).await.unwrap();
            let (mut at, end) = (0, partition.get_offset(OffsetAt::Latest).await.unwrap());
            while at < end {
                let (records, _) = partition.fetch_records(at, 1..8 << 20, 1000).await.unwrap();
                for message in records {
                    at = message.offset + 1;
                    let value = message.record.value.unwrap();
                    all.largest = all.largest.max(value.len());
                    all.read(&value);
                    if let Some(key) = message.record.key {
                        let seen = all.partitions.entry(key).or_default();
                        if !seen.contains(&number) {
                            seen.push(number);
                        }
                    }
                }
            }
        }
    });
    all
}

impl Consumed {
    fn read(&mut self, envelope: &[u8]) {
        let mut reader = MessageReader(envelope);
        while let Some((field, Value::Bytes(row))) = reader.field() {
            assert_eq!(field, 1);
            let (mut socket, mut bytes_sent, mut end, mut reader) = (0, 0, false, MessageReader(row));
            while let Some((field, value)) = reader.field() {
                match value {
                    Value::Number(value) if field == u64::from(number::SOCKET) => socket = value,
                    Value::Bytes(_) => end |= field == u64::from(number::COMPLETENESS),
                    Value::Number(value) if field == 4 => bytes_sent = value,
                    Value::Number(_) => {}
                }
            }
            assert!(reader.0.is_empty(), "an incomplete row");
            if end {
                self.ends += 1;
            } else {
                assert_eq!(bytes_sent, (socket - 1) * 1000, "the row of another socket");
                *self.rows.entry(socket).or_default() += 1;
            }
        }
        assert!(reader.0.is_empty(), "an incomplete envelope");
    }

    /// Asserts that every row from 1 to `count` is there. Returns the number of duplicates.
    fn assert_all(&self, count: u64) -> u64 {
        assert!(self.rows.keys().copied().eq(1..=count), "{} of {count} rows", self.rows.len());
        self.rows.values().map(|n| u64::from(n - 1)).sum()
    }
}

/// A single test with one broker, because its start takes seconds.
#[test]
#[ignore = "make test-all"]
fn a_real_broker_gets_every_row() {
    let Some(mut broker) = Broker::start() else { return };
    every_row_once(&broker);
    logins_over_tls(&broker);
    keys_by_namespace(&broker);
    a_broker_that_refuses_messages(&broker);
    a_broker_that_is_killed_and_returns(&mut broker);
}

fn every_row_once(broker: &Broker) {
    const ROWS: u64 = 100_000;
    create(broker, "rows", 3);
    let config = KafkaConfig { key: Key::None, ..KafkaConfig::new(vec![broker.plain.to_string()], "rows") };
    let mut sink = KafkaSink::start(config, quick(64 << 20, None)).unwrap();
    let begun = Instant::now();
    send_rows(&mut sink, 0, ROWS, 10_000);
    let account = drain(&sink);
    eprintln!("kafka: {ROWS} rows in {} ms", begun.elapsed().as_millis());
    assert_eq!((account.rows_in, account.rows_out, account.rows_dropped), (ROWS, ROWS, 0), "{account:?}");
    assert!(account.errors.is_empty(), "{account:?}");
    Box::new(sink).close(Duration::from_secs(5));
    let consumed = consume(broker, "rows", 3);
    assert_eq!((consumed.assert_all(ROWS), consumed.ends), (0, ROWS / 10_000));
    assert!(consumed.largest <= MESSAGE_BYTES && consumed.largest > MESSAGE_BYTES / 2, "{}", consumed.largest);
}

fn logins_over_tls(broker: &Broker) {
    let login = |mechanism, password: &str| Login { mechanism, user: USER.into(), password: password.into() };
    let tls = TlsConfig { authorities: Some(broker.file("ca.pem")), identity: None };
    let base = |topic: &str| KafkaConfig {
        tls: Some(tls.clone()),
        ..KafkaConfig::new(vec![broker.sasl_tls.to_string()], topic)
    };
    let ways = [
        (Mechanism::Plain, Codec::None),
        (Mechanism::ScramSha256, Codec::Gzip),
        (Mechanism::ScramSha512, Codec::Lz4),
        (Mechanism::ScramSha256, Codec::Snappy),
    ];
    for (i, (mechanism, compression)) in ways.into_iter().enumerate() {
        let topic = format!("login-{i}");
        create(broker, &topic, 1);
        let config = KafkaConfig { login: Some(login(mechanism, PASSWORD)), compression, ..base(&topic) };
        let mut sink = KafkaSink::start(config, quick(8 << 20, None)).unwrap();
        send_rows(&mut sink, 0, 1000, 1000);
        let account = drain(&sink);
        assert_eq!(account.rows_out, 1000, "{mechanism:?}: {account:?}");
        assert_eq!(consume(broker, &topic, 1).assert_all(1000), 0);
    }
    let failing = |config: KafkaConfig, kind: &str| {
        let mut sink = KafkaSink::start(config, quick(8 << 20, None)).unwrap();
        send_rows(&mut sink, 0, 10, 10);
        let begun = Instant::now();
        while !sink.account().errors.contains_key(kind) {
            assert!(begun.elapsed() < TIMEOUT, "{kind}: {:?}", sink.account());
            std::thread::sleep(Duration::from_millis(20));
        }
        let account = Box::new(sink).close(Duration::from_millis(100));
        assert_eq!((account.rows_out, account.rows_dropped), (0, 10), "{account:?}");
        assert!(!account.last_error.unwrap_or_default().contains("not a secret"));
    };
    failing(KafkaConfig { login: Some(login(Mechanism::ScramSha256, "wrong")), ..base("login-0") }, "auth");
    let stranger = KafkaConfig { tls: Some(TlsConfig::default()), ..base("login-0") };
    failing(KafkaConfig { login: Some(login(Mechanism::Plain, PASSWORD)), ..stranger }, "tls");
    failing(KafkaConfig::new(vec![broker.plain.to_string()], "there-is-none"), "no-topic");
}

fn keys_by_namespace(broker: &Broker) {
    create(broker, "namespaces", 3);
    let plain = KafkaConfig::new(vec![broker.plain.to_string()], "namespaces");
    let config = KafkaConfig { key: Key::Namespace, message_bytes: 20_000, ..plain };
    let mut sink = KafkaSink::start(config, quick(8 << 20, None)).unwrap();
    send_rows(&mut sink, 0, 10_000, 5000);
    drain(&sink);
    let consumed = consume(broker, "namespaces", 3);
    assert_eq!((consumed.assert_all(10_000), consumed.ends), (0, 2));
    assert!(consumed.largest <= 20_000, "{}", consumed.largest);
    // The keys are five namespaces and the host. Each key is in one partition, and not all keys are in the same one.
    assert_eq!(consumed.partitions.len(), 6, "{:?}", consumed.partitions);
    assert!(consumed.partitions.values().all(|p| p.len() == 1), "{:?}", consumed.partitions);
    let mut used: Vec<_> = consumed.partitions.values().flatten().collect();
    used.sort_unstable();
    used.dedup();
    assert!(used.len() > 1, "{:?}", consumed.partitions);
}

/// Messages larger than the broker's limit are dropped and counted, and later ones are delivered.
fn a_broker_that_refuses_messages(broker: &Broker) {
    create(broker, "large", 1);
    let plain = KafkaConfig::new(vec![broker.plain.to_string()], "large");
    let config = KafkaConfig { message_bytes: 4 << 20, compression: Codec::None, ..plain };
    let mut sink = KafkaSink::start(config, quick(32 << 20, None)).unwrap();
    send_rows(&mut sink, 0, 40_000, 40_000);
    send_rows(&mut sink, 40_000, 1000, 1000);
    let account = drain(&sink);
    assert_eq!((account.rows_dropped, account.rows_out), (40_000, 1000), "{account:?}");
    assert!(account.errors.contains_key("too-large"), "{account:?}");
}

/// No row is lost. Rows that are there twice were in messages that were counted as not acknowledged.
fn a_broker_that_is_killed_and_returns(broker: &mut Broker) {
    const ROWS: u64 = 100_000;
    create(broker, "killed", 3);
    let spool = tempfile::tempdir().unwrap();
    let spool = SpoolConfig { directory: spool.path().join("kafka"), max_bytes: 256 << 20, segment_bytes: 4 << 20 };
    let plain = KafkaConfig::new(vec![broker.plain.to_string()], "killed");
    let timeout = Duration::from_secs(2);
    let config = KafkaConfig { key: Key::None, message_bytes: 50_000, timeout, ..plain };
    let mut sink = KafkaSink::start(config, quick(1 << 20, Some(spool))).unwrap();
    let mut slowest = Duration::ZERO;
    for part in 0..20 {
        let begun = Instant::now();
        send_rows(&mut sink, part * ROWS / 20, ROWS / 20, 1000);
        slowest = slowest.max(begun.elapsed());
        match part {
            // While the last rows are being delivered.
            5 => broker.kill(),
            12 => broker.run(),
            15 => broker.hang(true),
            16 => {
                std::thread::sleep(timeout + Duration::from_secs(1));
                broker.hang(false);
            }
            _ => std::thread::sleep(Duration::from_millis(30)),
        }
    }
    let account = drain(&sink);
    assert_eq!((account.rows_in, account.rows_out, account.rows_dropped), (ROWS, ROWS, 0), "{account:?}");
    assert!(account.errors.contains_key("refused"), "the broker was gone: {account:?}");
    // Encoding 5,000 rows takes some milliseconds. A broker that is down must not block this for seconds.
    assert!(slowest < Duration::from_secs(2), "{slowest:?}");
    Box::new(sink).close(Duration::from_secs(5));
    let consumed = consume(broker, "killed", 3);
    let again = consumed.assert_all(ROWS);
    let unacknowledged = account.errors.get("unacknowledged").copied().unwrap_or(0);
    eprintln!("kafka: killed, hung and back: {again} rows twice, {:?}", account.errors);
    // A message has rows of a single dump, so at most 1,000.
    assert!(again <= unacknowledged * 1000, "{again} rows are there again, {unacknowledged} messages unacknowledged");
}

#[test]
fn brokers_that_refuse_or_hang_do_not_block_the_collector() {
    let refusing = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    // The kernel completes connections to it, but it never answers.
    let hanging = TcpListener::bind("127.0.0.1:0").unwrap();
    let hanging_at = hanging.local_addr().unwrap();
    for (at, kind) in [(refusing, "refused"), (hanging_at, "timeout")] {
        let timeout = Duration::from_millis(300);
        let config = KafkaConfig { timeout, ..KafkaConfig::new(vec![at.to_string()], "rows") };
        let mut sink = KafkaSink::start(config, quick(1 << 20, None)).unwrap();
        let begun = Instant::now();
        send_rows(&mut sink, 0, 50_000, 1000);
        assert!(begun.elapsed() < Duration::from_secs(10), "the collector waited for {kind}");
        while !sink.account().errors.contains_key(kind) {
            assert!(begun.elapsed() < TIMEOUT, "{kind}: {:?}", sink.account());
            std::thread::sleep(Duration::from_millis(10));
        }
        let begun = Instant::now();
        let account = Box::new(sink).close(Duration::from_millis(200));
        assert!(begun.elapsed() < Duration::from_secs(5), "{kind}");
        assert_eq!((account.rows_in, account.rows_out, account.rows_dropped), (50_000, 0, 50_000), "{account:?}");
        assert!(account.errors["queue-full"] > 0, "the rows do not fit into 1 MiB: {account:?}");
    }
}

#[test]
fn invalid_configurations_are_errors_at_the_start() {
    let start = |config| KafkaSink::start(config, quick(1024, None)).map(drop).unwrap_err();
    let good = KafkaConfig::new(vec!["localhost:9092".into()], "rows");
    let plain = Login { mechanism: Mechanism::Plain, user: "u".into(), password: "hidden".into() };
    assert!(!format!("{plain:?}").contains("hidden"));
    let wrong = [
        KafkaConfig { brokers: vec!["localhost".into()], ..good.clone() },
        KafkaConfig { brokers: vec![], ..good.clone() },
        KafkaConfig { topic: String::new(), ..good.clone() },
        KafkaConfig { login: Some(plain), ..good },
    ];
    for config in wrong {
        assert!(start(config.clone()).downcast_ref::<UserError>().is_some(), "{config:?}");
    }
}

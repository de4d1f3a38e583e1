//! Runs a Kafka broker for tests: one node on loopback. `scripts/peers/fetch` downloads its jars. It is killed with its test.
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use parshall_sys::child::{Confine, spawn};

use crate::testkit::peers::peer;
use parshall_testkit::skip;

pub const USER: &str = "collector";
pub const PASSWORD: &str = "not a secret";
const STORE_PASSWORD: &str = "storepass";

/// A broker and its files.
pub struct Broker {
    jars: PathBuf,
    directory: tempfile::TempDir,
    process: Option<Child>,
    pub plain: SocketAddr,
    pub sasl_tls: SocketAddr,
}

/// Unused ports below the ephemeral range, so that no other socket takes the port while the broker is restarted.
fn free_ports() -> [SocketAddr; 3] {
    let first = 20_000 + (std::process::id() % 10_000) as u16;
    let at = |port| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let mut free = (first..first + 2_000).map(at).filter(|at| TcpListener::bind(at).is_ok());
    std::array::from_fn(|_| free.next().expect("a free port"))
}

impl Broker {
    /// Creates keys and storage and starts the broker. Returns `None` and reports a skip if it cannot run here.
    pub fn start() -> Option<Self> {
        const WHAT: &str = "the Kafka sink against a broker";
        let jars = peer("kafka-3.9.1", WHAT)?;
        if Command::new("java").arg("-version").stderr(Stdio::null()).status().is_err() {
            skip(WHAT, "java is not installed");
            return None;
        }
        let directory = tempfile::Builder::new().prefix("it-kafka-").tempdir().unwrap();
        let [plain, sasl_tls, controller] = free_ports();
        let mut broker = Self { jars, directory, process: None, plain, sasl_tls };
        broker.make_keys();
        std::fs::write(broker.file("broker.properties"), broker.properties(controller)).unwrap();
        broker.format();
        broker.run();
        Some(broker)
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn make_keys(&self) {
        let keytool = |words: &[&str]| {
            let output = Command::new("keytool").args(words).current_dir(self.directory.path()).output().unwrap();
            assert!(output.status.success(), "{output:?}");
        };
        let store = ["-keystore", "keys.p12", "-storetype", "PKCS12", "-storepass", STORE_PASSWORD, "-alias", "broker"];
        let pair =
            ["-genkeypair", "-keyalg", "EC", "-groupname", "secp256r1", "-dname", "CN=localhost", "-validity", "2"];
        keytool(&[&pair[..], &["-ext", "san=ip:127.0.0.1,dns:localhost"], &store].concat());
        keytool(&[&["-exportcert", "-rfc", "-file", "ca.pem"], &store[..]].concat());
    }

    fn properties(&self, controller: SocketAddr) -> String {
        let (plain, tls, keys) = (self.plain, self.sasl_tls, self.file("keys.p12"));
        let scram = "org.apache.kafka.common.security.scram.ScramLoginModule required;";
        let password =
            format!("org.apache.kafka.common.security.plain.PlainLoginModule required user_{USER}=\"{PASSWORD}\";");
        // A broker deletes what is older than a week, as the times of the rows are, half a minute after its start.
        format!(
            "process.roles=broker,controller\nnode.id=1\ncontroller.quorum.voters=1@{controller}\n\
             listeners=PLAINTEXT://{plain},SASL_SSL://{tls},CONTROLLER://{controller}\n\
             controller.listener.names=CONTROLLER\n\
             listener.security.protocol.map=PLAINTEXT:PLAINTEXT,SASL_SSL:SASL_SSL,CONTROLLER:PLAINTEXT\n\
             log.dirs={}\nnum.partitions=3\noffsets.topic.replication.factor=1\n\
             transaction.state.log.replication.factor=1\ntransaction.state.log.min.isr=1\n\
             sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256,SCRAM-SHA-512\n\
             listener.name.sasl_ssl.scram-sha-256.sasl.jaas.config={scram}\n\
             listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config={scram}\n\
             listener.name.sasl_ssl.plain.sasl.jaas.config={password}\n\
             ssl.keystore.type=PKCS12\nssl.keystore.location={}\nssl.keystore.password={STORE_PASSWORD}\n\
             group.initial.rebalance.delay.ms=0\nlog.retention.ms=-1\n",
            self.file("logs").display(),
            keys.display(),
        )
    }

    fn java(&self, class: &str) -> Command {
        let mut java = Command::new("java");
        java.args(["-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto"]);
        java.args(["-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp"]);
        java.arg(format!("{}/*", self.jars.display())).arg(class).current_dir(self.directory.path());
        java.stdin(Stdio::null());
        java
    }

    fn format(&self) {
        let scram = |kind: &str| format!("{kind}=[name={USER},password={PASSWORD}]");
        let mut format = self.java("kafka.tools.StorageTool");
        format.args(["format", "-t", "cGFyc2hhbGwtdGVzdHMtMQ", "-c", "broker.properties"]);
        format.args(["-S", &scram("SCRAM-SHA-256"), "-S", &scram("SCRAM-SHA-512")]);
        let output = format.output().unwrap();
        assert!(output.status.success(), "{output:?}");
    }

    /// Starts or restarts it and waits until it accepts connections.
    pub fn run(&mut self) {
        let log = std::fs::File::create(self.file("broker.log")).unwrap();
        let mut command = self.java("kafka.Kafka");
        command.arg("broker.properties").stdout(log.try_clone().unwrap()).stderr(log);
        self.process = Some(spawn(&mut command, &Confine::default()).unwrap());
        let begun = Instant::now();
        while TcpStream::connect(self.plain).is_err() {
            let ended = self.process.as_mut().is_some_and(|p| p.try_wait().unwrap().is_some());
            let log = || std::fs::read_to_string(self.file("broker.log")).unwrap_or_default();
            assert!(!ended, "the broker ended: {}", log());
            assert!(begun.elapsed() < Duration::from_secs(240), "the broker does not answer: {}", log());
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Stops (SIGSTOP) or continues it.
    pub fn hang(&self, hang: bool) {
        let signal = if hang { "-STOP" } else { "-CONT" };
        let pid = self.process.as_ref().expect("it runs").id().to_string();
        let done = Command::new("sh").args(["-c", "kill \"$0\" \"$1\"", signal, &pid]).status().unwrap();
        assert!(done.success());
    }

    /// Kills it with SIGKILL.
    pub fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.kill().unwrap();
            process.wait().unwrap();
        }
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        self.kill();
    }
}

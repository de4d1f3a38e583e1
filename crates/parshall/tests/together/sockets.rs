//! `parshall sockets` on real sockets: all backends give the same rows, and closed sockets are reported.

#[path = "../../../bpf/tests/sockets/unused_port.rs"]
pub(crate) mod unused_port;

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::common::{self, PARSHALL, parshall};
use serde_json::Value;
use unused_port::listen_on_unused_port;

const LOCALHOST: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// TCP_USER_TIMEOUT of the client that exchanges data.
const USER_TIMEOUT: Duration = Duration::from_millis(7654);

/// The local and the remote port of a socket.
type Ports = (u64, u64);

/// Fields that only some backends have, and fields that change while no data is exchanged (docs/sockets.md).
const NOT_COMPARED: [&str; 14] = [
    "address",
    "at_unix_ns",
    "backend",
    "birth_received",
    "birth_sent",
    "cookie",
    "last_ack_recv_ms",
    "last_data_recv_ms",
    "last_data_sent_ms",
    "nodelay",
    "reuse",
    "socket",
    "timer_ms",
    "user_timeout_ms",
];

/// Runs parshall. Returns its rows by ports, and the completeness of the dump.
fn rows(arguments: &[&str]) -> (BTreeMap<Ports, Value>, Value) {
    let done = parshall(arguments);
    done.orderly();
    let mut rows = BTreeMap::new();
    let mut end = Value::Null;
    for line in done.stdout.lines() {
        let mut row: Value = serde_json::from_str(line).expect("each line is JSON");
        if row.get("completeness").is_some() {
            end = row["completeness"].clone();
            continue;
        }
        keep_own_owner(&mut row);
        let port = |side: &str| row[side].as_u64().unwrap_or(0);
        let ports = (port("local_port"), port("remote_port"));
        assert!(rows.insert(ports, row).is_none(), "{ports:?} is reported twice");
    }
    (rows, end)
}

/// Removes other owners than this process: a child that another test starts holds copies of its descriptors until it calls exec.
fn keep_own_owner(row: &mut Value) {
    if let Some(owners) = row.get_mut("owners").and_then(Value::as_array_mut) {
        owners.retain(|owner| owner["pid"] == std::process::id());
    }
}

/// A listener with one connection in its accept queue, and one connection that has exchanged data.
struct Connections {
    listener: TcpListener,
    _waits: TcpStream,
    _client: TcpStream,
    _server: TcpStream,
}

impl Connections {
    fn new(address: IpAddr) -> Self {
        let listener = listen_on_unused_port(address);
        let to = listener.local_addr().unwrap();
        let mut client = TcpStream::connect(to).unwrap();
        let (mut server, _) = listener.accept().unwrap();
        socket2::SockRef::from(&client).set_tcp_user_timeout(Some(USER_TIMEOUT)).unwrap();
        client.write_all(&[7; 5000]).unwrap();
        server.read_exact(&mut [0; 1000]).unwrap();
        server.write_all(&[7; 300]).unwrap();
        client.read_exact(&mut [0; 300]).unwrap();
        let waits = TcpStream::connect(to).unwrap();
        // Waits until the delayed ACK was sent and the timers of the exchange have expired.
        std::thread::sleep(Duration::from_millis(500));
        Self { listener, _waits: waits, _client: client, _server: server }
    }

    fn port(&self) -> u16 {
        self.listener.local_addr().unwrap().port()
    }
}

fn assert_backends_agree(address: IpAddr) {
    let connections = Connections::new(address);
    let port = connections.port().to_string();
    let read = |backend| {
        rows(&["sockets", "once", "--backend", backend, "--port", &port, "--fields", "all", "--format", "json"])
    };
    let (walk, end) = read("walk");
    assert_eq!(walk.len(), 5, "a listener and two connections with two ends each: {walk:?}");
    assert_eq!((end["emitted"].as_u64(), end["torn"].as_u64()), (Some(5), None), "{end}");
    assert!(walk.values().any(|row| row["user_timeout_ms"].as_u64() == Some(7654)), "{walk:?}");
    let listener = &walk[&(u64::from(connections.port()), 0)];
    assert_eq!(
        (listener["state"].as_str(), listener["accept_queue"].as_u64()),
        (Some("listen"), Some(1)),
        "{listener}"
    );
    assert_eq!(listener.get("snd_cwnd"), None, "a listener has no congestion window: {listener}");
    let us = u64::from(std::process::id());
    for (ports, row) in &walk {
        // A field with the kernel's value for "not set" is left out, like a field with the value 0.
        let none = |value: &Value| matches!(value.as_u64(), Some(u64::MAX | 0xffff_ffff | 0x7fff_ffff));
        let none: Vec<&String> =
            row.as_object().unwrap().iter().filter(|(_, v)| none(v)).map(|(name, _)| name).collect();
        assert!(none.is_empty(), "{none:?} of {ports:?}: {row}");
        let owned = row["owners"].as_array().is_some_and(|owners| owners.iter().any(|o| o["pid"].as_u64() == Some(us)));
        // A connection in the accept queue has no owner.
        let waits = row.get("inode").is_none();
        assert!(owned != waits, "{ports:?}: {row}");
    }
    let (netlink, _) = read("netlink");
    assert_eq!(netlink.keys().collect::<Vec<_>>(), walk.keys().collect::<Vec<_>>());
    for (ports, row) in &netlink {
        let (a, b) = (walk[ports].as_object().unwrap(), row.as_object().unwrap());
        let names: BTreeSet<&String> =
            a.keys().chain(b.keys()).filter(|n| !NOT_COMPARED.contains(&n.as_str())).collect();
        for name in names {
            assert_eq!(a.get(name), b.get(name), "walk and netlink differ in {name} of {ports:?}");
        }
    }
}

#[test]
fn the_backends_agree_field_by_field() {
    if !common::btf("sockets: walk against netlink") {
        return;
    }
    assert_backends_agree(LOCALHOST);
    assert_backends_agree(Ipv6Addr::LOCALHOST.into());
}

/// The rows of the sockets of these kinds that have these inodes, by inode.
fn own(backend: &str, kinds: &str, inodes: &BTreeSet<u64>) -> BTreeMap<u64, Value> {
    let done =
        parshall(&["sockets", "once", "--backend", backend, "--kind", kinds, "--fields", "all", "--format", "json"]);
    done.orderly();
    let rows = done.stdout.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let mut own = BTreeMap::new();
    for mut row in rows {
        let Some(inode) = row["inode"].as_u64().filter(|inode| inodes.contains(inode)) else { continue };
        keep_own_owner(&mut row);
        assert!(own.insert(inode, row).is_none(), "{inode} is reported twice");
    }
    own
}

#[test]
fn the_backends_agree_on_udp_and_unix() {
    if !common::btf("sockets: walk against netlink, UDP and UNIX") {
        return;
    }
    let (receiver, sender) = (UdpSocket::bind("127.0.0.1:0").unwrap(), UdpSocket::bind("[::1]:0").unwrap());
    let peer = UdpSocket::bind("127.0.0.1:0").unwrap();
    peer.connect(receiver.local_addr().unwrap()).unwrap();
    peer.send(&[7; 300]).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let listener = UnixListener::bind(directory.path().join("listens")).unwrap();
    let waits = UnixStream::connect(directory.path().join("listens")).unwrap();
    let (one, other) = UnixStream::pair().unwrap();
    let inode = |fd: &dyn AsRawFd| std::fs::metadata(format!("/proc/self/fd/{}", fd.as_raw_fd())).unwrap().ino();
    let sockets: [&dyn AsRawFd; 7] = [&receiver, &sender, &peer, &listener, &waits, &one, &other];
    let inodes: BTreeSet<u64> = sockets.into_iter().map(inode).collect();
    let walk = own("walk", "udp,unix", &inodes);
    assert_eq!(walk.len(), sockets.len(), "{walk:?}");
    let netlink = own("netlink", "udp,unix", &inodes);
    assert_eq!(netlink.keys().collect::<Vec<_>>(), walk.keys().collect::<Vec<_>>());
    for (inode, row) in &netlink {
        let (a, b) = (walk[inode].as_object().unwrap(), row.as_object().unwrap());
        // UNIX_DIAG does not report control groups.
        let unknown = |name: &str| NOT_COMPARED.contains(&name) || a["kind"] == "unix" && name.starts_with("cgroup");
        let names: BTreeSet<&String> = a.keys().chain(b.keys()).filter(|n| !unknown(n)).collect();
        for name in names {
            assert_eq!(a.get(name), b.get(name), "walk and netlink differ in {name} of {row}");
        }
    }
}

#[test]
fn the_default_backend_gives_the_rows_and_keys_of_the_walk() {
    if !common::btf("sockets: once against the walk") {
        return;
    }
    let connections = Connections::new(LOCALHOST);
    let port = connections.port().to_string();
    let read = |flags: &[&str]| {
        let all = ["sockets", "once", "--port", &port, "--format", "json"];
        rows(&[&all[..], flags].concat()).0
    };
    for fields in ["all", "rtt"] {
        let (walk, auto) = (read(&["--fields", fields, "--backend", "walk"]), read(&["--fields", fields]));
        assert_eq!(auto.keys().collect::<Vec<_>>(), walk.keys().collect::<Vec<_>>());
        for (ports, row) in &auto {
            for name in ["socket", "state", "rtt_us", "netns", "owners"] {
                assert_eq!(row.get(name), walk[ports].get(name), "{name} of {ports:?}");
            }
        }
    }
}

#[test]
fn a_table_of_few_sockets_is_that_of_the_walk() {
    if !common::btf("sockets: the table of once") {
        return;
    }
    let connections = Connections::new(LOCALHOST);
    let port = connections.port().to_string();
    let table = |flags: &[&str]| {
        let all = ["sockets", "once", "--port", &port];
        let done = parshall(&[&all[..], flags].concat());
        done.orderly();
        done.stdout
    };
    // The last line names the backend and the time.
    let rows = |table: &str| table.lines().filter(|line| !line.contains(" · ")).map(str::to_owned).collect::<Vec<_>>();
    // A process that another test has just begun to start holds all descriptors of this one until it is what it will be.
    let ours = format!(" pid {} ", std::process::id());
    let is_ours = |line: &str| !line.contains(" pid ") || line.contains(&ours) && !line.contains(" +");
    let (mut auto, mut walk) = (String::new(), String::new());
    common::until("nobody else holds the sockets", || {
        (auto, walk) = (table(&[]), table(&["--backend", "walk"]));
        auto.lines().chain(walk.lines()).all(is_ours)
    });
    assert!(rows(&auto).len() > 5, "{auto}");
    assert_eq!(rows(&auto), rows(&walk));
    assert!(walk.contains(" · walk · "), "{walk}");
    // The second line of a socket, and an order by what only the walk sees.
    for flags in [&["--wide"][..], &["--sort", "reuse"], &["--sort", "user_timeout_ms"]] {
        assert!(table(flags).contains(" · walk · "), "{flags:?}");
    }
}

#[test]
fn filters_and_processes_select_rows() {
    if !common::btf("sockets: filters") {
        return;
    }
    let connections = Connections::new(LOCALHOST);
    let (port, us) = (connections.port(), std::process::id().to_string());
    let comm = std::fs::read_to_string(format!("/proc/{us}/comm")).unwrap();
    let both = format!("( dport = :{port} or sport = :{port} )");
    for (filter, count) in [
        (both.clone(), 5),
        (format!("state established {both}"), 4),
        (format!("sport = :{port} exclude listen"), 2),
        (format!("state listen src 127.0.0.1:{port}"), 1),
        (format!("dst 192.0.2.0/24 {both}"), 0),
        // The end in the accept queue has no owner.
        (format!("--pid {us} {both}"), 4),
        (format!("--process {} {both}", comm.trim()), 4),
        (format!("--process no-such-command {both}"), 0),
        (format!("--pid 1 {both}"), 0),
    ] {
        for backend in ["walk", "netlink"] {
            let mut flags = vec!["sockets", "once", "--format", "json", "--backend", backend];
            flags.extend(filter.split_whitespace());
            let (rows, end) = rows(&flags);
            assert_eq!(rows.len(), count, "{backend} {filter}: {rows:?}");
            let number = |name: &str| end[name].as_u64().unwrap_or(0);
            assert_eq!(number("emitted"), count as u64, "{filter}: {end}");
            assert_eq!(number("expected"), number("emitted") + number("filtered") + number("dropped"), "{end}");
        }
    }
}

#[test]
fn closed_sockets_of_a_process_are_reported() {
    if !common::btf("sockets: closes of a process") {
        return;
    }
    let listener = listen_on_unused_port(LOCALHOST);
    let to = listener.local_addr().unwrap();
    let client = TcpStream::connect(to).unwrap();
    let server = listener.accept().unwrap();
    let (us, port) = (std::process::id().to_string(), to.port().to_string());
    let mut child = Command::new(PARSHALL)
        .args(["sockets", "stream", "--every", "1s", "--count", "3", "--pid", &us, "--format", "json"])
        .args(["--no-rates", "sport", "=", &port])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut rows = lines.map(|line| serde_json::from_str::<Value>(&line.unwrap()).unwrap());
    let first: Vec<Value> = rows.by_ref().take_while(|row| row.get("completeness").is_none()).collect();
    assert_eq!(first.len(), 2, "the listener and the accepted end: {first:?}");
    drop((client, server));
    let closed: Vec<Value> = rows.filter(|row| row["seen"].as_str() == Some("closed")).collect();
    assert!(child.wait().unwrap().success());
    assert_eq!(closed.len(), 1, "the accepted end: {closed:?}");
    assert_eq!(closed[0]["local_port"].as_u64(), Some(to.port().into()));
}

#[test]
fn without_root_a_dump_is_made_and_the_missing_privileges_are_reported() {
    if !common::root("sockets: as nobody") {
        return;
    }
    let connections = Connections::new(LOCALHOST);
    let port = connections.port().to_string();
    let scratch = common::Scratch::shared();
    let mut command = Command::new(scratch.parshall());
    command.args(["sockets", "once", "--local-port", &port, "--format", "json", "--fields", "all"]);
    let done = common::finish(command.uid(common::NOBODY).gid(common::NOBODY));
    assert_eq!(done.orderly().code, Some(0), "{done:?}");
    // Three sockets and the line with the completeness.
    assert_eq!(done.stdout.lines().count(), 4, "{done:?}");
    let lacks = " note: sockets: not read by walk: not permitted without CAP_BPF and CAP_PERFMON";
    assert!(done.stderr.lines().any(|line| line.ends_with(lacks)), "{done:?}");
    assert!(done.stderr.lines().all(|line| line.contains(" note: sockets: ")), "{done:?}");
}

#[test]
fn a_socket_that_closes_between_two_dumps_is_reported_once_with_its_final_counters() {
    if !common::btf("sockets: closes") {
        return;
    }
    let listener = listen_on_unused_port(LOCALHOST);
    let to = listener.local_addr().unwrap();
    let port = to.port().to_string();
    let mut child = Command::new(PARSHALL)
        .args(["sockets", "stream", "--every", "3s", "--count", "2", "--local-port", &port, "--format", "json"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(|line| line.unwrap());
    let first: Vec<String> = lines.by_ref().take(2).collect();
    assert!(first[1].contains("completeness"), "{first:?}");
    for n in 1..=20usize {
        let mut client = TcpStream::connect(to).unwrap();
        let (mut server, _) = listener.accept().unwrap();
        client.write_all(&vec![7; n * 100]).unwrap();
        drop(client);
        server.read_to_end(&mut Vec::new()).unwrap();
    }
    let mut received: Vec<u64> = Vec::new();
    for line in lines {
        let row: Value = serde_json::from_str(&line).unwrap();
        if row["seen"].as_str() == Some("closed") {
            received.push(row["bytes_received"].as_u64().unwrap_or(0));
        }
    }
    assert!(child.wait().unwrap().success());
    received.sort_unstable();
    // The kernel counts the FIN as a byte.
    let wanted: Vec<u64> = (1..=20).map(|n| n * 100 + 1).collect();
    assert_eq!(received, wanted);
}

/// A child process that is killed on drop.
pub(crate) struct Daemon(pub(crate) Child);

impl Daemon {
    /// Sends SIGTERM and asserts exit code 0.
    pub(crate) fn end(mut self) {
        assert!(Command::new("kill").arg(self.0.id().to_string()).status().unwrap().success());
        assert!(self.0.wait().unwrap().success(), "SIGTERM ends it with exit code 0");
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.0.kill().and_then(|()| self.0.wait()).ok();
    }
}

/// The address of the collector's metrics endpoint, from its log.
pub(crate) fn endpoint(log: &mut impl Iterator<Item = String>) -> String {
    let at = log
        .find_map(|line| Some(line.split_once("note: sockets: metrics on http://")?.1.split_once('/')?.0.to_owned()));
    at.expect("the address is logged")
}

pub(crate) fn get(at: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(at).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}

#[test]
fn a_configuration_with_several_sinks_gives_files_and_metrics() {
    if !common::root("sockets: sinks") {
        return;
    }
    let connections = Connections::new(LOCALHOST);
    let directory = tempfile::tempdir().unwrap();
    let (files, sinks) = (directory.path().join("files"), directory.path().join("sinks.toml"));
    let text = format!(
        "[[files]]\ndirectory = \"{0}\"\nformat = \"json\"\n[[files]]\ndirectory = \"{0}2\"\nformat = \"protobuf\"\n\
         [prometheus]\nlisten = \"127.0.0.1:0\"\nseries = {{ by = [\"local_port\"], max = 50 }}\n",
        files.display()
    );
    std::fs::write(&sinks, text).unwrap();
    let port = connections.port().to_string();
    let mut child = Command::new(PARSHALL)
        .args(["sockets", "stream", "--every", "200ms", "--local-port", &port, "-c"])
        .arg(&sinks)
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut notes = BufReader::new(child.stderr.take().unwrap()).lines().map(|line| line.unwrap());
    let daemon = Daemon(child);
    let at = endpoint(&mut notes);
    let mut metrics = String::new();
    common::until("three dumps are reported", || {
        metrics = get(&at, "/metrics");
        let dumps = metrics.lines().find_map(|line| line.strip_prefix("parshall_sockets_collector_dumps_total "));
        dumps.is_some_and(|n| n.parse::<u64>().unwrap() >= 3)
    });
    let open = format!("parshall_sockets_open{{local_port=\"{port}\",kind=\"tcp\",state=\"established\"}} 2.0");
    assert!(metrics.contains(&open), "{metrics}");
    assert!(metrics.contains("parshall_sockets_sink_rows_total{sink=\"files-2\",what=\"in\"}"), "{metrics}");
    daemon.end();
    assert_eq!(notes.collect::<Vec<_>>(), Vec::<String>::new());
    for directory in [files.clone(), files.with_file_name("files2")] {
        let complete = std::fs::read_dir(&directory).unwrap().flatten().count();
        assert!(complete > 0, "nothing in {}", directory.display());
    }
}

/// The number of rows in the Parquet files of a directory. Asserts that it has no other files.
fn parquet_rows(directory: &std::path::Path) -> i64 {
    use parquet::file::reader::{FileReader, SerializedFileReader};
    let files = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    let files = files.filter(|path| path.file_name().is_some_and(|name| name != ".lock"));
    let rows = |path: std::path::PathBuf| {
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        assert!(name.starts_with("sockets-"), "unexpected file {name}");
        let reader = SerializedFileReader::new(std::fs::File::open(&path).unwrap()).expect("a Parquet file");
        let found = reader.get_row_iter(None).unwrap().filter(|row| row.is_ok()).count() as i64;
        assert_eq!(found, reader.metadata().file_metadata().num_rows(), "{name}");
        found
    };
    files.map(rows).sum()
}

#[test]
fn an_error_that_ends_a_stream_leaves_complete_files() {
    let connections = Connections::new(LOCALHOST);
    let directory = tempfile::tempdir().unwrap();
    let (files, sinks) = (directory.path().join("files"), directory.path().join("sinks.toml"));
    let text = format!("[stdout]\nformat = \"json\"\n[[files]]\ndirectory = {files:?}\nformat = \"parquet\"\n");
    std::fs::write(&sinks, text).unwrap();
    let port = connections.port().to_string();
    let mut child = Command::new(PARSHALL)
        .args(["sockets", "stream", "--every", "100ms", "--local-port", &port, "-c"])
        .arg(&sinks)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let dumps = (0..3).map(|_| lines.by_ref().find(|line| line.as_ref().unwrap().contains("completeness")));
    assert_eq!(dumps.flatten().count(), 3);
    // Closes the pipe, so that the stdout sink fails.
    drop(lines);
    let stderr = child.wait_with_output().unwrap().stderr;
    let rows = parquet_rows(&files);
    assert!(rows >= 3, "{rows} rows; {}", String::from_utf8_lossy(&stderr));
    assert!(std::fs::read_dir(&files).unwrap().flatten().all(|entry| !entry.path().ends_with(".partial")));
}

#[test]
fn a_collector_that_is_killed_repeatedly_leaves_complete_files_and_reports_them() {
    let connections = Connections::new(LOCALHOST);
    let directory = tempfile::tempdir().unwrap();
    let (files, port) = (directory.path().join("files"), connections.port().to_string());
    let start = |count: &str| {
        Command::new(PARSHALL)
            .args(["sockets", "stream", "--every", "100ms", "--local-port", &port, "--format", "json"])
            .args(["--count", count, "--to"])
            .arg(&files)
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    };
    let names = || -> Vec<String> {
        let entries = std::fs::read_dir(&files).into_iter().flatten().flatten();
        entries.map(|entry| entry.file_name().into_string().unwrap()).collect()
    };
    let ends = |ending: &str| names().iter().filter(|name| name.ends_with(ending)).count();
    let mut stderr = String::new();
    for killed in 0..3 {
        let mut child = start("1000000");
        common::until("a file has data", || {
            let hidden = names().into_iter().find(|name| name.ends_with(".tmp"));
            let bytes = hidden.and_then(|name| Some(std::fs::metadata(files.join(name)).ok()?.len()));
            ends(".partial") == killed && bytes > Some(0)
        });
        child.kill().unwrap();
        stderr += &String::from_utf8_lossy(&child.wait_with_output().unwrap().stderr);
    }
    let end = start("1").wait_with_output().unwrap();
    assert!(end.status.success());
    stderr += &String::from_utf8_lossy(&end.stderr);
    assert_eq!(stderr.matches("warning: sockets: files: unfinished 1").count(), 3, "{stderr}");
    let paths = std::fs::read_dir(&files).unwrap().map(|entry| entry.unwrap().path());
    let paths: Vec<_> = paths.filter(|path| !path.ends_with(".lock")).collect();
    assert_eq!(paths.len(), 4, "{paths:?}");
    for path in paths {
        let text = zstd::decode_all(std::fs::File::open(&path).unwrap()).expect("a complete zstd file");
        let lines = text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
        let lines: Vec<Value> = lines.map(|line| serde_json::from_slice(line).expect("whole lines")).collect();
        assert!(lines.len() >= 3, "{path:?}: {lines:?}");
    }
}

/// The numbers of threads and descriptors of a process, and its resident memory in KiB.
fn resources(pid: u32) -> (usize, usize, usize) {
    let count = |what: &str| std::fs::read_dir(format!("/proc/{pid}/{what}")).unwrap().count();
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let rss = status.lines().find_map(|line| line.strip_prefix("VmRSS:")?.trim().strip_suffix(" kB")?.parse().ok());
    (count("task"), count("fd"), rss.unwrap())
}

/// The least of each over a second, which is the value between two dumps.
fn least_resources(pid: u32) -> (usize, usize, usize) {
    let samples = (0..50).map(|_| {
        std::thread::sleep(Duration::from_millis(20));
        resources(pid)
    });
    samples.reduce(|a, b| (a.0.min(b.0), a.1.min(b.1), a.2.min(b.2))).unwrap()
}

#[test]
fn destroyed_namespaces_leave_no_threads_descriptors_or_memory() {
    if !common::btf("sockets: destroyed namespaces") {
        return;
    }
    // A second namespace that exists all the time, so that its reader is created before the measurement.
    let _namespace = Daemon(Command::new("unshare").args(["--net", "sleep", "120"]).spawn().unwrap());
    for backend in ["walk", "netlink"] {
        let mut child = Command::new(PARSHALL)
            .args(["sockets", "stream", "--every", "100ms", "--format", "json", "--backend", backend])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let pid = child.id();
        let lines = BufReader::new(child.stdout.take().unwrap());
        let daemon = Daemon(child);
        let mut ends = lines
            .lines()
            .map(|line| serde_json::from_str::<Value>(&line.unwrap()).unwrap())
            .filter(|row| row.get("completeness").is_some());
        // Buffers grow to their final size during the first dumps.
        let namespaces = ends.by_ref().take(5).last().unwrap()["completeness"]["namespaces"].as_u64().unwrap();
        let before = least_resources(pid);
        let churn = std::thread::spawn(|| {
            for _ in 0..40 {
                let status = Command::new("unshare").args(["--net", "true"]).status().unwrap();
                assert!(status.success());
            }
        });
        while !churn.is_finished() {
            ends.next().expect("another dump");
        }
        churn.join().unwrap();
        // The kernel destroys namespaces asynchronously.
        let give_up = std::time::Instant::now() + Duration::from_secs(120);
        while ends.next().unwrap()["completeness"]["namespaces"].as_u64().unwrap() > namespaces {
            assert!(std::time::Instant::now() < give_up, "{backend}: destroyed namespaces are still reported");
        }
        let after = least_resources(pid);
        // Each of the two netlink readers keeps a socket of this namespace, once both have read it at the same time.
        let kept = if backend == "netlink" { 1 } else { 0 };
        let none_left = after.0 <= before.0 && after.1 <= before.1 + kept;
        assert!(none_left, "{backend}: threads, descriptors, kB {before:?} {after:?}");
        assert!(after.2 < before.2 + 8 * 1024, "{backend}: resident kB {} after {}", after.2, before.2);
        // Reads on, so that the collector does not block in a write.
        let reader = std::thread::spawn(move || ends.count());
        daemon.end();
        assert!(reader.join().unwrap() < 1000);
    }
}

#[test]
fn a_socket_that_changes_after_a_pause_is_reported_as_changed() {
    if !common::btf("sockets: changed since last") {
        return;
    }
    let listener = listen_on_unused_port(LOCALHOST);
    let to = listener.local_addr().unwrap();
    let mut client = TcpStream::connect(to).unwrap();
    let _server = listener.accept().unwrap();
    for backend in ["walk", "netlink"] {
        let mut child = Command::new(PARSHALL)
            .args(["sockets", "stream", "--every", "200ms", "--changed", "--format", "json", "--backend", backend])
            .args(["--remote-port", &to.port().to_string()])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        let _daemon = Daemon(child);
        let mut rows = lines.lines().map(|line| serde_json::from_str::<Value>(&line.unwrap()).unwrap());
        let mut ends = 0;
        let first: Vec<Value> = rows
            .by_ref()
            .take_while(|row| {
                ends += u32::from(row.get("completeness").is_some());
                ends < 5
            })
            .filter(|row| row.get("completeness").is_none())
            .collect();
        assert_eq!(first.len(), 1, "{backend}: it is reported only in the first dump: {first:?}");
        client.write_all(&[7; 1000]).unwrap();
        let row = rows.by_ref().find(|row| row.get("completeness").is_none()).unwrap();
        assert_eq!(row["seen"].as_str(), Some("changed"), "{backend}: {row}");
        assert_eq!(row["socket"], first[0]["socket"], "{backend}");
        // A rate is a whole number.
        let rate = |name: &str| row["rates"][name].as_u64().unwrap();
        let sent_max = (rate("sent_bytes_per_s") + 1) * rate("interval_us") / 1_000_000;
        assert!(sent_max >= 1000, "{backend}: {row}");
    }
}

#[test]
fn user_errors_have_an_error_and_a_hint() {
    for (arguments, what) in [
        (&["sockets", "once", "--netns", "no-such-one"][..], "there is no network namespace `no-such-one`"),
        (&["sockets", "once", "--fields", "nothing"], "there is no group of fields `nothing`"),
        (&["sockets", "once", "--pid", "4194303"], "there is no process 4194303"),
        (&["sockets", "once", "dst", "example.com"], "`example.com` is not an address"),
        (&["sockets", "stream", "--color"], "`--color` is not an option of `parshall sockets stream`"),
        (&["sockets", "stream", "-i"], "`-i` is not an option of `parshall sockets stream`"),
        (&["sockets", "stream", "--to", "/proc/nowhere"], "/proc/nowhere"),
        (&["sockets", "stream", "-c", "/proc/nowhere"], "cannot read /proc/nowhere"),
        (&["sockets", "stream", "--listen", "127.0.0.1:0", "--changed"], "--changed leaves out"),
        (&["sockets", "stream", "--listen", "192.0.2.1:1", "--count", "1"], "cannot serve metrics on 192.0.2.1:1"),
    ] {
        let done = parshall(arguments);
        assert!(done.error_and_hint().0.contains(what), "{:?}", done.error_and_hint());
    }
}

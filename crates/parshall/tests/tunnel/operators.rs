//! Operation of a tunnel: `wg`, `wg-quick`, daemons, default routes, and what is left after a kill.
//!
//! ```text
//!  host 0                               host 1
//!  10.9.0.1  tunnel ┐                 ┌ tunnel  10.9.0.2
//!            192.0.2.1 eth0 ────── eth0 192.0.2.2
//! ```

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use crate::bed::{self, Host, KEYS, LIMIT, PSK, wait_until};
use crate::common::{self, PARSHALL, Scratch, has, root};
use parshall_sys::netns::NetNs;

/// CAP_NET_ADMIN and CAP_NET_BIND_SERVICE.
const CAPABILITIES: &str = "0000000000001400";

/// A host with an interface, which is taken down at the end.
pub struct End {
    pub host: Host,
    pub interface: String,
}

impl Deref for End {
    type Target = Host;

    fn deref(&self) -> &Host {
        &self.host
    }
}

impl End {
    /// `wg show INTERFACE WHAT`.
    pub fn wg(&self, what: &str) -> String {
        self.host.wg(&format!("show {} {what}", self.interface))
    }

    pub fn tunnel(&self, verb: &str, arguments: &[&str]) -> Output {
        self.run(PARSHALL, &[&["tunnel", verb], arguments].concat())
    }

    fn socket(&self) -> PathBuf {
        bed::socket(&self.interface)
    }

    pub fn pid(&self) -> u32 {
        let path = format!("/run/parshall/tunnel/{}.pid", self.interface);
        fs::read_to_string(path).unwrap().trim().parse().unwrap()
    }
}

impl Drop for End {
    fn drop(&mut self) {
        self.tunnel("down", &[&self.interface]);
        fs::remove_file(format!("/run/parshall/tunnel/{}.log", self.interface)).ok();
    }
}

/// Two hosts with a cable between them. The sockets for `wg` of all namespaces are in one directory, so interfaces have another name for
/// each run and test.
pub fn ends(tag: &str) -> [End; 2] {
    let ends = [0, 1]
        .map(|n| End { host: Host::new(&format!("{tag}{n}")), interface: format!("{tag}{n}-{}", std::process::id()) });
    ends[0].connect(&ends[1], ["eth0", "eth0"], &[["192.0.2.1/24", "192.0.2.2/24"]]);
    ends
}

/// A file of wg-quick for a host whose peer is the other one.
pub fn config(scratch: &Scratch, host: &End, n: usize, interface: &str, peer: &str) -> String {
    let file = scratch.file(&format!("{}.conf", host.interface));
    let (private, public) = (KEYS[n].0, KEYS[1 - n].1);
    let text = format!(
        "[Interface]\nPrivateKey = {private}\nAddress = 10.9.0.{}/32\nListenPort = 51820\n{interface}\n[Peer]\n\
         PublicKey = {public}\nPresharedKey = {PSK}\nEndpoint = 192.0.2.{}:51820\n{peer}\n",
        n + 1,
        2 - n,
    );
    fs::write(&file, text).unwrap();
    file.to_str().unwrap().to_owned()
}

/// Sends a megabyte from host 0 in this namespace to host 1.
pub fn stream(from: &NetNs, to: &End) {
    bed::stream(from, &to.netns, "10.9.0.2".parse().unwrap(), 1_000_000);
}

fn status_line(pid: u32, key: &str) -> String {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':')).unwrap();
    line.split_whitespace().next().unwrap().to_owned()
}

/// The process that moves packets.
pub fn worker(pid: u32) -> u32 {
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
    children.trim().parse().unwrap()
}

#[test]
fn wg_and_wg_quick_configure_it() {
    let what = "wg and wg-quick with parshall tunnel";
    if !root(what) || !has(&["ip", "wg", "wg-quick"], what) {
        return;
    }
    if Path::new("/sys/module/wireguard").exists() {
        return common::skip(what, "the kernel has WireGuard, which wg-quick prefers");
    }
    let scratch = Scratch::new();
    let ends = ends("wg");
    let [a, b] = &ends;
    let file = config(&scratch, b, 1, "MTU = 1400", "AllowedIPs = 10.9.0.1/32\nPersistentKeepalive = 25");
    b.done("wg-quick", &["up", &file]);

    assert!(a.tunnel("run", &[&a.interface, "--daemon", "--listen", "127.0.0.1:9586"]).status.success());
    let (key, psk) = (scratch.file("key"), scratch.file("psk"));
    fs::write(&key, KEYS[0].0).unwrap();
    fs::write(&psk, PSK).unwrap();
    let set = |words: &str| {
        a.host.wg(&format!("set {} {words}", a.interface));
    };
    set(&format!("private-key {} listen-port 51820 fwmark 0x22", key.display()));
    set(&format!(
        "peer {} preshared-key {} endpoint 192.0.2.2:51820 allowed-ips 10.9.0.2/32,fd00::/8 persistent-keepalive 21",
        KEYS[1].1,
        psk.display()
    ));
    for words in ["address add 10.9.0.1/32 dev", "link set up dev", "route add 10.9.0.2/32 dev"] {
        a.ip(&format!("{words} {}", a.interface));
    }
    stream(&a.netns, b);
    let dump = a.wg("dump");
    let fields: Vec<Vec<&str>> = dump.lines().map(|line| line.split('\t').collect()).collect();
    // The private key comes back clamped.
    assert_eq!(fields[0][1..], [KEYS[0].1, "51820", "0x22"]);
    assert_eq!(fields[1][..4], [KEYS[1].1, PSK, "192.0.2.2:51820", "10.9.0.2/32,fd00::/8"]);
    shows(a);
    let numbers: Vec<u64> = fields[1][4..7].iter().map(|field| field.parse().unwrap()).collect();
    assert!(numbers[0] > 1_600_000_000 && numbers[1] > 100 && numbers[2] > 1_000_000, "{dump}");
    assert_eq!(fields[1][7], "21");

    // Only the differences are applied: the session stays, too.
    let sync = scratch.file("sync.conf");
    let text = format!(
        "[Interface]\nPrivateKey = {}\nListenPort = 51820\nFwMark = 35\n[Peer]\nPublicKey = {}\nPresharedKey = {PSK}\n\
         AllowedIPs = 10.9.0.2/32\nEndpoint = 192.0.2.2:51820\nPersistentKeepalive = off\n[Peer]\nPublicKey = {}\nAllowedIPs = 10.9.0.3/32\n",
        KEYS[0].0, KEYS[1].1, KEYS[2].1
    );
    fs::write(&sync, text).unwrap();
    let handshakes = a.wg("latest-handshakes");
    a.done("wg", &["syncconf", &a.interface, sync.to_str().unwrap()]);
    let after = a.wg("latest-handshakes");
    assert!(after.contains(handshakes.trim()), "{handshakes}{after}");
    assert_eq!(a.wg("fwmark"), "0x23\n");
    assert!(a.wg("persistent-keepalive").contains(&format!("{}\toff", KEYS[1].1)));
    set(&format!("peer {} remove", KEYS[2].1));
    assert_eq!(a.wg("peers"), format!("{}\n", KEYS[1].1));

    // The other end follows to another port.
    set("listen-port 51900");
    stream(&a.netns, b);
    assert!(b.wg("endpoints").contains("192.0.2.1:51900"));
    // A port that another process has is refused, and the old one stays.
    let taken = a.netns.run(|| std::net::UdpSocket::bind("0.0.0.0:51901")).unwrap();
    assert!(!a.run("wg", &["set", &a.interface, "listen-port", "51901"]).status.success());
    drop(taken);
    assert_eq!(a.wg("listen-port"), "51900\n");

    b.done("wg-quick", &["down", &file]);
    wait_until("the socket is there", || !b.socket().exists());
    assert!(a.tunnel("down", &[&a.interface]).status.success());
    assert!(!a.socket().exists() && !a.run("ip", &["link", "show", &a.interface]).status.success());
    let again = a.tunnel("down", &[&a.interface]);
    assert!(
        String::from_utf8_lossy(&again.stderr).starts_with(&format!("error: no tunnel {} is up\nhint: ", a.interface))
    );
}

/// `tunnel show` and the metrics of host 0, after a stream to host 1.
fn shows(host: &End) {
    let output = host.tunnel("show", &[&host.interface, "--format", "json"]);
    let document: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let tunnel = &document["tunnels"][0];
    assert_eq!((&tunnel["schema"], &tunnel["listen_port"]), (&"parshall.tunnel/1".into(), &51820.into()));
    let peer = &tunnel["peers"][0];
    assert_eq!((&peer["public_key"], &peer["handshakes"]), (&KEYS[1].1.into(), &1.into()));
    assert!(peer["sent_bytes"].as_u64() > Some(1_000_000) && peer["handshake_age_s"].as_f64() < Some(20.0), "{peer}");
    let counters = &tunnel["counters"];
    assert!(counters["packets_read"].as_u64() > counters["frames_read"].as_u64(), "{counters}");
    assert!(counters["datagrams_sent"].as_u64() > counters["messages_sent"].as_u64(), "{counters}");
    let text = String::from_utf8(host.tunnel("show", &[]).stdout).unwrap();
    // The separator is that of the locale.
    assert!(text.contains(&host.interface) && text.contains("port 51820") && text.contains("1 peer"), "{text}");
    assert!(text.contains("traffic ") && text.contains(" packets a frame read"), "{text}");
    let request = "GET /metrics HTTP/1.0\r\n\r\n";
    let answer = host.netns.run(|| {
        let mut stream = TcpStream::connect(("127.0.0.1", 9586))?;
        stream.set_read_timeout(Some(LIMIT))?;
        stream.write_all(request.as_bytes())?;
        let mut text = String::new();
        stream.read_to_string(&mut text).map(|_| text)
    });
    let answer = answer.unwrap();
    let series = format!("peer_handshakes_total{{interface=\"{}\",peer=\"{}\"}} 1", host.interface, KEYS[1].1);
    assert!(answer.starts_with("HTTP/1.0 200") && answer.contains(&series), "{answer}");
    let none = host.tunnel("show", &["nowhere-9"]);
    assert!(String::from_utf8_lossy(&none.stderr).starts_with("error: no tunnel nowhere-9 is up\nhint: "));
}

#[test]
fn a_name_alone_is_a_file_of_wg_quick() {
    let what = "a file in /etc/wireguard";
    if !root(what) || !has(&["ip", "unshare"], what) {
        return;
    }
    if !Path::new("/etc/wireguard").is_dir() {
        return parshall_testkit::skip(
            what,
            "the host has no such directory, in whose place the test could put its own",
        );
    }
    let scratch = Scratch::new();
    let ends = ends("nm");
    let [a, _] = &ends;
    let (file, name) = (config(&scratch, a, 0, "", "AllowedIPs = 10.9.0.2/32"), &a.interface);
    let script = format!(
        "mount -t tmpfs tmpfs /etc/wireguard && cp {file} /etc/wireguard/{name}.conf || exit 9
         {PARSHALL} tunnel up missing-9; exec {PARSHALL} tunnel up {name} --daemon"
    );
    let output = a.run("unshare", &["-m", "sh", "-c", &script]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}");
    assert!(said.contains("error: /etc/wireguard/missing-9.conf cannot be read"), "{said}");
    assert!(said.contains(&format!("hint: /etc/wireguard has {name}.conf")), "{said}");
    assert!(said.contains(&format!("{name} is up: 10.9.0.1")) && said.contains(&format!("{name} peer: ")), "{said}");
    let shown = String::from_utf8_lossy(&a.tunnel("show", &[name]).stdout).into_owned();
    assert!(shown.contains("handshake   none yet") && shown.contains("0 B received"), "{shown}");
}

#[test]
fn a_default_route_and_its_rules_end_also_after_a_kill() {
    let what = "default routes of parshall tunnel up";
    if !root(what) || !has(&["ip", "wg"], what) {
        return;
    }
    let scratch = Scratch::new();
    let ends = ends("df");
    let [a, b] = &ends;
    let log = scratch.file("hooks");
    let hooks = format!("PostUp = echo up %i >> {0}\nPostDown = echo gone >> {0}", log.display());
    let file_a = config(&scratch, a, 0, &hooks, "AllowedIPs = 0.0.0.0/0, ::/0");
    let file_b = config(&scratch, b, 1, "", "AllowedIPs = 10.9.0.1/32");
    let up = |host: &End, file: &str| {
        let output = host.tunnel("up", &[file, "--daemon"]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    };
    let rules = || ["-4", "-6"].map(|family| a.done("ip", &[family, "rule", "show"]));
    let before = rules();
    up(b, &file_b);
    up(a, &file_a);
    stream(&a.netns, b);
    let during = rules();
    for rules in &during {
        assert!(rules.contains("not from all fwmark 0xca6c lookup 51820"), "{rules}");
        assert!(rules.contains("lookup main suppress_prefixlength 0"), "{rules}");
    }
    assert_eq!(a.wg("fwmark"), "0xca6c\n");
    let again = a.tunnel("up", &[&file_a]);
    assert!(String::from_utf8_lossy(&again.stderr).contains("is up already\nhint: `parshall tunnel down"));

    let (pid, worker) = (a.pid(), worker(a.pid()));
    assert!(Command::new("kill").args(["-9", &pid.to_string()]).status().unwrap().success());
    wait_until("the other process runs", || !Path::new(&format!("/proc/{worker}")).exists());
    assert_eq!(rules(), during, "rules outlive the process");
    up(a, &file_a);
    assert_eq!(rules(), during, "they are there once");
    assert_eq!(fs::read_to_string(&log).unwrap(), format!("up {0}\ngone\nup {0}\n", a.interface));
    assert!(a.tunnel("down", &[&a.interface]).status.success());
    assert_eq!(rules(), before);
    assert!(fs::read_to_string(&log).unwrap().ends_with("gone\n"));
}

#[test]
fn it_keeps_two_privileges_and_survives_a_move_of_its_device() {
    let what = "parshall tunnel without root's privileges";
    if !root(what) || !has(&["ip"], what) {
        return;
    }
    let scratch = Scratch::new();
    let ends = ends("mv");
    for (n, host) in ends.iter().enumerate() {
        let peer = format!("AllowedIPs = 10.9.0.{}/32", 2 - n);
        let file = config(&scratch, host, n, "", &peer);
        assert!(host.tunnel("up", &[&file, "--daemon"]).status.success());
    }
    let [a, b] = &ends;
    let worker = worker(a.pid());
    let user: u32 = status_line(worker, "Uid").parse().unwrap();
    assert!((60_578..=61_183).contains(&user), "{user} is none of those that others leave free");
    let other = status_line(self::worker(ends[1].pid()), "Uid");
    assert!(other != user.to_string() && status_line(worker, "Gid") == user.to_string(), "{other}");
    assert_eq!(status_line(worker, "CapEff"), CAPABILITIES);
    assert_eq!(status_line(worker, "NoNewPrivs"), "1");
    stream(&a.netns, b);
    let inside = Host::new("mv-inner");
    a.ip(&format!("link set {} netns {}", a.interface, inside.netns.name()));
    for words in ["address add 10.9.0.1/32 dev", "link set up dev", "route add 10.9.0.2/32 dev"] {
        inside.ip(&format!("{words} {}", a.interface));
    }
    stream(&inside.netns, b);
    // It ends with its device.
    inside.ip(&format!("link delete {}", a.interface));
    wait_until("the process runs", || !Path::new(&format!("/proc/{worker}")).exists());
    wait_until("the socket is there", || !a.socket().exists());
}

#[test]
fn it_ends_at_once_under_load() {
    let what = "the end of a busy parshall tunnel";
    if !root(what) || !has(&["ip"], what) {
        return;
    }
    let scratch = Scratch::new();
    for (n, engine) in
        [&["--engine", "syscall"][..], &["--threads", "2"], &["--engine", "uring"]].into_iter().enumerate()
    {
        let ends = ends(&format!("ld{n}"));
        for (n, end) in ends.iter().enumerate() {
            let file = config(&scratch, end, n, "", &format!("AllowedIPs = 10.9.0.{}/32", 2 - n));
            let output = end.tunnel("up", &[&[file.as_str(), "--daemon"], engine].concat());
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        }
        let [a, b] = &ends;
        let streams = [("10.9.0.2", a, b), ("10.9.0.1", b, a)]
            .map(|(address, from, to)| bed::connect(&from.netns, &to.netns, address.parse().unwrap()));
        for [mut client, mut server] in streams {
            client.set_write_timeout(Some(Duration::from_millis(300))).unwrap();
            server.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
            std::thread::spawn(move || while client.write_all(&[7; 1 << 16]).is_ok() {});
            std::thread::spawn(move || while server.read(&mut [0; 1 << 16]).is_ok_and(|len| len > 0) {});
        }
        std::thread::sleep(Duration::from_millis(300));
        let worker = worker(a.pid());
        assert!(Command::new("kill").arg(a.pid().to_string()).status().unwrap().success());
        wait_until("the process runs", || !Path::new(&format!("/proc/{worker}")).exists());
        wait_until("the interface is there", || !a.run("ip", &["link", "show", &a.interface]).status.success());
        wait_until("the socket is there", || !a.socket().exists());
    }
}

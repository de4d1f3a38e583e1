//! Upgrades, sockets and notifications of systemd, and privileges.
use std::net::{TcpListener, UdpSocket};
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::os::unix::net::UnixDatagram;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use parshall_sys::handover;

use super::kit::{Client, Load, Relay, Service, TIMEOUT, exchange, get, listener, signal, until, unused_address};
use crate::common::{PARSHALL, Scratch, root};

/// The pid in "process N has taken over".
fn successor(relay: &Relay) -> u32 {
    relay.wait_for("has taken over", 1);
    let stderr = relay.stderr();
    let line = stderr.lines().find(|l| l.contains("has taken over")).unwrap();
    line.split_once("relay: process ").unwrap().1.split(' ').next().unwrap().parse().unwrap()
}

fn runs(pid: u32) -> bool {
    // A zombie has an empty command line.
    std::fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| !line.is_empty())
}

/// Kills a process that is no child of the test.
struct KillOnDrop(u32);

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        if runs(self.0) {
            signal(self.0, "KILL");
        }
    }
}

#[test]
fn an_upgrade_under_load_loses_no_connection() {
    let service = Service::start("s");
    let (listen, metrics) = (unused_address(), unused_address());
    let config = format!("metrics = \"{metrics}\"\n{}", listener("a", listen, &[service.address]));
    let mut relay = Relay::start(&config);
    let mut old = Client::connect(listen).unwrap();
    assert_eq!(old.ask("x").unwrap(), "s");
    let load = Load::start(listen, 3);
    load.run(100);
    relay.signal("USR2");
    let new = KillOnDrop(successor(&relay));
    load.run(300);
    assert_eq!(old.ask("y").unwrap(), "s", "the old process finishes what it has");
    old.finish().unwrap();
    assert_eq!(relay.exit_code(), Some(0));
    load.run(100);
    let (done, failures) = load.end();
    assert!(failures.is_empty(), "{} of {done} failed: {:?}", failures.len(), failures.first());
    assert_eq!(get(metrics, "/healthz").unwrap().0, 200);
    assert!(relay.control().exists(), "the new process's control socket has replaced the old one");
    signal(new.0, "TERM");
    until("the new process ends", || !runs(new.0));
    assert!(exchange(listen).is_err());
}

#[test]
fn an_upgrade_that_fails_changes_nothing() {
    let service = Service::start("s");
    let listen = unused_address();
    let config = listener("a", listen, &[service.address]);
    let relay = Relay::start(&config);
    relay.write("this is no configuration");
    let load = Load::start(listen, 2);
    relay.signal("USR2");
    relay.wait_for("not upgraded, this process goes on: the new one failed: it ended with code 2", 1);
    load.run(50);
    relay.write(&config);
    relay.signal("USR2");
    let new = KillOnDrop(successor(&relay));
    load.run(50);
    let (done, failures) = load.end();
    assert!(failures.is_empty(), "{} of {done} failed: {:?}", failures.len(), failures.first());
    assert!(runs(new.0));
}

#[test]
fn sockets_of_systemd_are_used_or_closed() {
    let service = Service::start("s");
    let (listen, other) = (unused_address(), unused_address());
    let scratch = Scratch::new();
    let config = format!(
        "control = \"{}\"\nthreads = 2\n{}",
        scratch.file("control").display(),
        listener("a", listen, &[service.address])
    );
    std::fs::write(scratch.file("relay.toml"), config).unwrap();
    let (ours, unwanted) = (TcpListener::bind(listen).unwrap(), TcpListener::bind(other).unwrap());
    let arguments = ["relay".into(), "-c".into(), scratch.file("relay.toml").into_os_string()];
    let mut child = handover::spawn(Path::new(PARSHALL), &arguments, &[ours.as_fd(), unwanted.as_fd()]).unwrap();
    drop((ours, unwanted));
    let _killed = KillOnDrop(child.pid());
    let mut ready = [0; 6];
    std::io::Read::read_exact(&mut child.ready, &mut ready).unwrap();
    assert_eq!(&ready, b"READY\n");
    assert_eq!(exchange(listen).unwrap(), "s");
    assert!(exchange(other).is_err(), "closed");
    signal(child.pid(), "TERM");
    assert_eq!(child.wait().unwrap(), 0);
}

#[test]
fn systemd_is_notified_of_states() {
    let scratch = Scratch::new();
    let socket = UnixDatagram::bind(scratch.file("notify")).unwrap();
    socket.set_read_timeout(Some(TIMEOUT)).unwrap();
    let notification = || {
        let mut text = [0; 256];
        let n = socket.recv(&mut text).unwrap();
        String::from_utf8_lossy(&text[..n]).into_owned()
    };
    let service = Service::start("s");
    let config = listener("a", unused_address(), &[service.address]);
    let mut relay = Relay::start_with(&config, |c| {
        c.env("NOTIFY_SOCKET", scratch.file("notify"));
    });
    assert!(notification().starts_with("READY=1\n"));
    relay.reload(&config);
    assert!(notification().starts_with("RELOADING=1\nMONOTONIC_USEC="));
    assert_eq!(notification(), "READY=1");
    relay.signal("TERM");
    assert_eq!(notification(), "STOPPING=1");
    assert_eq!(relay.end(), Some(0));
}

#[test]
fn a_listen_fds_that_is_too_large_does_not_take_other_descriptors() {
    let service = Service::start("s");
    let (listen, metrics) = (unused_address(), unused_address());
    let config = format!("metrics = \"{metrics}\"\n{}", listener("a", listen, &[service.address]));
    let mut relay = Relay::start_with(&config, |c| {
        // The shell execs the relay, so their pid is the same.
        let mut shell = quiet("sh");
        shell.args(["-c", "export LISTEN_PID=$$ LISTEN_FDS=500; exec \"$0\" \"$@\""]);
        shell.arg(c.get_program()).args(c.get_args());
        *c = shell;
    });
    // The process that runs the tests may have left some descriptors open.
    let stderr = relay.stderr();
    let missing =
        stderr.lines().find_map(|l| l.split_once("relay: LISTEN_FDS announces ")?.1.split(' ').next()?.parse().ok());
    assert!(missing.is_some_and(|missing: u32| (400..=500).contains(&missing)), "{stderr}");
    assert_eq!(exchange(listen).unwrap(), "s");
    assert_eq!(get(metrics, "/healthz").unwrap().0, 200);
    relay.signal("TERM");
    assert_eq!(relay.end(), Some(0), "signals reach it:\n{}", relay.stderr());
}

#[test]
fn an_upgrade_starts_the_file_that_the_link_points_to_by_then() {
    let service = Service::start("s");
    let scratch = Scratch::shared();
    let (link, new) = (scratch.file("parshall"), scratch.file("new"));
    symlink(PARSHALL, &link).unwrap();
    let relay = Relay::start_with(&listener("a", unused_address(), &[service.address]), |c| {
        let arguments: Vec<_> = c.get_args().map(ToOwned::to_owned).collect();
        *c = quiet(&link);
        c.args(arguments);
    });
    std::fs::write(&new, "#!/bin/sh\nexit 7\n").unwrap();
    std::fs::set_permissions(&new, std::fs::Permissions::from_mode(0o755)).unwrap();
    std::fs::remove_file(&link).unwrap();
    symlink(&new, &link).unwrap();
    relay.signal("USR2");
    until("the upgrade ends", || relay.count("has taken over") + relay.count("the new one failed") > 0);
    let _killed = (relay.count("has taken over") > 0).then(|| KillOnDrop(successor(&relay)));
    assert!(relay.stderr().contains("the new one failed: it ended with code 7"), "{}", relay.stderr());
}

/// A command as the kit starts it.
fn quiet(program: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = Command::new(program);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    command
}

/// A field of /proc/PID/status, or of one of its threads.
fn field(task: &Path, name: &str) -> String {
    let status = std::fs::read_to_string(task.join("status")).unwrap();
    status.lines().find_map(|l| l.strip_prefix(name)).unwrap_or_else(|| panic!("{name} in {status}")).trim().to_owned()
}

/// Checks that no thread has a capability, is root, is in another group, or can gain privileges.
fn has_no_privileges(pid: u32) {
    for task in std::fs::read_dir(format!("/proc/{pid}/task")).unwrap() {
        let task = task.unwrap().path();
        for ids in ["Uid:", "Gid:"] {
            assert_eq!(field(&task, ids).split_whitespace().collect::<Vec<_>>(), ["65534"; 4]);
        }
        assert_eq!((field(&task, "Groups:"), field(&task, "NoNewPrivs:")), (String::new(), "1".to_owned()));
        for set in ["CapInh:", "CapPrm:", "CapEff:", "CapAmb:"] {
            assert_eq!(u64::from_str_radix(&field(&task, set), 16).unwrap(), 0, "{set}");
        }
    }
}

/// Upgrades to another number of threads than the two of the kit.
fn upgrade_to_threads(relay: &Relay, threads: u8) -> KillOnDrop {
    let path = relay.scratch.file("relay.toml");
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, text.replace("threads = 2", &format!("threads = {threads}"))).unwrap();
    relay.signal("USR2");
    KillOnDrop(successor(relay))
}

#[test]
fn an_upgrade_to_fewer_threads_serves_every_client_of_udp() {
    let target = UdpSocket::bind(unused_address()).unwrap();
    target.set_read_timeout(Some(TIMEOUT)).unwrap();
    let listen = unused_address();
    let config = listener("u", listen, &[target.local_addr().unwrap()]) + "protocol = \"udp\"\n";
    let relay = Relay::start(&config);
    // A session keeps the old process, and with it both of its sockets.
    let old = UdpSocket::bind((listen.ip(), 0)).unwrap();
    old.send_to(b"old", listen).unwrap();
    target.recv(&mut [0; 8]).unwrap();
    let _new = upgrade_to_threads(&relay, 1);
    relay.wait_for("draining", 1);
    for n in 0..40_u8 {
        let client = UdpSocket::bind((listen.ip(), 0)).unwrap();
        client.send_to(&[n], listen).unwrap();
        let mut received = [0; 8];
        assert_eq!((target.recv(&mut received).unwrap(), received[0]), (1, n));
    }
}

#[test]
fn an_upgrade_to_more_threads_works_after_privileges_are_given_up() {
    if !root("opening a port below 1024 before becoming another user") {
        return;
    }
    if !Command::new(PARSHALL).uid(65_534).arg("--version").output().is_ok_and(|done| done.status.success()) {
        return parshall_testkit::skip("an upgrade as another user", "that user cannot start the program");
    }
    let service = Service::start("s");
    let target = UdpSocket::bind(unused_address()).unwrap();
    target.set_read_timeout(Some(TIMEOUT)).unwrap();
    let (mut tcp, mut udp) = (unused_address(), unused_address());
    tcp.set_port(71);
    udp.set_port(72);
    let datagrams = listener("u", udp, &[target.local_addr().unwrap()]) + "protocol = \"udp\"\n";
    let relay = Relay::start(&format!("user = \"65534:65534\"\n{}{datagrams}", listener("t", tcp, &[service.address])));
    let _new = upgrade_to_threads(&relay, 4);
    for n in 0..20_u8 {
        assert_eq!(exchange(tcp).unwrap(), "s");
        UdpSocket::bind((udp.ip(), 0)).unwrap().send_to(&[n], udp).unwrap();
        let mut received = [0; 8];
        assert_eq!((target.recv(&mut received).unwrap(), received[0]), (1, n));
    }
}

#[test]
fn privileges_are_dropped_once_it_listens() {
    if !root("dropping privileges") {
        return;
    }
    let service = Service::start("s");
    let mut listen = unused_address();
    listen.set_port(70);
    let config = format!("user = \"65534:65534\"\n{}", listener("a", listen, &[service.address]));
    let relay = Relay::start(&config);
    has_no_privileges(relay.pid());
    let control = std::fs::metadata(relay.control()).unwrap();
    assert_eq!((control.uid(), control.gid(), control.mode() & 0o777), (65534, 65534, 0o600));
    assert_eq!(exchange(listen).unwrap(), "s");
    relay.reload(&config);
    assert_eq!(exchange(listen).unwrap(), "s", "a kept listener needs no privileges");
}

#[test]
fn groups_and_capabilities_are_dropped_also_if_it_was_started_as_the_user() {
    if !root("starting a relay with another user's groups and capabilities") {
        return;
    }
    let service = Service::start("s");
    let listen = unused_address();
    let config = format!("user = \"65534:65534\"\n{}", listener("a", listen, &[service.address]));
    let scratch = Scratch::shared();
    let program = scratch.parshall();
    let start = |groups: &str, capabilities: &str| {
        let groups = format!("--groups={groups}");
        let (inherited, ambient) = (format!("--inh-caps={capabilities}"), format!("--ambient-caps={capabilities}"));
        Relay::begin(&config, |c| {
            // It opens its control socket beside its configuration.
            let file = Path::new(c.get_args().last().unwrap());
            std::fs::set_permissions(file.parent().unwrap(), std::fs::Permissions::from_mode(0o777)).unwrap();
            let mut other = quiet("setpriv");
            other.args(["--reuid=65534", "--regid=65534", &groups, &inherited, &ambient]);
            other.arg(&program).args(c.get_args());
            *c = other;
        })
    };
    let relay = start("65534,4,27", "+setgid,+net_raw,+sys_ptrace");
    relay.wait_for("started", 1);
    has_no_privileges(relay.pid());
    assert_eq!(exchange(listen).unwrap(), "s");
    drop(relay);
    // Without CAP_SETGID it cannot leave the groups, and refuses to run with them.
    let mut relay = start("65534,4", "-all");
    assert_eq!(relay.end(), Some(1));
    assert!(relay.stderr().contains("hint:"), "{}", relay.stderr());
    assert!(
        relay.stderr().contains("the process is also in group 4, and leaving it needs CAP_SETGID"),
        "{}",
        relay.stderr()
    );
}

#[test]
fn no_new_privs_is_set() {
    let service = Service::start("s");
    let relay = Relay::start(&listener("a", unused_address(), &[service.address]));
    assert_eq!(field(Path::new(&format!("/proc/{}", relay.pid())), "NoNewPrivs:"), "1");
}

#[test]
fn a_transparent_relay_keeps_one_capability_and_so_does_its_successor() {
    if !root("dropping privileges but one") {
        return;
    }
    let service = Service::start("s");
    let listen = unused_address();
    let relay =
        Relay::start(&format!("user = \"nobody\"\n{}transparent = true\n", listener("a", listen, &[service.address])));
    let capabilities = |pid: u32| {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        status.lines().find_map(|l| l.strip_prefix("CapEff:")).unwrap().trim().to_owned()
    };
    // Bit 12 is CAP_NET_ADMIN.
    assert_eq!(capabilities(relay.pid()), "0000000000001000");
    relay.signal("USR2");
    let new = KillOnDrop(successor(&relay));
    assert_eq!(capabilities(new.0), "0000000000001000");
}

#[test]
fn an_unknown_user_is_an_error() {
    if !root("becoming a user that is not there") {
        return;
    }
    let mut relay =
        Relay::begin(&format!("user = \"nosuch\"\n{}", listener("a", unused_address(), &[unused_address()])), |_| {});
    assert_eq!(relay.end(), Some(1));
    assert!(relay.stderr().contains("hint:"), "{}", relay.stderr());
    assert!(relay.stderr().contains("there is no user nosuch"), "{}", relay.stderr());
}

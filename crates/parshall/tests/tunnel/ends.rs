//! How a `parshall tunnel` ends, and what is left then: it dies, its terminal is closed, other users prepare its files.

use std::fs;
use std::net::UdpSocket;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use parshall_sys::file_lock::FileLock;
use parshall_sys::owner::Owner;

use crate::bed::{self, KEYS, wait_until};
use crate::common::{self, PARSHALL, Scratch, begin, has, root};
use crate::operators::{End, config, ends, stream, worker};

/// A documentation prefix that host 0 routes into its tunnel, and an address in it.
const FAR: &str = "203.0.113.0/24";
const FAR_ADDRESS: &str = "203.0.113.9";

/// Hosts of which the second routes to the world, so that packets outside of the tunnel would have a way.
fn hosts(tag: &str) -> [End; 2] {
    let ends = ends(tag);
    ends[0].ip("route add default via 192.0.2.2");
    ends
}

fn up(host: &End, file: &str, flags: &[&str]) {
    let output = host.tunnel("up", &[&[file, "--daemon"], flags].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// By which device host 0 sends to an address; empty if the packets are dropped.
fn device_to(host: &End, address: &str) -> String {
    let output = host.run("ip", &["route", "get", address]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let mut words = text.split_whitespace().skip_while(|word| *word != "dev");
    words.nth(1).filter(|_| output.status.success()).unwrap_or_default().to_owned()
}

fn kill(pid: u32) {
    assert!(Command::new("kill").args(["-9", &pid.to_string()]).status().unwrap().success());
}

fn log_of(host: &End) -> String {
    fs::read_to_string(format!("/run/parshall/tunnel/{}.log", host.interface)).unwrap_or_default()
}

/// The files of a tunnel, without the log of its daemon.
fn files(host: &End) -> Vec<String> {
    let entries = fs::read_dir("/run/parshall/tunnel").unwrap().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    names.filter(|name| name.starts_with(&host.interface) && !name.ends_with(".log")).collect()
}

#[test]
fn a_tunnel_that_dies_lets_nothing_out_until_it_is_taken_down() {
    let what = "a parshall tunnel whose process dies";
    if !root(what) || !has(&["ip"], what) {
        return;
    }
    let scratch = Scratch::new();
    let ends = hosts("die");
    let [a, b] = &ends;
    let log = scratch.file("hooks");
    let hooks = format!(
        "PreUp = (ip route get {FAR_ADDRESS} > /dev/null && echo open || echo shut) >> {0}\nPostUp = echo up >> {0}\n\
         PreDown = echo down >> {0}\nPostDown = echo gone >> {0}",
        log.display()
    );
    let hooks_run = || fs::read_to_string(&log).unwrap_or_default().replace('\n', " ");
    up(b, &config(&scratch, b, 1, "", "AllowedIPs = 10.9.0.1/32"), &[]);
    let routing = || {
        let routes =
            ["-4 route show table all", "-6 route show table all type blackhole", "-4 rule show", "-6 rule show"];
        routes.map(|words| a.ip(words))
    };
    let before = routing();
    // The interface's own network, and a default route with its rules.
    let addresses = "Address = 10.9.9.1/24\nAddress = fd09::1/64";
    let all = ("0.0.0.0/0, ::/0".to_owned(), "192.0.2.2");
    for (allowed, outside) in [(format!("10.9.0.2/32, {FAR}"), "198.51.100.1"), all] {
        let file = config(&scratch, a, 0, &format!("{addresses}\n{hooks}"), &format!("AllowedIPs = {allowed}"));
        let is_blocked = || {
            for address in [FAR_ADDRESS, "10.9.9.7", "10.9.0.2"] {
                assert_eq!(device_to(a, address), "", "{address} is not reached by another interface");
            }
            assert_eq!(device_to(a, outside), "eth0", "what was never routed into the tunnel");
        };
        let is_up = || {
            stream(&a.netns, b);
            for address in [FAR_ADDRESS, "10.9.9.7"] {
                assert_eq!(device_to(a, address), a.interface);
            }
            assert_eq!(device_to(a, outside), "eth0");
        };
        // The process that moves packets, and the one that has started it.
        for kills_worker in [true, false] {
            fs::remove_file(&log).ok();
            up(a, &file, &[]);
            is_up();
            let (pid, during) = (a.pid(), routing());
            kill(if kills_worker { worker(pid) } else { pid });
            wait_until("the interface is there", || !a.run("ip", &["link", "show", &a.interface]).status.success());
            wait_until("the process runs", || !Path::new(&format!("/proc/{pid}")).exists());
            is_blocked();
            assert_eq!(hooks_run(), "open up ", "hooks wait too");
            if kills_worker {
                let text = log_of(a);
                assert!(text.contains("are dropped from now on\nhint: `parshall tunnel down "), "{text}");
            } else {
                // A start that fails opens nothing, and the next one takes over what it finds.
                let taken = a.netns.run(|| UdpSocket::bind("0.0.0.0:51820")).unwrap();
                assert!(!a.tunnel("up", &[&file]).status.success());
                drop(taken);
                is_blocked();
                up(a, &file, &[]);
                is_up();
                assert_eq!(routing(), during, "everything is there once");
                assert_eq!(hooks_run(), "open up down gone shut gone shut up ");
                kill(pid_of_worker(a));
                wait_until("the interface is there", || !a.run("ip", &["link", "show", &a.interface]).status.success());
                is_blocked();
            }
            wait_until("the process has the lock", || a.tunnel("down", &[&a.interface]).status.success());
            assert!(hooks_run().ends_with("up down gone "), "{}", hooks_run());
            assert_eq!((device_to(a, FAR_ADDRESS).as_str(), routing()), ("eth0", before.clone()));
            assert_eq!(files(a), [""; 0]);
        }
    }
}

/// Blocked routes of a tunnel that died are replaced when the file has changed.
#[test]
fn the_next_tunnel_may_have_other_routes_than_the_one_that_died() {
    let what = "other routes of a parshall tunnel that died";
    if !root(what) || !has(&["ip"], what) {
        return;
    }
    let scratch = Scratch::new();
    let ends = hosts("chg");
    let [a, b] = &ends;
    let routing = || ["route show table all type blackhole", "rule show"].map(|words| a.ip(words));
    let before = routing();
    up(b, &config(&scratch, b, 1, "", "AllowedIPs = 10.9.0.1/32"), &[]);
    let files_of = [
        ("", "0.0.0.0/0".to_owned()),
        ("FwMark = 77", "0.0.0.0/0".to_owned()),
        ("Table = 9", FAR.to_owned()),
        ("", format!("10.9.0.2/32, {FAR}")),
    ];
    for (interface, allowed) in &files_of {
        let file = config(&scratch, a, 0, interface, &format!("AllowedIPs = {allowed}"));
        up(a, &file, &[]);
        if allowed.contains("0.0.0.0/0") {
            stream(&a.netns, b);
            assert_eq!(
                (device_to(a, FAR_ADDRESS).as_str(), device_to(a, "192.0.2.2").as_str()),
                (&*a.interface, "eth0")
            );
        }
        let rules = a.ip("rule show");
        assert_eq!(
            rules.matches("suppress_prefixlength").count(),
            usize::from(allowed.contains("0.0.0.0/0")),
            "{rules}"
        );
        kill(pid_of_worker(a));
        wait_until("the interface is there", || !a.run("ip", &["link", "show", &a.interface]).status.success());
        wait_until("it has ended", || !Path::new(&format!("/run/parshall/tunnel/{}.lock", a.interface)).exists());
    }
    assert!(a.tunnel("down", &[&a.interface]).status.success());
    assert_eq!(routing(), before);
}

fn pid_of_worker(host: &End) -> u32 {
    worker(host.pid())
}

#[test]
fn a_tunnel_that_may_fail_open_undoes_everything_when_it_dies() {
    let what = "a parshall tunnel that fails open";
    if !root(what) || !has(&["ip"], what) {
        return;
    }
    let scratch = Scratch::new();
    let ends = hosts("fo");
    let [a, _] = &ends;
    let file = config(&scratch, a, 0, "", &format!("AllowedIPs = {FAR}"));
    up(a, &file, &["--fail-open"]);
    assert_eq!(device_to(a, FAR_ADDRESS), a.interface);
    kill(worker(a.pid()));
    wait_until("files are left", || files(a).is_empty());
    assert_eq!(device_to(a, FAR_ADDRESS), "eth0");
    // One that is asked to end does so too.
    up(a, &file, &[]);
    assert!(a.tunnel("down", &[&a.interface]).status.success());
    assert_eq!((device_to(a, FAR_ADDRESS).as_str(), files(a).len()), ("eth0", 0));
    up(a, &file, &[]);
    a.ip(&format!("link delete {}", a.interface));
    wait_until("files are left", || files(a).is_empty());
    assert_eq!(device_to(a, FAR_ADDRESS), "eth0");
}

#[test]
fn a_closed_terminal_ends_a_tunnel_in_the_foreground_and_undoes_it() {
    let what = "a parshall tunnel whose terminal is closed";
    if !root(what) || !has(&["ip"], what) {
        return;
    }
    let scratch = Scratch::new();
    let ends = hosts("hup");
    let [a, _] = &ends;
    let (rules, begun, ended) = (a.ip("rule show"), scratch.file("begun"), scratch.file("ended"));
    let hooks = format!("PostUp = touch {}\nPostDown = touch {}", begun.display(), ended.display());
    let file = config(&scratch, a, 0, &hooks, "AllowedIPs = 0.0.0.0/0");
    // The tests may run with SIGHUP ignored, as with nohup.
    let mut command = Command::new("env");
    command.args(["--default-signal=HUP", PARSHALL, "tunnel", "up", &file]);
    let running = a.netns.run(|| Ok(begin(&mut command))).unwrap();
    wait_until("it is not up", || begun.exists());
    running.signal("-HUP");
    let done = running.finish();
    assert_eq!(done.code, Some(0), "{done:?}");
    assert!(ended.exists() && a.ip("rule show") == rules && files(a).is_empty());

    // nohup(1) has it ignored.
    fs::remove_file(&begun).unwrap();
    let mut nohup = Command::new("nohup");
    nohup.args([PARSHALL, "tunnel", "up", &file]);
    let mut running = a.netns.run(|| Ok(begin(&mut nohup))).unwrap();
    wait_until("it is not up", || begun.exists());
    let status = fs::read_to_string(format!("/proc/{}/status", running.pid())).unwrap();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap();
    assert_eq!(u64::from_str_radix(ignored.trim(), 16).unwrap() & 1, 1, "{ignored}");
    running.signal("-TERM");
    running.wait_for_end();
    assert_eq!(running.finish().code, Some(0));
}

#[test]
fn a_signal_that_comes_again_ends_a_tunnel_as_one_does() {
    let what = "a parshall tunnel that gets several signals";
    if !root(what) || !has(&["ip"], what) {
        return;
    }
    let scratch = Scratch::new();
    let ends = hosts("int");
    let [a, _] = &ends;
    let (begun, ended) = (scratch.file("begun"), scratch.file("ended"));
    let hooks = format!("PostUp = touch {}\nPostDown = touch {}", begun.display(), ended.display());
    let file = config(&scratch, a, 0, &hooks, "AllowedIPs = 10.9.0.2/32");
    let running = a.netns.run(|| Ok(begin(Command::new(PARSHALL).args(["tunnel", "up", &file])))).unwrap();
    wait_until("it is not up", || begun.exists());
    let children = || fs::read_to_string(format!("/proc/{0}/task/{0}/children", running.pid())).unwrap();
    wait_until("the hook has not ended", || children().split_whitespace().count() == 1);
    // The process that moves packets takes a while to end.
    let worker_pid = worker(running.pid()).to_string();
    let signal = |name: &str| assert!(Command::new("kill").args([name, &worker_pid]).status().unwrap().success());
    signal("-STOP");
    for _ in 0..10 {
        running.signal("-INT");
        std::thread::sleep(Duration::from_millis(50));
    }
    signal("-CONT");
    let done = running.finish();
    assert_eq!(done.code, Some(0), "{done:?}");
    assert!(ended.exists() && files(a).is_empty());
}

#[test]
fn a_table_of_the_file_gets_all_routes() {
    let what = "the routing table of a parshall tunnel";
    if !root(what) || !has(&["ip"], what) {
        return;
    }
    let scratch = Scratch::new();
    let ends = ends("tbl");
    let [a, _] = &ends;
    let interface = "Address = 10.9.9.1/24\nTable = 1234";
    up(a, &config(&scratch, a, 0, interface, &format!("AllowedIPs = 10.9.9.0/24, 10.9.0.2/32, {FAR}")), &[]);
    let routes = a.ip(&format!("route show table 1234 dev {}", a.interface));
    let prefixes: Vec<&str> = routes.lines().filter_map(|line| line.split_whitespace().next()).collect();
    assert_eq!(prefixes, ["10.9.0.2", "10.9.9.0/24", FAR]);
}

#[test]
fn a_default_route_works_where_source_addresses_are_checked_strictly() {
    let what = "a default route of parshall tunnel with a strict rp_filter";
    if !root(what) || !has(&["ip", "nft"], what) {
        return;
    }
    let scratch = Scratch::new();
    let ends = hosts("rpf");
    let [a, b] = &ends;
    let tables = || a.done("nft", &["list", "tables"]);
    if !a.run("nft", &["add", "table", "ip", "it"]).status.success() {
        return common::skip(what, "the kernel has no nftables");
    }
    let before = tables();
    for conf in ["all", "default", "eth0"] {
        let path = format!("/proc/sys/net/ipv4/conf/{conf}/rp_filter");
        a.netns.run(|| fs::write(path, "1")).unwrap();
    }
    // The peer is not on a network of its own, for which the main table is asked before the tunnel's.
    b.add_address("198.51.100.1/32", "eth0");
    up(b, &config(&scratch, b, 1, "", "AllowedIPs = 10.9.0.1/32"), &[]);
    let file = config(&scratch, a, 0, "", "AllowedIPs = 0.0.0.0/0");
    let text = fs::read_to_string(&file).unwrap().replace("192.0.2.2:", "198.51.100.1:");
    fs::write(&file, text).unwrap();
    up(a, &file, &[]);
    assert!(tables().contains("parshall_tunnel_51820"), "{}", tables());
    stream(&a.netns, b);
    assert!(a.tunnel("down", &[&a.interface]).status.success());
    assert_eq!(tables(), before);
    // Without nftables it is refused, with what to do.
    let output = a.run("env", &["PATH=/nonexistent", PARSHALL, "tunnel", "up", &file]);
    assert!(!output.status.success());
    let bin = scratch.file("bin");
    fs::create_dir(&bin).unwrap();
    let ip = a.done("sh", &["-c", "command -v ip"]);
    std::os::unix::fs::symlink(ip.trim(), bin.join("ip")).unwrap();
    let output = a.run("env", &[&format!("PATH={}", bin.display()), PARSHALL, "tunnel", "up", &file]);
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(text.contains("net.ipv4.conf.all.rp_filter is 1 (strict)"), "{text}");
    assert!(text.contains("hint: type `sysctl -w net.ipv4.conf.all.rp_filter=2`"), "{text}");
    assert_eq!((files(a).len(), tables()), (0, before));
}

#[test]
fn files_that_another_user_has_prepared_are_not_used() {
    let what = "prepared files of parshall tunnel";
    if !root(what) || !has(&["ip", "unshare", "setpriv"], what) {
        return;
    }
    let scratch = Scratch::shared();
    let ends = ends("own");
    let [a, _] = &ends;
    let file = config(&scratch, a, 0, "", &format!("AllowedIPs = {FAR}"));
    let (proof, victim) = (scratch.file("proof"), scratch.file("victim"));
    fs::write(&victim, "precious").unwrap();
    let record = scratch.file("record");
    let netns = a.done("stat", &["-Lc", "%i", "/proc/self/ns/net"]);
    let hook = format!("{{\"netns\": {}, \"steps\": [{{\"Hook\": \"touch {}\"}}]}}", netns.trim(), proof.display());
    fs::write(&record, hook).unwrap();
    let name = &a.interface;
    // As RuntimeDirectory=parshall with User= makes it, and as a directory that is root's only by its name.
    for owned in ["/run/parshall", "/run/parshall/tunnel"] {
        let script = format!(
            "mount -t tmpfs tmpfs /run/parshall && mkdir /run/parshall/tunnel && chown 65534 {owned} && chmod 755 /run/parshall &&
             cp {0} /run/parshall/tunnel/{name}.undo && chown 65534 /run/parshall/tunnel/{name}.undo &&
             ln -s {1} /run/parshall/tunnel/{name}.pid && ln -s {1} /run/parshall/tunnel/{name}.log || exit 9
             {PARSHALL} tunnel up {file} --daemon; echo up $?; {PARSHALL} tunnel down {name}; echo down $?",
            record.display(),
            victim.display()
        );
        let output = a.run("unshare", &["-m", "sh", "-c", &script]);
        let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert_eq!(out, "up 1\ndown 1\n", "{err}");
        assert!(err.contains(&format!("error: {owned} cannot be used: {owned} belongs to someone else")), "{err}");
        assert!(!proof.exists() && fs::read_to_string(&victim).unwrap() == "precious");
    }
}

#[test]
fn down_ends_only_the_process_that_has_the_lock() {
    let what = "a pid file that a killed parshall tunnel left";
    if !root(what) || !has(&["ip"], what) {
        return;
    }
    let ends = ends("pid");
    let [a, _] = &ends;
    let path = |extension: &str| format!("/run/parshall/tunnel/{}.{extension}", a.interface);
    // The directory is made by a tunnel.
    assert!(a.tunnel("run", &[&a.interface, "--daemon"]).status.success());
    assert!(a.tunnel("down", &[&a.interface]).status.success());
    assert_eq!(files(a), [""; 0]);
    let mut other = Command::new("sleep").arg("600").stdin(Stdio::null()).spawn().unwrap();
    fs::write(path("pid"), other.id().to_string()).unwrap();
    fs::write(path("lock"), format!("parshall-{}-1-{}", other.id(), a.interface)).unwrap();
    let lock = FileLock::take(Path::new(&path("lock"))).unwrap().unwrap();
    let output = a.tunnel("down", &[&a.interface]);
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        text.starts_with(&format!("error: {} is locked, and by no tunnel that is known\nhint: ", path("lock"))),
        "{text}"
    );
    drop(lock);
    let output = a.tunnel("down", &[&a.interface]);
    assert!(String::from_utf8_lossy(&output.stderr).starts_with("error: no tunnel "));
    assert!(other.try_wait().unwrap().is_none(), "a process that is none of a tunnel was ended");
    other.kill().unwrap();
    other.wait().unwrap();
    for extension in ["pid", "lock"] {
        fs::remove_file(path(extension)).ok();
    }
}

/// When the process that moves packets dies, the other one ends too, and may be asked to meanwhile.
#[test]
fn down_undoes_what_a_tunnel_leaves_that_ends_by_itself_meanwhile() {
    let what = "a parshall tunnel that dies while it is taken down";
    if !root(what) || !has(&["ip"], what) {
        return;
    }
    let scratch = Scratch::new();
    let ends = ends("mid");
    let [a, _] = &ends;
    let path = |extension: &str| format!("/run/parshall/tunnel/{}.{extension}", a.interface);
    // The directory is made by a tunnel.
    assert!(a.tunnel("run", &[&a.interface, "--daemon"]).status.success());
    assert!(a.tunnel("down", &[&a.interface]).status.success());
    let mut other = Command::new("sleep").arg("600").stdin(Stdio::null()).spawn().unwrap();
    fs::write(path("lock"), Owner::of(other.id()).unwrap().name(&a.interface)).unwrap();
    let lock = FileLock::take(Path::new(&path("lock"))).unwrap().unwrap();
    let netns = a.netns.run(|| fs::metadata("/proc/thread-self/ns/net")).unwrap().ino();
    let undone = scratch.file("undone");
    let steps = format!("{{\"netns\": {netns}, \"steps\": [{{\"Hook\": \"touch {}\"}}]}}", undone.display());
    fs::write(path("undo"), steps).unwrap();
    let ending = std::thread::spawn(move || {
        other.wait().unwrap();
        drop(lock);
    });
    let output = a.tunnel("down", &[&a.interface]);
    ending.join().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(undone.exists(), "what is left of it stays");
    assert_eq!(files(a), [""; 0]);
}

#[test]
fn a_host_without_ipv6_has_a_tunnel_over_ipv4() {
    let what = "parshall tunnel without IPv6";
    if !root(what) || !has(&["ip"], what) {
        return;
    }
    let scratch = Scratch::new();
    let ends = hosts("no6");
    for (n, end) in ends.iter().enumerate() {
        end.netns
            .run(|| {
                ["all", "default", "eth0"]
                    .iter()
                    .try_for_each(|conf| fs::write(format!("/proc/sys/net/ipv6/conf/{conf}/disable_ipv6"), "1"))
            })
            .unwrap();
        let peer = format!("AllowedIPs = 10.9.0.{}/32, fd09::/64", 2 - n);
        up(end, &config(&scratch, end, n, &format!("Address = fd09::{}/64", n + 1), &peer), &[]);
        assert!(log_of(end).contains("this host has no IPv6"), "{}", log_of(end));
    }
    stream(&ends[0].netns, &ends[1]);
}

/// Loops move packets over IPv4 where sockets of IPv6 cannot be made, as on a kernel that was started with ipv6.disable=1.
#[test]
fn every_loop_works_without_sockets_of_ipv6() {
    let what = "the loops of parshall tunnel without IPv6";
    if !root(what) || !has(&["ip", "gcc"], what) {
        return;
    }
    let scratch = Scratch::new();
    let library = scratch.file("noipv6.so");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/tunnel/noipv6.c");
    let built = Command::new("gcc").args(["-shared", "-fPIC", source, "-o"]).arg(&library).status().unwrap();
    assert!(built.success());
    for (n, engine) in
        [&["--engine", "syscall"][..], &["--threads", "2"], &["--engine", "uring"]].into_iter().enumerate()
    {
        let ends = ends(&format!("nos{n}"));
        for (n, end) in ends.iter().enumerate() {
            let file =
                config(&scratch, end, n, "Address = fd09::1/64", &format!("AllowedIPs = 10.9.0.{}/32, ::/0", 2 - n));
            let preload = format!("LD_PRELOAD={}", library.display());
            let words = [&[preload.as_str(), PARSHALL, "tunnel", "up", &file, "--daemon"], engine].concat();
            let output = end.run("env", &words);
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        }
        stream(&ends[0].netns, &ends[1]);
        // Another port is opened in the same way.
        end_listens_elsewhere(&ends);
    }
}

fn end_listens_elsewhere(ends: &[End; 2]) {
    if !has(&["wg"], "another port of a parshall tunnel without IPv6") {
        return;
    }
    let [a, b] = ends;
    a.host.wg(&format!("set {} listen-port 51999 peer {} endpoint 192.0.2.2:51820", a.interface, KEYS[1].1));
    bed::reaches(&a.netns, &b.netns, "10.9.0.2".parse().unwrap());
}

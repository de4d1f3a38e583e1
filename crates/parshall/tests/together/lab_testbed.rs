//! Testbeds from their files to what the kernel has: as written, as the script that `--show-as-shell` prints, without root, and
//! removed whenever the run is killed.

use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::common::{self, Done, NOBODY, PARSHALL, Scratch, finish, has, root};
use parshall_sys::netns;
use parshall_sys::owner::Owner;
use serde_json::Value;

const ROUTER: &str = include_str!("../../../core/src/testbed/golden/router.toml");

/// The file, without what needs ethtool.
fn router(scratch: &Scratch) -> PathBuf {
    let path = scratch.file("router.toml");
    std::fs::write(&path, ROUTER.replace("offloads = { tso = false, gro = true }\n", "")).unwrap();
    path
}

fn testbed(arguments: &[&str]) -> Done {
    finish(Command::new(PARSHALL).args(["lab", "testbed"]).args(arguments))
}

/// A testbed that is up; killed on drop.
struct Up {
    child: Child,
    /// The names of its namespaces under /run/netns, in the order of the file.
    namespaces: Vec<String>,
}

impl Up {
    /// Waits until `count` namespaces are announced.
    fn start(mut command: Command, count: usize) -> Self {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok).take(count);
        let namespaces: Vec<String> = lines.filter_map(|line| Some(line.split(' ').nth(1)?.to_owned())).collect();
        if namespaces.len() < count {
            let mut said = String::new();
            child.stderr.take().unwrap().read_to_string(&mut said).ok();
            panic!("only {namespaces:?}: {said}");
        }
        Self { child, namespaces }
    }

    fn of_file(path: &std::path::Path, count: usize) -> Self {
        let mut command = Command::new(PARSHALL);
        command.args(["lab", "testbed", "--for", "600s"]).arg(path);
        Self::start(command, count)
    }
}

impl Drop for Up {
    fn drop(&mut self) {
        Command::new("kill").args(["-TERM", &self.child.id().to_string()]).status().ok();
        self.child.wait().ok();
    }
}

fn output(program: &str, arguments: &[&str]) -> String {
    let done = Command::new(program).args(arguments).output().unwrap();
    assert!(done.status.success(), "{program} {arguments:?}: {}", String::from_utf8_lossy(&done.stderr));
    String::from_utf8_lossy(&done.stdout).into_owned()
}

/// The contents of a namespace, without what differs between any two: indices, hardware addresses, handles.
fn state(namespace: &str) -> Vec<String> {
    let json = |program: &str, arguments: &[&str]| -> Vec<Value> {
        let text = output(program, &[&["-n", namespace, "-j"], arguments].concat());
        serde_json::from_str(&text).unwrap_or_default()
    };
    let mut all = Vec::new();
    for device in json("ip", &["address"]) {
        let addresses: Vec<String> = device["addr_info"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|address| address["scope"] != "link")
            .map(|address| format!("{}/{} nodad {}", address["local"], address["prefixlen"], address["nodad"]))
            .collect();
        let up = device["flags"].as_array().unwrap().contains(&"UP".into());
        all.push(format!("{} mtu {} up {up} {addresses:?}", device["ifname"], device["mtu"]));
    }
    for family in ["-4", "-6"] {
        let routes = json("ip", &[family, "route"]);
        all.extend(
            routes.iter().map(|route| format!("{} via {} dev {}", route["dst"], route["gateway"], route["dev"])),
        );
    }
    for qdisc in json("tc", &["qdisc"]) {
        all.push(format!("{} on {} {}", qdisc["kind"], qdisc["dev"], qdisc["options"]));
    }
    for key in ["ipv4/tcp_congestion_control", "ipv4/ip_forward", "ipv4/tcp_rmem"] {
        all.push(output("ip", &["netns", "exec", namespace, "cat", &format!("/proc/sys/net/{key}")]));
    }
    all
}

#[test]
fn what_is_made_is_what_the_file_says_and_carries_packets() {
    if !root("testbeds from files") || !has(&["ip", "tc"], "testbeds from files") {
        return;
    }
    let scratch = Scratch::new();
    let up = Up::of_file(&router(&scratch), 3);
    let [client, router, server] = &up.namespaces[..] else { panic!("three") };
    let client = state(client).join("\n");
    for expected in ["\"eth0\" mtu 9000 up true [\"\\\"10.1.0.2\\\"/24", "\"default\" via \"10.1.0.1\""] {
        assert!(client.contains(expected), "{expected}\n{client}");
    }
    // Never the host's.
    assert!(client.contains("\ncubic\n") || client.contains("\nreno\n"), "{client}");
    let router = state(router).join("\n");
    assert!(router.contains("\"tbf\" on \"east\" {\"burst\":3276"), "{router}");
    assert!(router.contains("\"rate\":12500000"), "{router}");
    let receive_server = std::fs::File::open(format!("/run/netns/{server}")).unwrap();
    let receiver = netns::run_in(std::os::fd::AsFd::as_fd(&receive_server), || std::net::UdpSocket::bind("10.2.0.2:9"))
        .unwrap()
        .unwrap();
    receiver.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    let client = std::fs::File::open(format!("/run/netns/{}", up.namespaces[0])).unwrap();
    netns::run_in(std::os::fd::AsFd::as_fd(&client), || {
        let socket = std::net::UdpSocket::bind("10.1.0.2:0").unwrap();
        socket.send_to(b"over the router", "10.2.0.2:9").unwrap();
    })
    .unwrap();
    let mut buffer = [0; 32];
    assert_eq!(receiver.recv(&mut buffer).unwrap(), 15);
}

#[test]
fn the_script_builds_the_same() {
    if !root("the script of a testbed") || !has(&["ip", "tc", "sysctl", "sh"], "the script of a testbed") {
        return;
    }
    let scratch = Scratch::new();
    let path = router(&scratch);
    // Names with an owner: if this test is killed, the next run of the lab removes them.
    let owner = Owner::this().unwrap();
    let names = ["client", "router", "server"].map(|name| owner.name(&format!("sh-{name}")));
    let mut text = std::fs::read_to_string(&path).unwrap();
    for (name, owned) in ["client", "router", "server"].iter().zip(&names) {
        text = text.replace(&format!("\"{name}\""), &format!("\"{owned}\""));
    }
    let own = scratch.file("own.toml");
    std::fs::write(&own, text).unwrap();
    let script = testbed(&["--show-as-shell", own.to_str().unwrap()]);
    assert_eq!((script.code, script.stderr.as_str()), (Some(0), ""));
    let file = scratch.file("testbed.sh");
    std::fs::write(&file, &script.stdout).unwrap();
    output("sh", &[file.to_str().unwrap()]);
    let by_script: Vec<Vec<String>> = names.iter().map(|name| state(name)).collect();
    // The last lines say how to remove it.
    let removal: String = script
        .stdout
        .lines()
        .filter_map(|line| line.strip_prefix("# ip "))
        .map(|line| format!("ip {line}\n"))
        .collect();
    output("sh", &["-c", &removal]);
    let up = Up::of_file(&path, 3);
    for (name, by_script) in up.namespaces.iter().zip(by_script) {
        assert_eq!(state(name), by_script, "{name}");
    }
}

#[test]
fn an_error_names_the_file_and_the_line() {
    let scratch = Scratch::new();
    let path = router(&scratch);
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, text.replace("namespace = \"server\"", "namespace = \"sever\"")).unwrap();
    let path = path.to_str().unwrap();
    let (done, missing) = (testbed(&[path]), testbed(&["/nowhere/at/all.toml"]));
    let expected = format!("error: {path}:24: the link leads to `sever`, which is no namespace");
    assert_eq!(done.error_and_hint(), (expected.as_str(), "hint: did you mean `server`?"));
    assert!(missing.error_and_hint().0.contains("/nowhere/at/all.toml cannot be read"));
    let good = scratch.file("good.toml");
    std::fs::write(&good, ROUTER).unwrap();
    let checked = testbed(&["--check", good.to_str().unwrap()]);
    assert!(checked.stdout.ends_with("good.toml: 3 namespaces, 2 links\n"), "{checked:?}");
}

#[test]
fn a_host_without_the_congestion_control_is_reported() {
    if !root("testbeds from files") {
        return;
    }
    let scratch = Scratch::new();
    let path = scratch.file("x.toml");
    std::fs::write(&path, "[[namespace]]\nname = \"a\"\ncongestion_control = \"none-such\"\n").unwrap();
    let done = testbed(&[path.to_str().unwrap()]);
    let (error, hint) = done.error_and_hint();
    assert!(error.contains("the namespace a: the congestion control none-such cannot be set"), "{error}");
    assert!(hint.contains("this host allows namespaces"), "{hint}");
}

#[test]
fn users_without_privileges_make_one_in_a_user_namespace() {
    if !root("a testbed of another user") || !has(&["ip", "unshare"], "a testbed of another user") {
        return;
    }
    let may = Command::new("unshare").args(["-Urn", "true"]).uid(NOBODY).gid(NOBODY).output().unwrap();
    if !may.status.success() {
        return common::skip("a testbed of another user", "users may not make user namespaces here");
    }
    let scratch = Scratch::shared();
    let path = router(&scratch);
    let mut command = Command::new(scratch.parshall());
    command.args(["lab", "testbed", "--for", "600s"]).arg(&path).uid(NOBODY).gid(NOBODY).current_dir("/");
    let up = Up::start(command, 3);
    // The names are in a mount namespace of its own.
    assert!(up.namespaces.iter().all(|name| !std::path::Path::new(netns::DIR).join(name).exists()));
    let pid = up.child.id().to_string();
    let inside = output("nsenter", &["-t", &pid, "-U", "-m", "ip", "-n", &up.namespaces[0], "-o", "address"]);
    assert!(inside.contains("inet 10.1.0.2/24"), "{inside}");
}

/// Possible remains of a killed run: its namespaces, and devices or qdiscs outside of them.
fn leftovers(pid: u32) -> Vec<String> {
    let prefix = format!("parshall-{pid}-");
    let entries = std::fs::read_dir(netns::DIR).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().into_string().ok()).filter(|name| name.starts_with(&prefix)).collect()
}

#[test]
fn a_run_that_is_killed_leaves_nothing_past_the_next() {
    killed_after(&[5, 60, 400]);
}

#[test]
#[ignore = "make test-all"]
fn a_run_killed_at_any_moment_leaves_nothing_past_the_next() {
    // From before the first namespace to long after the last link.
    killed_after(&[1, 5, 12, 25, 60, 150, 400, 900]);
}

fn killed_after(moments_ms: &[u64]) {
    const IMPAIRED: &str = "impair_a = { loss = \"1%\" }\n\n[[link]]\n\
        a = { namespace = \"client\", device = \"eth1\", address = \"10.3.0.2/24\", shaper = { rate = \"10Mbit/s\" } }\n\
        b = { namespace = \"server\", device = \"eth1\", address = \"10.3.0.1/24\" }\nimpair = { delay = \"5ms\" }\n";
    if !root("testbeds that are killed") || !has(&["ip", "tc"], "testbeds that are killed") {
        return;
    }
    let scratch = Scratch::new();
    let path = router(&scratch);
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, format!("{text}{IMPAIRED}")).unwrap();
    let outside = || output("ip", &["-o", "link"]) + &output("tc", &["qdisc"]);
    let before = outside();
    for &ms in moments_ms {
        let mut command = Command::new(PARSHALL);
        let mut run = command
            .args(["lab", "testbed", "--for", "600s"])
            .arg(&path)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        std::thread::sleep(Duration::from_millis(ms));
        run.kill().unwrap();
        run.wait().unwrap();
        let next = testbed(&["--for", "10ms", scratch.file("router.toml").to_str().unwrap()]);
        // The self-check may refuse a busy host; the testbed was made and removed then, too.
        assert!(next.code == Some(0) || next.stderr.contains("the host is too busy"), "{next:?}");
        assert_eq!(leftovers(run.id()), Vec::<String>::new(), "after {ms} ms");
    }
    // Other tests make devices outside of their namespaces for a moment only.
    let settled = (0..100).any(|_| {
        std::thread::sleep(Duration::from_millis(50));
        outside() == before
    });
    assert!(settled, "before\n{before}\nafter\n{}", outside());
}

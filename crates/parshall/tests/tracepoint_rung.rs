//! `attach --rung tracepoint` on a client that stalls and on one that does not. Needs root and tracefs.
mod common;

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use common::skip;

const WHAT: &str = "attach --rung tracepoint end to end";
const PARSHALL: &str = env!("CARGO_BIN_EXE_parshall");

/// A client and its server in one process. The client writes each request in two parts, with or without TCP_NODELAY.
const ECHO: &str = r"
import socket, sys, threading
listener = socket.create_server(('127.0.0.1', 0))
def serve():
    connection, _ = listener.accept()
    while True:
        left = 176
        while left:
            got = len(connection.recv(left))
            if not got:
                return
            left -= got
        connection.sendall(b'r' * 100)
threading.Thread(target=serve, daemon=True).start()
client = socket.create_connection(listener.getsockname())
if sys.argv[1] == 'nodelay':
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
print('ready', flush=True)
while True:
    if sys.argv[1] == 'split':
        client.sendall(b'h' * 40)
        client.sendall(b'b' * 136)
    else:
        client.sendall(b'w' * 176)
    left = 100
    while left:
        left -= len(client.recv(left))
";

struct Echo(Child);

impl Drop for Echo {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn echo(how: &str) -> Option<Echo> {
    let spawned = Command::new("python3").args(["-c", ECHO, how]).stdout(Stdio::piped()).stdin(Stdio::null()).spawn();
    let Ok(mut child) = spawned else {
        skip(WHAT, "there is no python3");
        return None;
    };
    let mut line = String::new();
    BufReader::new(child.stdout.take().expect("piped")).read_line(&mut line).expect("it says when it is ready");
    assert_eq!(line, "ready\n");
    Some(Echo(child))
}

/// The report. None if this host does not allow the rung.
fn attach(pid: u32) -> Option<serde_json::Value> {
    let pid = pid.to_string();
    let output = Command::new(PARSHALL)
        .args(["attach", "--rung", "tracepoint", "--pid", &pid, "--for", "2s", "--format", "json"])
        .output()
        .expect("the binary runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("it is JSON");
    if report["rung"] != "tracepoint" {
        skip(WHAT, &report["blind"].to_string());
        return None;
    }
    Some(report)
}

#[test]
fn a_nagle_stall_is_named_without_btf() {
    let Some(client) = echo("split") else { return };
    let Some(report) = attach(client.0.id()) else { return };
    assert_eq!(report["verdict"]["status"], "cause", "{report:#}");
    assert_eq!(report["verdict"]["cause"], "nagle-delayed-ack", "{report:#}");
    assert_ne!(report["verdict"]["confidence"], "high", "sampled flows do not show every link: {report:#}");
}

#[test]
fn a_healthy_client_is_not_accused() {
    let Some(client) = echo("nodelay") else { return };
    let Some(report) = attach(client.0.id()) else { return };
    assert_ne!(report["verdict"]["status"], "insufficient-evidence", "{report:#}");
    let accused = report["findings"].as_array().is_some_and(|all| all.iter().any(|f| f["cause"] != "user-cpu-bound"));
    assert!(!accused, "{report:#}");
}

/// An empty mount hides the kernel's BTF from the observer. It must choose this rung, and the BPF object must load without BTF.
#[test]
fn without_btf_the_rung_is_chosen_and_loads() {
    let Some(client) = echo("split") else { return };
    let script = r#"mount -t tmpfs none /sys/kernel/btf && exec "$0" attach --pid "$1" --for 1s --format json"#;
    let output = Command::new("unshare")
        .args(["-m", "sh", "-c", script, PARSHALL, &client.0.id().to_string()])
        .output()
        .expect("util-linux is installed");
    if !output.status.success() {
        return skip(WHAT, "/sys/kernel/btf cannot be hidden from one process");
    }
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("it is JSON");
    assert_eq!(report["rung"], "tracepoint", "{report:#}");
    assert!(report["blind"].to_string().contains("btf/vmlinux cannot be read"), "{report:#}");
}

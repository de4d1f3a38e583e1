//! Resolution against real processes and sockets; no privilege needed.
use parshall_evidence::Role;

use super::*;
use crate::testkit::child;

fn user_error(select: &Select) -> UserError {
    resolve(select).expect_err("a user error").downcast::<UserError>().expect("a UserError")
}

#[test]
fn a_port_leads_to_its_processes_and_both_ends() {
    let child = child::start("idle");
    let resolved = resolve(&Select::Ports(vec![child.port], Within::Own)).expect("it listens");
    assert_eq!(resolved.subject.pids, [child.pid()]);
    assert_eq!(resolved.subject.comms.len(), 1);
    assert!(resolved.subject.ports.contains(&child.port));
    assert_eq!(resolved.sockets.len(), 3, "{:?}", resolved.sockets);
    let roles: Vec<Role> = resolved.sockets.iter().filter(|s| !s.listening).map(|s| s.role).collect();
    assert!(roles.contains(&Role::Server) && roles.contains(&Role::Client));
    assert!(resolved.sockets.iter().all(|s| s.pid == child.pid() && s.fd >= 0 && s.cookie.is_some()));
    assert_eq!(resolved.namespaces.len(), 1);
    assert_eq!(resolved.listen_ports, [child.port]);
}

#[test]
fn a_pid_leads_to_its_sockets_and_a_thread_to_its_process() {
    let child = child::start("idle");
    let resolved = resolve(&Select::Pids(vec![child.pid()])).expect("it runs");
    assert_eq!(resolved.sockets.len(), 3);
    let process = &resolved.processes[0];
    assert!(process.exe.is_some() && process.threads.contains(&child.pid()));
    let thread = *process.threads.iter().find(|&&tid| tid != child.pid()).expect("the test harness has a thread");
    let by_thread = resolve(&Select::Pids(vec![thread, child.pid()])).expect("its process runs");
    assert_eq!(by_thread.subject.pids, [child.pid()]);
    assert!(by_thread.notes.iter().any(|note| note.contains("thread")));
}

#[test]
fn notices_exit() {
    let mut child = child::start("idle");
    let mut resolved = resolve(&Select::Pids(vec![child.pid()])).expect("it runs");
    assert_eq!(resolved.refresh(), Changes::default());
    child.end();
    assert_eq!(resolved.refresh().exited, [child.pid()]);
    assert!(resolved.processes.is_empty());
}

#[test]
fn user_errors_come_with_hints() {
    let own = user_error(&Select::Pids(vec![std::process::id()]));
    assert!(own.what.contains("parshall itself"), "{own}");
    let none = user_error(&Select::Pids(vec![u32::MAX >> 1]));
    assert!(none.what.contains("no process") && !none.hint.is_empty());
    let free = std::net::TcpListener::bind("127.0.0.1:0").expect("loopback");
    let port = free.local_addr().expect("bound").port();
    drop(free);
    let closed = user_error(&Select::Ports(vec![port], Within::Own));
    assert_eq!(
        closed.what,
        format!("nothing listens on or is connected to TCP or UDP port {port} in this network namespace")
    );
    let group = user_error(&Select::Cgroup("/no/such/group".into()));
    assert!(group.what.contains("/no/such/group"));
    let netns = user_error(&Select::Netns(Netns::File("/run/netns/no-such-name".into())));
    assert!(netns.what.contains("no-such-name"));
}

#[test]
fn a_namespace_is_found_by_its_inode() {
    let child = child::start("idle");
    let ino = proc_fs::netns_ino(child.pid()).expect("our child");
    let resolved = resolve(&Select::Netns(Netns::Inode(ino))).expect("it has processes");
    assert!(resolved.subject.pids.contains(&child.pid()));
    assert!(!resolved.subject.pids.contains(&std::process::id()));
    assert_eq!(resolved.subject.netns, [ino]);
    assert!(resolved.sockets.iter().any(|sock| sock.local.port() == child.port));
}

#[test]
fn everything_holds_the_child() {
    let child = child::start("idle");
    let resolved = resolve(&Select::All).expect("always");
    assert!(resolved.subject.pids.contains(&child.pid()));
    assert!(!resolved.subject.pids.contains(&std::process::id()));
}

/// A process chooses its name, and it may hold any bytes.
#[test]
fn a_process_whose_name_is_no_text_is_found() {
    let mut child = std::process::Command::new("python3")
        .args(["-c", "import ctypes; ctypes.CDLL(None).prctl(15, b'a\\xff)b', 0, 0, 0); print(flush=True); input()"])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("python3 is installed with the tests' needs");
    let mut line = [0];
    std::io::Read::read_exact(child.stdout.as_mut().expect("piped"), &mut line).expect("it has its name");
    let found = resolve(&Select::Only(vec![child.id()])).map(|resolved| resolved.subject.comms);
    drop(child.stdin.take());
    child.wait().expect("our child");
    assert_eq!(found.expect("it runs"), ["a\u{fffd})b"]);
}

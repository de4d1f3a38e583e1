//! Functions of Python programs in the stacks of a window, with every Python of this host whose version is claimed.
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use parshall_evidence::{Capture, Frame, Rung, Stack};
use parshall_testkit::{root, skip};

use crate::observe::Session;
use crate::request::{Naming, ObserveOptions};
use crate::subject::{Select, resolve};
use crate::testkit::session::{self, Loaded};

/// A service of HTTP/1.1 with one function that sleeps and one that computes, in threads of their own.
const SERVICE: &str = r#"
import http.server, sys, time

def view_orders():
    time.sleep(0.02)

def total_prices():
    total = 0
    for price in range(30000):
        total += price * price
    return total

class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        if self.path == "/orders":
            view_orders()
        else:
            total_prices()
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *arguments):
        pass

class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

def main():
    server = Server(("127.0.0.1", 0), Handler)
    print(server.server_address[1], flush=True)
    server.serve_forever()

main()
"#;

/// The line of the script, from 1, that holds a text.
fn line_of(text: &str) -> usize {
    SERVICE.lines().position(|line| line.contains(text)).expect("it is there") + 1
}

/// A running service; killed when dropped.
struct Service {
    child: Child,
    port: u16,
}

impl Service {
    fn start(python: &Path, directory: &Path) -> Service {
        let script = directory.join("service.py");
        std::fs::write(&script, SERVICE).expect("writable");
        let mut child =
            Command::new(python).arg(&script).stdin(Stdio::null()).stdout(Stdio::piped()).spawn().expect("it runs");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("piped")).read_line(&mut line).expect("it says its port");
        Service { child, port: line.trim().parse().expect("a port") }
    }

    /// Asks for a path, again and again, and counts the replies.
    fn ask(&self, path: &str, done: &AtomicBool, replies: &AtomicU32) {
        let mut connection = TcpStream::connect(("127.0.0.1", self.port)).expect("it listens");
        let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n");
        while !done.load(Ordering::Acquire) {
            connection.write_all(request.as_bytes()).expect("it is served");
            let mut reply = Vec::new();
            while !reply.ends_with(b"\r\n\r\n") {
                let mut part = [0; 512];
                let n = connection.read(&mut part).expect("it is served");
                assert!(n > 0, "the service closed");
                reply.extend(&part[..n]);
            }
            replies.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The programs called `python3.N` in the usual places, and in those of pyenv.
fn pythons(minor: u32) -> Vec<PathBuf> {
    let name = format!("python3.{minor}");
    let mut places: Vec<PathBuf> = ["/usr/bin", "/usr/local/bin"].map(PathBuf::from).to_vec();
    let home = std::env::var_os("HOME").map(PathBuf::from).unwrap_or_default();
    let versions = std::fs::read_dir(home.join(".pyenv/versions")).into_iter().flatten().flatten();
    places.extend(versions.map(|version| version.path().join("bin")));
    places.into_iter().map(|place| place.join(&name)).filter(|python| python.exists()).collect()
}

/// A window in which both functions are asked for, on the best rung.
fn observed(service: &Service, interpreters: bool) -> Capture {
    let options = ObserveOptions {
        window: Duration::from_secs(60),
        rung: None,
        peek: true,
        interpreters,
        progress: false,
        naming: Naming::Shown,
        events: Vec::new(),
        log: None,
        from_its_start: false,
        read_relay: |_| None,
    };
    let resolved = resolve(&Select::Pids(vec![service.child.id()])).expect("it runs");
    let mut session = Session::open(resolved, &options, None).expect("some rung is possible");
    let done = AtomicBool::new(false);
    let replies = [0, 0].map(AtomicU32::new);
    std::thread::scope(|scope| {
        for (path, replies) in ["/orders", "/prices"].iter().zip(&replies) {
            let done = &done;
            scope.spawn(move || service.ask(path, done, replies));
        }
        scope.spawn(|| {
            // Enough for many sleeps, and for some 0.3 s of computing, however busy the host is.
            while replies.iter().any(|replies| replies.load(Ordering::Relaxed) < 120) {
                std::thread::sleep(Duration::from_millis(20));
            }
            done.store(true, Ordering::Release);
        });
        session.window(Duration::from_secs(60), &Loaded(&done), || Ok(())).expect("a capture")
    })
}

fn interpreted(stack: &Stack) -> Vec<&Frame> {
    stack.frames.iter().filter(|frame| frame.interpreted().is_some()).collect()
}

fn stack(capture: &Capture, id: Option<u32>) -> Option<&Stack> {
    capture.stacks.get(id? as usize)
}

/// Sleeps and samples that have the named function as the innermost one of the application, and the names of these.
fn in_function(capture: &Capture, function: &str) -> (Vec<String>, Vec<String>) {
    let own = |id: Option<u32>| -> Option<String> {
        let functions = interpreted(stack(capture, id)?);
        let own = functions.iter().find(|f| f.interpreted() == Some(parshall_evidence::Interpreted::Application))?;
        own.name.starts_with(&format!("{function} (service.py:")).then(|| own.name.clone())
    };
    let slept = capture
        .thread_stalls
        .iter()
        .filter(|stall| ["clock_nanosleep", "pselect6"].contains(&stall.syscall_name.as_str()));
    let sampled = capture.samples.iter().filter(|sample| sample.user);
    (slept.filter_map(|stall| own(stall.stack)).collect(), sampled.filter_map(|sample| own(sample.stack)).collect())
}

fn functions_are_named(python: &Path) {
    let directory = tempfile::tempdir().expect("a directory");
    let service = Service::start(python, directory.path());
    let capture = observed(&service, true);
    if capture.rung != Rung::Btf {
        return skip("functions of Python programs", &format!("not on the btf rung: {:?}", capture.blind));
    }
    let python = python.display();
    let (slept, _) = in_function(&capture, "view_orders");
    let sleep = format!("view_orders (service.py:{})", line_of("time.sleep"));
    assert!(slept.len() >= 3 && slept.iter().all(|name| *name == sleep), "{python}: {slept:?} {:?}", capture.blind);
    let (_, sampled) = in_function(&capture, "total_prices");
    // Most are in its loop; the first instructions of a function have the line of its `def`.
    let lines = line_of("def total_prices")..=line_of("return total");
    let line = |name: &String| parshall_evidence::function_and_line(name).expect("a line").1 as usize;
    assert!(!sampled.is_empty() && sampled.iter().all(|name| lines.contains(&line(name))), "{python}: {sampled:?}");
    // From the innermost function to the first one of the thread, and none twice.
    let whole = capture
        .thread_stalls
        .iter()
        .filter_map(|stall| stack(&capture, stall.stack))
        .find(|stack| stack.frames.iter().any(|frame| frame.name == sleep));
    let functions: Vec<&str> = interpreted(whole.expect("it was seen")).iter().map(|f| f.name.as_str()).collect();
    let caller = format!("do_GET (service.py:{})", line_of("            view_orders()"));
    let ends_with_caller = functions[1].replace("Handler.", "");
    assert_eq!(ends_with_caller, caller, "{python}: {functions:?}");
    assert!(functions.last().expect("some").contains("_bootstrap (threading.py:"), "{python}: {functions:?}");
    let loops = |stack: &&Stack| {
        !interpreted(stack).is_empty() && stack.frames.iter().any(|f| f.name.contains("_PyEval_EvalFrame"))
    };
    assert_eq!(capture.stacks.iter().find(loops), None, "{python}: the interpreter's own loop is still there");
    // Both are in flame graphs, and the sleeps of the requests' paths have them too.
    let flames = parshall_core::flame::Flames::new(&capture);
    let has = |stacks: &parshall_core::flame::Stacks, name: &str| {
        stacks.keys().any(|frames| frames.iter().any(|frame| frame.name.starts_with(name)))
    };
    assert!(has(&flames.off_cpu, &sleep) && has(&flames.on_cpu, "total_prices (service.py:"), "{python}");
    let timeline = capture.timeline.as_ref().expect("the rung btf has one");
    let slept = |id: &Option<u32>| stack(&capture, *id).is_some_and(|s| s.frames.iter().any(|f| f.name == sleep));
    assert!(timeline.off_cpu.values().flatten().any(|off| slept(&off.stack)), "{python}");
}

fn every_python(minor: u32) {
    if !root("functions of Python programs") {
        return;
    }
    let _turn = session::turn();
    let found = pythons(minor);
    if found.is_empty() {
        return skip("functions of Python programs", &format!("there is no Python 3.{minor} here"));
    }
    found.iter().for_each(|python| functions_are_named(python));
}

#[test]
fn functions_of_the_newest_python() {
    let Some(python) = (8..=13).rev().flat_map(pythons).next().filter(|_| root("functions of Python programs")) else {
        return skip("functions of Python programs", "there is no Python here");
    };
    let _turn = session::turn();
    functions_are_named(&python);
}

#[test]
#[ignore = "make test-all"]
fn functions_of_python_3_8() {
    every_python(8);
}

#[test]
#[ignore = "make test-all"]
fn functions_of_python_3_9() {
    every_python(9);
}

#[test]
#[ignore = "make test-all"]
fn functions_of_python_3_10() {
    every_python(10);
}

#[test]
#[ignore = "make test-all"]
fn functions_of_python_3_11() {
    every_python(11);
}

#[test]
#[ignore = "make test-all"]
fn functions_of_python_3_12() {
    every_python(12);
}

#[test]
#[ignore = "make test-all"]
fn functions_of_python_3_13() {
    every_python(13);
}

#[test]
fn nobody_reads_them_who_has_not_asked() {
    let Some(python) = (8..=13).flat_map(pythons).next().filter(|_| root("functions of Python programs")) else {
        return skip("Python without its functions", "there is no Python here");
    };
    let _turn = session::turn();
    let directory = tempfile::tempdir().expect("a directory");
    let capture = observed(&Service::start(&python, directory.path()), false);
    assert!(capture.stacks.iter().all(|stack| interpreted(stack).is_empty()));
}

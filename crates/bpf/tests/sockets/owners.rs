//! The pass over all descriptors on a real kernel: finds every holder once, also while processes come and go. Needs root.

use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::common::{ready, unprivileged};
use parshall_bpf::sockets::owners::{Owners, Table};

/// A child process, killed when dropped.
struct Holder(Child);

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn inode(socket: &impl AsRawFd) -> u32 {
    std::fs::metadata(format!("/proc/self/fd/{}", socket.as_raw_fd())).unwrap().ino() as u32
}

fn holders(table: &Table, inode: u32) -> Vec<(u32, u32, String)> {
    table.holders(0, inode).map(|holder| (holder.pid, holder.fd, holder.command.to_string())).collect()
}

/// Sets a flag at the end of a test, also after a panic, to stop its threads.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Tests run one at a time, because a process that is being started holds our descriptors until its exec.
static ALONE: Mutex<()> = Mutex::new(());

#[test]
fn each_holder_is_found_once() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    if !ready("owners of sockets") {
        return;
    }
    let listener = TcpListener::bind("[::1]:0").unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (server, _) = listener.accept().unwrap();
    let (left, right) = UnixStream::pair().unwrap();
    let copy = OwnedFd::from(server.try_clone().unwrap());
    let child = Holder(Command::new("sleep").arg("60").stdin(Stdio::from(copy)).spawn().unwrap());
    // Threads share our descriptors, which must not be reported again for each.
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    std::thread::sleep(Duration::from_millis(1));
                }
            });
        }
        let _running = Stop(&stop);
        let mut owners = Owners::load().unwrap();
        let mut table = Table::new(1 << 20);
        // Until its exec the child has our name.
        let give_up = Instant::now() + Duration::from_secs(10);
        loop {
            owners.read(&mut table).unwrap();
            if holders(&table, inode(&server)).iter().any(|holder| holder.2 == "sleep") {
                break;
            }
            assert!(Instant::now() < give_up, "{:?}", holders(&table, inode(&server)));
        }
        let us = std::process::id();
        for (inode, fd) in [
            (inode(&listener), listener.as_raw_fd()),
            (inode(&client), client.as_raw_fd()),
            (inode(&left), left.as_raw_fd()),
            (inode(&right), right.as_raw_fd()),
        ] {
            let found = holders(&table, inode);
            assert!(matches!(&found[..], [(pid, at, _)] if *pid == us && *at == fd as u32), "{found:?}");
        }
        let shared = holders(&table, inode(&server));
        assert_eq!(shared.len(), 2, "{shared:?}");
        assert!(shared.contains(&(child.0.id(), 0, "sleep".into())));
        assert!(shared.iter().any(|holder| (holder.0, holder.1) == (us, server.as_raw_fd() as u32)));
        let gone = inode(&client);
        drop(client);
        owners.read(&mut table).unwrap();
        assert_eq!(holders(&table, gone), []);
    });
}

#[test]
fn holders_are_found_while_processes_come_and_go() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    if !ready("owners while processes exit") {
        return;
    }
    let sockets: Vec<TcpListener> = (0..200).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
    let (stop, ended) = (AtomicBool::new(false), AtomicU32::new(0));
    std::thread::scope(|scope| {
        let churn = scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let copy = OwnedFd::from(sockets[0].try_clone().unwrap());
                let mut child = Command::new("true").stdin(Stdio::from(copy)).spawn().unwrap();
                child.wait().unwrap();
                ended.fetch_add(1, Ordering::Relaxed);
            }
        });
        let running = Stop(&stop);
        let mut owners = Owners::load().unwrap();
        let mut table = Table::new(1 << 20);
        let give_up = Instant::now() + Duration::from_secs(60);
        let mut passes = 0;
        while passes < 10 || ended.load(Ordering::Relaxed) < 10 {
            assert!(Instant::now() < give_up, "{passes} passes while {ended:?} processes ended");
            owners.read(&mut table).unwrap();
            passes += 1;
            for socket in &sockets {
                let here = (std::process::id(), socket.as_raw_fd() as u32);
                let found = table.holders(0, inode(socket)).filter(|holder| (holder.pid, holder.fd) == here).count();
                assert_eq!(found, 1, "pass {passes}");
            }
        }
        drop(running);
        churn.join().unwrap();
    });
}

#[test]
fn signals_do_not_end_a_load() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    if !ready("a load while signals arrive") {
        return;
    }
    extern "C" fn ignore(_: libc::c_int) {}
    // SAFETY: the handler does nothing, and nothing else here uses the signal.
    unsafe { libc::signal(libc::SIGURG, ignore as *const () as libc::sighandler_t) };
    // SAFETY: no arguments; it never fails.
    let loader = unsafe { libc::pthread_self() };
    let stop = AtomicBool::new(false);
    let loaded = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                // SAFETY: the thread outlives the scope.
                unsafe { libc::pthread_kill(loader, libc::SIGURG) };
                std::thread::sleep(Duration::from_micros(50));
            }
        });
        let _running = Stop(&stop);
        Owners::load()
    });
    assert!(loaded.is_ok(), "{:?}", loaded.err());
}

#[test]
fn without_privileges_nothing_loads() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    if !ready("owners without permission") {
        return;
    }
    let answer = unprivileged(|| Owners::load().map(|_| ()).map_err(|error| error.kind()));
    assert_eq!(answer, Err(std::io::ErrorKind::PermissionDenied));
}

//! Symbols of other users' processes: hostile files cost at most their symbols.
use std::os::unix::fs::chown;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::channel;
use std::time::Duration;

use parshall_evidence::Stack;

use super::frame::{NAME_MAX, shortened};
use super::maps::{self, Mapping};
use super::{Stacks, perf_map};

/// A process that sleeps; killed when dropped.
struct Sleeper(Child);

impl Sleeper {
    /// Starts it; with a library, that is loaded too.
    fn start(preloaded: Option<&Path>) -> Self {
        let mut command = Command::new("sleep");
        command.arg("600").stdin(Stdio::null());
        if let Some(library) = preloaded {
            command.env("LD_PRELOAD", library);
        }
        let sleeper = Self(command.spawn().expect("sleep runs"));
        let ready = || {
            let maps = maps::all(sleeper.pid());
            maps.iter().any(|m| m.module() == "sleep")
                && maps.iter().any(|m| m.path.is_empty())
                && preloaded.is_none_or(|p| maps.iter().any(|m| Path::new(&m.path) == p))
        };
        while !ready() {
            std::thread::sleep(Duration::from_millis(5));
        }
        sleeper
    }

    fn pid(&self) -> u32 {
        self.0.id()
    }

    /// An address in memory that belongs to no file.
    fn nameless(&self) -> u64 {
        let of_no_file = |mapping: &&Mapping| mapping.path.is_empty();
        maps::all(self.pid()).iter().find(of_no_file).expect("some memory").range.start
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Calls `work` and fails if it takes longer than a regular file ever does.
fn in_time<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, result) = channel();
    std::thread::spawn(move || done.send(work()));
    result.recv_timeout(Duration::from_secs(60)).expect("it comes back")
}

fn names(stacks: Vec<Stack>) -> Vec<String> {
    stacks.into_iter().flat_map(|stack| stack.frames).map(|frame| frame.name).collect()
}

/// The map that a process would write.
fn map_of(pid: u32) -> String {
    format!("/tmp/perf-{pid}.map")
}

/// Removes a file when dropped.
struct Removed(String);

impl Drop for Removed {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

#[test]
fn a_fifo_in_place_of_a_map_is_not_opened() {
    let sleeper = Sleeper::start(None);
    let (pid, address) = (sleeper.pid(), sleeper.nameless());
    let map = Removed(map_of(pid));
    assert!(Command::new("mkfifo").arg(&map.0).status().is_ok_and(|status| status.success()));
    let named = in_time(move || {
        let mut stacks = Stacks::new(false, |_| None);
        stacks.intern(pid, &[], &[address]);
        names(stacks.named())
    });
    assert_eq!(named, [format!("{address:#x}")]);
}

#[test]
fn a_perf_map_is_used_if_the_process_user_owns_it() {
    let sleeper = Sleeper::start(None);
    let (pid, address) = (sleeper.pid(), sleeper.nameless());
    let map = Removed(map_of(pid));
    std::fs::write(&map.0, format!("{address:x} 10 compiled\n")).expect("/tmp is writable");
    let named = || perf_map::names(pid, &[address]).remove(&address);
    assert_eq!(named().as_deref(), Some("compiled"));
    if parshall_testkit::root("the map of another user") {
        chown(&map.0, Some(1234), None).expect("root may");
        assert_eq!(named(), None);
    }
}

/// A copy of a library with names, and addresses all over its code.
fn library(directory: &Path) -> Option<(Sleeper, std::path::PathBuf, Vec<u64>)> {
    let from = maps::all(std::process::id()).into_iter().find(|m| m.module().starts_with("libm.so"))?.path;
    let copy = directory.join("libnamed.so");
    std::fs::copy(from, &copy).expect("a copy");
    let sleeper = Sleeper::start(Some(&copy));
    let of_it = maps::all(sleeper.pid()).into_iter().filter(|m| Path::new(&m.path) == copy);
    let addresses = of_it.flat_map(|m| m.range.step_by(512)).collect();
    Some((sleeper, copy, addresses))
}

/// Interns stacks that hold all of these addresses.
fn take(stacks: &mut Stacks, pid: u32, addresses: &[u64]) {
    for stack in addresses.chunks(40) {
        stacks.intern(pid, &[], stack);
    }
}

/// How many frames of a stack have a symbol.
fn named_of(stacks: Vec<Stack>) -> usize {
    names(stacks).iter().filter(|name| !name.starts_with("0x")).count()
}

#[test]
fn a_file_that_is_truncated_meanwhile_does_not_kill_the_process() {
    let directory = tempfile::tempdir().expect("a directory");
    if !parshall_testkit::root("names of a file that is truncated") {
        return;
    }
    let Some((sleeper, copy, addresses)) = library(directory.path()) else {
        return parshall_testkit::skip("names of a file that is truncated", "this program has no libm of its own");
    };
    let mut stacks = Stacks::new(true, |_| None);
    let (first, rest) = addresses.split_at(addresses.len() / 2);
    // The file is read now.
    take(&mut stacks, sleeper.pid(), first);
    std::fs::File::options().write(true).open(&copy).and_then(|file| file.set_len(0)).expect("ours");
    take(&mut stacks, sleeper.pid(), rest);
    assert!(named_of(stacks.named()) > 10);
}

#[test]
fn a_deleted_file_has_its_names() {
    let directory = tempfile::tempdir().expect("a directory");
    if !parshall_testkit::root("names of a deleted file") {
        return;
    }
    let Some((sleeper, copy, addresses)) = library(directory.path()) else {
        return parshall_testkit::skip("names of a deleted file", "this program has no libm of its own");
    };
    std::fs::remove_file(copy).expect("ours");
    let mut stacks = Stacks::new(false, |_| None);
    take(&mut stacks, sleeper.pid(), &addresses);
    let stacks = stacks.named();
    assert!(stacks.iter().flat_map(|stack| &stack.frames).all(|frame| frame.module == "libnamed.so"));
    assert!(named_of(stacks) > 10);
}

#[test]
fn a_long_name_is_cut_between_characters() {
    assert_eq!(shortened(&"é".repeat(NAME_MAX)).len(), NAME_MAX);
    assert_eq!(shortened("short"), "short");
}

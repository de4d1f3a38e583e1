//! Finds the places of a change, and makes and reverts it between windows.
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use parshall_core::sorting::{IntoOrdered as _, StableSort as _};
use parshall_core::units;
use parshall_evidence::PlaceCounts;
use parshall_host::bounded_file;
use parshall_host::error::UserError;
use parshall_host::proc_fs;

use super::change::{Change, On};
use super::guardian::Guardian;
use super::place::{Group, Moved, NO_LIMIT, Place, Remembered, Socket, Sysctl, Thread, Undo, inheritors};
use crate::cgroup;
use crate::subject::{Process, Resolved, Sock};

/// A place of the trial.
#[derive(Debug)]
struct Known {
    place: Place,
    /// Its value before the change.
    old: String,
    /// Its value with the change.
    new: String,
    state: State,
    /// It was found after the first change.
    late: bool,
    /// It has had the new value.
    changed: bool,
    /// It inherited the new value from a changed place; we did not set it.
    inherited: bool,
    /// The guardian knows its old value.
    known_to_guardian: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// It had the value before the trial.
    InPlace,
    /// It has its old value.
    Old,
    /// It has the new value.
    New,
    /// It could not be changed.
    Refused,
    Gone,
}

/// All places of a change.
#[derive(Debug)]
pub struct Changer<'a> {
    change: &'a Change,
    subject: Resolved,
    known: BTreeMap<String, Known>,
    /// Threads that were there before the change was made last and are none of its places: what they have they have not inherited
    /// from it.
    bystanders: Remembered,
    /// The change has been made at least once.
    begun: bool,
    /// The first error of a place that could not be changed.
    refusal: Option<String>,
    /// The value that the kernel set instead, if it is another one.
    adjusted: Option<String>,
}

impl Known {
    fn undo(&self) -> Undo {
        let new = if self.state == State::InPlace { &self.old } else { &self.new };
        Undo { place: self.place.clone(), old: self.old.clone(), new: new.clone() }
    }

    /// The port of a listening socket. It is changed only for the connections that inherit from it, and not counted itself.
    fn listener(&self) -> Option<u16> {
        match &self.place {
            Place::Connection(socket) if socket.listening => Some(socket.port),
            _ => None,
        }
    }
}

impl<'a> Changer<'a> {
    /// Finds the places as they are now.
    ///
    /// # Errors
    /// There are none, or the first one cannot be read.
    pub fn find(change: &'a Change, subject: &Resolved) -> anyhow::Result<Self> {
        let mut changer = Self {
            change,
            subject: subject.clone(),
            known: BTreeMap::new(),
            bystanders: Remembered::new(),
            begun: false,
            refusal: None,
            adjusted: None,
        };
        let mut moved = Moved::default();
        let places = changer.places()?;
        if places.is_empty() {
            return Err(changer.nothing_to_change().into());
        }
        for place in places {
            match place.read(&mut moved) {
                Ok(old) => changer.add(place, old, false),
                Err(error) if error.kind() == io::ErrorKind::NotFound && place.pid().is_some() => {}
                Err(error) => return Err(unreachable(&place, &error).into()),
            }
        }
        Ok(changer)
    }

    /// The files to lock: those of the processes, and of places that several processes share.
    pub fn locks(&self) -> Vec<PathBuf> {
        let mut files: Vec<PathBuf> = Vec::new();
        for process in &self.subject.processes {
            files.push(format!("/proc/{}/stat", process.pid).into());
        }
        for known in self.known.values() {
            match &known.place {
                Place::Group(group) => files.push(group.directory.join("cgroup.procs")),
                Place::Sysctl(sysctl) => {
                    let inside = self.subject.processes.iter().find(|process| process.netns_ino == sysctl.netns);
                    files.extend(inside.map(|process| format!("/proc/{}/ns/net", process.pid).into()));
                }
                Place::Connection(_) | Place::Thread(_) => {}
            }
        }
        files
    }

    /// Whether every place has the value already.
    pub fn in_place(&self) -> bool {
        let mut counted = self.counted().peekable();
        counted.peek().is_some() && counted.all(|known| known.state == State::InPlace)
    }

    /// The places that the change counts.
    fn counted(&self) -> impl Iterator<Item = &Known> {
        self.known.values().filter(|known| known.listener().is_none())
    }

    /// The current values, with the number of places that have each: `TCP_NODELAY=0 on 3 connections`.
    pub fn describe(&self) -> Vec<String> {
        let mut alike: BTreeMap<(String, &str), u64> = BTreeMap::new();
        for known in self.counted() {
            let what = match &known.place {
                Place::Group(group) => format!("control group {}, which has {}", group.path, members(group)),
                Place::Sysctl(sysctl) => format!("network namespace {}", sysctl.netns),
                _ => String::new(),
            };
            *alike.entry((what, shown(&known.old))).or_default() += 1;
        }
        let label = self.change.sets.split('=').next().unwrap_or_default();
        let word = self.change.on.word();
        let line = |((what, old), count): ((String, &str), u64)| match what.is_empty() {
            true => format!("{label}={old} on {}", units::plural(count, word, &format!("{word}s"))),
            false => format!("{label}={old} on {what}"),
        };
        alike.into_iter().map(line).collect()
    }

    /// Finds new places, and changes them too if the change is in place now.
    pub fn rescan(&mut self, changed: bool, guardian: &mut Guardian) -> anyhow::Result<()> {
        self.subject.refresh();
        let mut moved = Moved::default();
        for place in self.places().unwrap_or_default() {
            if self.known.contains_key(&place.key()) {
                continue;
            }
            // A place that cannot be read is gone by now or hidden from us; the count of connections shows how many are hidden.
            if let Ok(old) = place.read(&mut moved) {
                let inherited = if changed { self.inherited(&place, &old) } else { None };
                let (key, from_another) = (place.key(), inherited.is_some());
                self.add(place, inherited.unwrap_or(old), self.begun);
                if let Some(known) = self.known.get_mut(&key) {
                    known.inherited = from_another;
                }
            }
        }
        if changed { self.make(guardian) } else { Ok(()) }
    }

    /// Makes the change wherever it is not in place yet, after the guardian has the old values.
    pub fn make(&mut self, guardian: &mut Guardian) -> anyhow::Result<()> {
        self.begun = true;
        let mut moved = Moved::default();
        self.read_again(&mut moved);
        let spared = self.ports_with_own_value();
        let wanting =
            |known: &Known| known.state == State::Old && known.listener().is_none_or(|port| !spared.contains(&port));
        let unknown = self
            .known
            .values_mut()
            .filter(|known| wanting(known) || known.state == State::InPlace && !known.known_to_guardian);
        let undo: Vec<Undo> = unknown
            .map(|known| {
                known.known_to_guardian = true;
                known.undo()
            })
            .collect();
        if undo.is_empty() {
            return Ok(());
        }
        if self.known.values().all(|known| known.state != State::New) {
            self.bystanders = self.other_threads();
        }
        // A bystander that has become a place since is one: the last that is sent counts.
        guardian.remember(self.bystanders.values().cloned().chain(undo).collect())?;
        for known in self.known.values_mut().filter(|known| wanting(known)) {
            match known.place.write(&known.new, &mut moved).and_then(|()| known.place.read(&mut moved)) {
                Ok(now) => {
                    (known.state, known.changed) = (State::New, true);
                    if !known.place.is(&now, &known.new) && self.change.repeat.is_none() {
                        self.adjusted.get_or_insert(now);
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => known.state = State::Gone,
                Err(error) => {
                    known.state = State::Refused;
                    self.refusal.get_or_insert(error.to_string());
                }
            }
        }
        Ok(())
    }

    /// The threads of the places' processes and of their descendants that are no places, each with the value that it has.
    fn other_threads(&self) -> Remembered {
        let On::Threads(setting) = self.change.on else { return Remembered::new() };
        let pids: BTreeSet<u32> = self.known.values().filter_map(|known| known.place.pid()).into_set();
        let pids: Vec<u32> = pids.into_iter().collect();
        let all = pids.iter().copied().chain(proc_fs::descendants(&pids));
        let threads = all.flat_map(|pid| proc_fs::threads(pid).into_iter().map(move |tid| (pid, tid)));
        let other = threads.filter_map(|(pid, tid)| {
            let thread = Thread { pid, tid, start_ticks: proc_fs::stat(tid)?.start_ticks, setting };
            let value = thread.read().ok()?;
            let place = Place::Thread(thread);
            let unknown = !self.known.contains_key(&place.key());
            unknown.then(|| (place.key(), Undo { place, old: value.clone(), new: value }))
        });
        other.into_map()
    }

    /// Reads the unchanged places again: the application may have set them since they were found.
    fn read_again(&mut self, moved: &mut Moved) {
        for known in self.known.values_mut().filter(|known| known.state == State::Old && !known.inherited) {
            match known.place.read(moved) {
                Ok(now) if known.place.is(&now, &known.new) => (known.state, known.old) = (State::InPlace, now),
                Ok(now) => known.old = now,
                Err(error) if error.kind() == io::ErrorKind::NotFound => known.state = State::Gone,
                Err(_) => {}
            }
        }
    }

    /// Ports on which the application sets the value itself. Their listeners are not changed: an accepted connection with the new
    /// value could have it from the application or from the listener, and its old value would be unknown.
    fn ports_with_own_value(&self) -> HashSet<u16> {
        let own = self.known.values().filter(|known| known.state == State::InPlace && known.listener().is_none());
        own.filter_map(|known| if let Place::Connection(socket) = &known.place { Some(socket.port) } else { None })
            .collect()
    }

    /// How often the value must be set again.
    pub fn repeats(&self) -> Option<Duration> {
        self.change.repeat
    }

    /// Sets the value again where it was set, because the kernel may have reset it.
    pub fn repeat(&mut self) {
        let mut moved = Moved::default();
        for known in self.known.values_mut().filter(|known| known.state == State::New) {
            if known.place.write(&known.new, &mut moved).is_err_and(|error| error.kind() == io::ErrorKind::NotFound) {
                known.state = State::Gone;
            }
        }
    }

    /// Reverts the change until the next window.
    pub fn take_back(&mut self) {
        let mut moved = Moved::default();
        for known in self.known.values_mut().filter(|known| known.state == State::New) {
            known.inherited = false;
            known.state = match known.place.write(&known.old, &mut moved) {
                Ok(()) => State::Old,
                Err(error) if error.kind() == io::ErrorKind::NotFound => State::Gone,
                Err(error) => {
                    self.refusal.get_or_insert(error.to_string());
                    State::Refused
                }
            };
        }
        let mut remembered = self.bystanders.clone();
        remembered.extend(self.known.values().map(|known| (known.place.key(), known.undo())));
        for undo in inheritors(&remembered) {
            undo.place.write(&undo.old, &mut moved).ok();
        }
    }

    /// The error when no place at all could be changed.
    pub fn refused(&self) -> Option<UserError> {
        let any = |state| self.counted().any(|known| known.state == state);
        let why = self.refusal.as_ref().filter(|_| !any(State::New))?;
        let what = format!("the kernel refuses {}: {why}", self.change.sets);
        Some(UserError::new(what, "run it as root, and check the value against `man 7 tcp` and `man 7 cgroups`"))
    }

    /// The numbers of places.
    pub fn counts(&self) -> PlaceCounts {
        let count = |of: &dyn Fn(&Known) -> bool| self.counted().filter(|known| of(known)).count() as u64;
        PlaceCounts {
            seen: count(&|_| true),
            changed: count(&|known| known.changed),
            in_place: count(&|known| known.state == State::InPlace),
            late: count(&|known| known.late && known.changed),
            refused: count(&|known| known.state == State::Refused),
        }
    }

    /// Limits of the result.
    pub fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        if let Some(now) = &self.adjusted {
            notes.push(format!("the kernel made {now} of the value that was asked for"));
        }
        if let Some(why) = &self.refusal {
            notes.push(format!("some places could not be changed: {why}"));
        }
        notes
    }

    fn add(&mut self, place: Place, old: String, late: bool) {
        let Some(new) = self.value_for(&place) else { return };
        let state = if place.is(&old, &new) { State::InPlace } else { State::Old };
        self.known.insert(
            place.key(),
            Known { place, old, new, state, late, changed: false, inherited: false, known_to_guardian: false },
        );
    }

    /// The old value of a place. Threads that are created and connections that are accepted while the change is in place inherit the
    /// new value, so their old value is that of their creator or listener.
    fn inherited(&self, place: &Place, read: &str) -> Option<String> {
        let ours = || self.known.values().filter(|known| known.state == State::New && known.new == read);
        let from = match place {
            Place::Connection(socket) => ours().find(|known| known.listener() == Some(socket.port)),
            Place::Thread(_) if self.bystanders.contains_key(&place.key()) => None,
            Place::Thread(thread) => {
                ancestry(thread.pid).find_map(|pid| ours().find(|known| known.place.pid() == Some(pid)))
            }
            Place::Group(_) | Place::Sysctl(_) => None,
        };
        from.map(|known| known.old.clone())
    }

    /// The new value of a place.
    fn value_for(&self, place: &Place) -> Option<String> {
        let Place::Group(group) = place else { return Some(self.change.value.clone()) };
        let Ok(cpus) = self.change.value.parse::<f64>() else { return Some(NO_LIMIT.to_owned()) };
        let period_us = cgroup::snapshot_directory(&group.directory).first()?.period_us;
        Some(format!("{:.0}", cpus * period_us as f64))
    }

    fn places(&mut self) -> Result<Vec<Place>, UserError> {
        Ok(match &self.change.on {
            On::Connections(setting) => {
                let sockets = self.subject.sockets_now();
                let inherited = setting.inherited();
                let started = |pid: u32| Some(self.subject.processes.iter().find(|p| p.pid == pid)?.start_ticks);
                let place = |sock: Sock| {
                    let start_ticks = started(sock.pid)?;
                    let Sock { pid, fd, inode, listening, .. } = sock;
                    let (port, setting) = (sock.local.port(), *setting);
                    Some(Place::Connection(Socket { pid, start_ticks, fd, inode, port, listening, setting }))
                };
                sockets.into_iter().filter(|sock| inherited || !sock.listening).filter_map(place).collect()
            }
            On::Threads(setting) => {
                let place = |(pid, tid): (u32, u32)| {
                    let start_ticks = proc_fs::stat(tid)?.start_ticks;
                    Some(Place::Thread(Thread { pid, tid, start_ticks, setting: *setting }))
                };
                let threads = self
                    .serving()
                    .into_iter()
                    .flat_map(|p| proc_fs::threads(p.pid).into_iter().map(|tid| (p.pid, tid)));
                threads.filter_map(place).collect()
            }
            On::Group => {
                let mut groups: Vec<Group> = self.serving().into_iter().filter_map(limiting_group).collect();
                groups.stable_sort_by(|a, b| a.directory.cmp(&b.directory));
                groups.dedup();
                groups.into_iter().map(Place::Group).collect()
            }
            On::Namespace(name) => {
                let mut inodes: Vec<u64> = self.serving().iter().map(|p| p.netns_ino).filter(|&ino| ino != 0).collect();
                inodes.sort_unstable();
                inodes.dedup();
                inodes.into_iter().map(|netns| Place::Sysctl(Sysctl { netns, name: name.clone() })).collect()
            }
        })
    }

    /// The processes of the service: those that serve its ports, and its clients only if no process here serves it.
    fn serving(&self) -> Vec<&Process> {
        let all = || self.subject.processes.iter();
        let ports = self.subject.select.ports();
        if ports.is_empty() {
            return all().collect();
        }
        let sockets = self.subject.sockets.iter().filter(|sock| ports.contains(&sock.local.port()) && sock.inode != 0);
        let served: HashSet<u64> = sockets.map(|sock| sock.inode).collect();
        let holds = |process: &&Process| proc_fs::sockets(process.pid).iter().any(|(_, inode)| served.contains(inode));
        let serving: Vec<&Process> = all().filter(holds).collect();
        if serving.is_empty() { all().collect() } else { serving }
    }

    /// Whether we may not read some of the subject's descriptors.
    fn hidden(&self) -> bool {
        let unowned = self.subject.sockets.iter().any(|sock| sock.inode != 0 && sock.pid == 0);
        unowned || self.subject.processes.iter().any(|process| !proc_fs::shows_descriptors(process.pid))
    }

    fn nothing_to_change(&self) -> UserError {
        match &self.change.on {
            On::Connections(_) if self.hidden() => UserError::new(
                "the sockets of its processes cannot be reached",
                "run it as root: a descriptor of another process takes the right to trace it (CAP_SYS_PTRACE)",
            ),
            On::Connections(_) => UserError::new(
                "the subject has no open TCP connection that could be changed",
                "begin while clients are connected; UDP and UNIX sockets have no such option",
            ),
            On::Group => UserError::new(
                "its processes are in the root control group, which has no quota",
                "`cat /proc/PID/cgroup` shows the groups; put the service into one of its own to limit it",
            ),
            On::Threads(_) | On::Namespace(_) => {
                UserError::new("no process of the subject can be reached", "run it as root")
            }
        }
    }
}

/// A process, its parent, and so on.
fn ancestry(pid: u32) -> impl Iterator<Item = u32> {
    let parent = |pid: &u32| proc_fs::stat(*pid).map(|stat| stat.parent).filter(|parent| *parent != 0);
    // Numbers that are used again could make a circle.
    std::iter::successors(Some(pid), parent).take(64)
}

/// A value for people: a pacing rate of all ones means no limit.
fn shown(value: &str) -> &str {
    if value.parse() == Ok(u64::MAX) { "none" } else { value }
}

/// The group with the tightest quota, of a process's group and its ancestors; the process's group if none has a quota. None in the
/// root.
fn limiting_group(process: &Process) -> Option<Group> {
    let levels = cgroup::snapshot_directory(process.cpu_cgroup.as_deref()?);
    let cpus = |level: &cgroup::Level| level.quota_us.map(|quota| quota as f64 / level.period_us.max(1) as f64);
    let limited = levels.iter().filter(|level| cpus(level).is_some());
    let tightest = limited.min_by(|a, b| cpus(a).unwrap_or(0.0).total_cmp(&cpus(b).unwrap_or(0.0)));
    // The root is the last level, and has no quota file.
    let own = levels.first().filter(|_| levels.len() > 1);
    let level = tightest.or(own)?;
    Some(Group { directory: level.directory.clone(), path: level.path.clone() })
}

/// Groups whose processes are counted.
const GROUPS_MAX: usize = 4_096;

/// The number of processes in a group and the groups below it.
fn members(group: &Group) -> String {
    let mut directories = vec![group.directory.clone()];
    let (mut count, mut left) = (0, GROUPS_MAX);
    while let Some(directory) = directories.pop().filter(|_| left > 0) {
        left -= 1;
        count += bounded_file::text(directory.join("cgroup.procs")).unwrap_or_default().lines().count();
        let below = std::fs::read_dir(&directory).into_iter().flatten().flatten();
        directories.extend(below.filter(|e| e.file_type().is_ok_and(|kind| kind.is_dir())).map(|e| e.path()));
    }
    let more = if left == 0 { "more than " } else { "" };
    more.to_owned() + &units::plural(count as u64, "process", "processes")
}

/// Why a place cannot be read.
fn unreachable(place: &Place, error: &io::Error) -> UserError {
    let denied = error.kind() == io::ErrorKind::PermissionDenied || error.raw_os_error() == Some(libc::EPERM);
    match place {
        Place::Connection(socket) if denied => UserError::new(
            format!("the sockets of process {} cannot be reached: {error}", socket.pid),
            "run it as root: a descriptor of another process takes the right to trace it (CAP_SYS_PTRACE)",
        ),
        Place::Sysctl(sysctl) if error.kind() == io::ErrorKind::NotFound => UserError::new(
            format!("network namespace {} has no sysctl {}", sysctl.netns, sysctl.name),
            "`sysctl -a -r '^net'` lists those of the host; not every namespace has all of them",
        ),
        Place::Sysctl(sysctl) => UserError::new(
            format!("sysctl {} cannot be read: {error}", sysctl.name),
            "run it as root; some sysctls can be written only, and so not reverted",
        ),
        place => UserError::new(format!("{} cannot be read: {error}", place.key()), "run it as root"),
    }
}

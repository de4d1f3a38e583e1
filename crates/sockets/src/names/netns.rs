//! Network namespace inode → name.
//!
//! A name under /run/netns is the name. A namespace without one is called after a process that lives there
//! (`4120/nginx`), which says more than the file that a container's runtime has mounted somewhere; failing that, by the
//! path of that file. The kernel gives the inode of a namespace that has ended to the next one, so what was learnt in an
//! earlier dump is looked at again, once per dump: does the place still lead there?
use std::collections::HashMap;
use std::fs;

use super::Mixed;
use crate::namespaces::{Discovery, Namespace, Place};

/// Names remembered at most; namespaces beyond that have none.
const MOST: usize = 65_536;
/// Dumps for which a namespace without a name is not searched for again.
const NAMELESS: u64 = 8;

#[derive(Debug)]
struct Known {
    name: String,
    /// What the name rests on; None: it was not to be found.
    place: Option<Place>,
    /// The dump that it was last looked at in.
    looked: u64,
}

/// Names of network namespaces.
#[derive(Debug, Default)]
pub struct NetnsNames {
    discovery: Discovery,
    known: HashMap<u32, Known, Mixed>,
    dump: u64,
    /// The dump in which the host was last searched.
    searched: Option<u64>,
    searches: u64,
}

impl NetnsNames {
    /// A dump begins.
    pub fn begin(&mut self) {
        self.dump += 1;
    }

    /// Finds the name of a namespace, unless that was done in this dump.
    pub fn learn(&mut self, inode: u32) {
        if let Some(known) = self.known.get_mut(&inode) {
            if known.looked == self.dump {
                return;
            }
            match &known.place {
                Some(place) if place.leads_to(inode) => {
                    known.looked = self.dump;
                    return;
                }
                None if self.dump - known.looked < NAMELESS => return,
                _ => {}
            }
        }
        if self.searched != Some(self.dump) {
            self.search();
        }
        if let Some(known) = self.known.get_mut(&inode) {
            if known.looked == self.dump {
                return;
            }
            self.known.remove(&inode);
        }
        // It has vanished, or nothing but sockets keeps it.
        if self.known.len() < MOST {
            self.known.insert(inode, Known { name: String::new(), place: None, looked: self.dump });
        }
    }

    /// The name; empty when it has none, or was not learnt.
    pub fn name(&self, inode: u32) -> &str {
        self.known.get(&inode).map_or("", |known| &known.name)
    }

    fn search(&mut self) {
        self.searched = Some(self.dump);
        self.searches += 1;
        let found = self.discovery.scan(&[]);
        self.known.clear();
        for namespace in found.namespaces.iter().take(MOST) {
            let (name, place) = name(namespace);
            self.known.insert(namespace.inode, Known { name, place, looked: self.dump });
        }
    }
}

fn name(namespace: &Namespace) -> (String, Option<Place>) {
    let places = &namespace.places;
    let named = places.iter().find_map(|place| match place {
        Place::Mount(path) => {
            let name = path.strip_prefix("/run/netns").or_else(|_| path.strip_prefix("/var/run/netns")).ok()?;
            Some((name.to_string_lossy().into_owned(), Some(place.clone())))
        }
        _ => None,
    });
    let inhabited = || {
        places.iter().find_map(|place| {
            let pid = match place {
                Place::Process(pid) | Place::Thread { pid, .. } | Place::Socket { pid, .. } => *pid,
                Place::Mount(_) | Place::MountOf { .. } => return None,
            };
            // The namespace that the host began with, where init and the kernel's own threads live, needs no name.
            let name = if pid <= 2 { String::new() } else { format!("{pid}/{}", command(pid)?) };
            Some((name, Some(place.clone())))
        })
    };
    let mounted = || {
        places.iter().find_map(|place| match place {
            Place::Mount(path) => Some((path.to_string_lossy().into_owned(), Some(place.clone()))),
            Place::MountOf { pid, path } => Some((format!("/proc/{pid}/root{}", path.display()), Some(place.clone()))),
            _ => None,
        })
    };
    named.or_else(inhabited).or_else(mounted).unwrap_or_default()
}

fn command(pid: u32) -> Option<String> {
    let bytes = fs::read(format!("/proc/{pid}/comm")).ok()?;
    Some(String::from_utf8_lossy(bytes.strip_suffix(b"\n").unwrap_or(&bytes)).into_owned())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use parshall_sys::netns::NetNs;

    use super::*;
    use parshall_testkit::root;

    fn inode(netns: &NetNs) -> u32 {
        fs::metadata(std::path::Path::new(parshall_sys::netns::DIR).join(netns.name())).unwrap().ino() as u32
    }

    #[test]
    fn names_follow_namespaces_that_come_and_go() {
        if !root("names of namespaces") {
            return;
        }
        let mut names = NetnsNames::default();
        let own = fs::metadata("/proc/self/ns/net").unwrap().ino() as u32;
        let first = NetNs::create("first").unwrap();
        names.begin();
        names.learn(inode(&first));
        names.learn(own);
        assert_eq!(names.name(inode(&first)), first.name());
        let of_kernel_threads = fs::metadata("/proc/2/ns/net").map_or(0, |metadata| metadata.ino() as u32);
        assert_eq!(names.name(own).is_empty(), own == of_kernel_threads, "only the first one needs no name");
        assert_eq!(names.searches, 1);
        names.begin();
        names.learn(inode(&first));
        names.learn(own);
        assert_eq!(names.searches, 1, "what is known is not searched for");
        // The next one may get the inode of the first, and has a name of its own all the same.
        let gone = inode(&first);
        drop(first);
        let second = NetNs::create("second").unwrap();
        names.begin();
        names.learn(inode(&second));
        assert_eq!(names.name(inode(&second)), second.name());
        drop(second);
        names.begin();
        names.learn(gone);
        assert!(!names.name(gone).contains("first") && !names.name(gone).contains("second"));
    }

    #[test]
    fn a_thousand_that_vanish_leave_nothing() {
        let mut names = NetnsNames::default();
        for dump in 0..20 {
            names.begin();
            // Inodes that no namespace has: below those that the kernel gives.
            (0..50).for_each(|at| names.learn(1 + dump * 50 + at));
            assert_eq!(names.searches, u64::from(dump) + 1, "one search for all of a dump");
        }
        assert!(names.known.len() < 50 + 200, "{} are remembered", names.known.len());
        assert_eq!(names.name(1000), "");
        for _ in 0..NAMELESS - 1 {
            names.begin();
            names.learn(1000);
            assert_eq!(names.searches, 20, "what has no name is not searched for in every dump");
        }
        names.begin();
        names.learn(1000);
        assert_eq!(names.searches, 21);
    }
}

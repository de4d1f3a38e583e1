//! The name of a network namespace, by its inode.
//!
//! It is the name in /run/netns. A namespace without one has the name of a process in it (`4120/nginx`), and one without
//! processes the path of its bind mount. The kernel reuses the inode of a namespace that has ended, so each dump verifies once
//! that the process or mount of a cached name still leads to the namespace.
use std::collections::HashMap;

use parshall_host::proc_fs;

use super::mix::Mixed;
use crate::namespaces::{Discovery, Namespace, Place};

/// The maximum number of cached names. Further namespaces have none.
const CACHED_MAX: usize = 65_536;
/// A namespace without a name is searched for again after this many dumps.
const NAMELESS: u64 = 8;

#[derive(Debug)]
struct Known {
    name: String,
    /// The process or mount that the name is from; `None` if the namespace was not found.
    place: Option<Place>,
    /// The last dump that verified it.
    verified: u64,
}

/// Names of network namespaces.
#[derive(Debug, Default)]
pub struct NetnsNames {
    discovery: Discovery,
    known: HashMap<u32, Known, Mixed>,
    dump: u64,
    /// The last dump that scanned the host.
    scanned: Option<u64>,
    scans: u64,
}

impl NetnsNames {
    /// Begins a dump.
    pub fn begin(&mut self) {
        self.dump += 1;
    }

    /// Looks up the name of a namespace, unless it was looked up in this dump.
    pub fn learn(&mut self, inode: u32) {
        if let Some(known) = self.known.get_mut(&inode) {
            if known.verified == self.dump {
                return;
            }
            match &known.place {
                Some(place) if place.leads_to(inode) => {
                    known.verified = self.dump;
                    return;
                }
                None if self.dump - known.verified < NAMELESS => return,
                _ => {}
            }
        }
        if self.scanned != Some(self.dump) {
            self.scan();
        }
        if let Some(known) = self.known.get_mut(&inode) {
            if known.verified == self.dump {
                return;
            }
            self.known.remove(&inode);
        }
        // It has ended, or only sockets keep it alive.
        if self.known.len() < CACHED_MAX {
            self.known.insert(inode, Known { name: String::new(), place: None, verified: self.dump });
        }
    }

    /// The name; empty if it has none, or was not looked up.
    pub fn name(&self, inode: u32) -> &str {
        self.known.get(&inode).map_or("", |known| &known.name)
    }

    fn scan(&mut self) {
        self.scanned = Some(self.dump);
        self.scans += 1;
        let found = self.discovery.scan(&[]);
        self.known.clear();
        for namespace in found.namespaces.iter().take(CACHED_MAX) {
            let (name, place) = name(namespace);
            self.known.insert(namespace.inode, Known { name, place, verified: self.dump });
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
            // The initial namespace, that of init and of kernel threads, has no name.
            let name = if pid <= 2 { String::new() } else { format!("{pid}/{}", proc_fs::comm(pid).ok()?) };
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

#[cfg(test)]
mod tests {
    use std::fs;
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
        assert_eq!(names.name(own).is_empty(), own == of_kernel_threads, "only the initial namespace has no name");
        assert_eq!(names.scans, 1);
        names.begin();
        names.learn(inode(&first));
        names.learn(own);
        assert_eq!(names.scans, 1, "cached names need no scan");
        // The next one may have the inode of the first, and must have its own name.
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
    fn a_thousand_namespaces_that_end_are_removed() {
        let mut names = NetnsNames::default();
        for dump in 0..20 {
            names.begin();
            // Inodes below those that the kernel assigns, so no namespace has them.
            (0..50).for_each(|at| names.learn(1 + dump * 50 + at));
            assert_eq!(names.scans, u64::from(dump) + 1, "one scan per dump");
        }
        assert!(names.known.len() < 50 + 200, "{} are cached", names.known.len());
        assert_eq!(names.name(1000), "");
        for _ in 0..NAMELESS - 1 {
            names.begin();
            names.learn(1000);
            assert_eq!(names.scans, 20, "a namespace without a name does not cause a scan in every dump");
        }
        names.begin();
        names.learn(1000);
        assert_eq!(names.scans, 21);
    }
}

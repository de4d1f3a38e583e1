//! Finds an event by the name that a user gave it: a tracepoint as `category:name`, or one of the kernel's own counters.
use std::fs;
use std::path::Path;

use crate::diagnose::classic::format::{Format, Named};
use crate::diagnose::classic::tracefs::Tracefs;

/// Counters of the kernel that report each event (`PERF_COUNT_SW_*` of uapi/linux/perf_event.h), with the names that perf has for them.
const SOFTWARE: [(&str, u64); 11] = [
    ("page-faults", 2),
    ("faults", 2),
    ("context-switches", 3),
    ("cs", 3),
    ("cpu-migrations", 4),
    ("migrations", 4),
    ("minor-faults", 5),
    ("major-faults", 6),
    ("alignment-faults", 7),
    ("emulation-faults", 8),
    ("cgroup-switches", 11),
];

/// An event that this kernel has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    /// Its name, as it was given.
    pub name: String,
    /// The kind of event, with what the kernel needs to open it.
    pub(super) kind: Kind,
}

/// The kinds of events.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Kind {
    /// A tracepoint, by its id, and the field of its record that says most.
    Tracepoint(u64, Option<Named>),
    /// A counter.
    Software(u64),
}

impl Source {
    /// The name of a value of this event; a number where the kernel has no name for it. Empty for an event without values.
    pub fn value_name(&self, value: u64) -> String {
        let Kind::Tracepoint(_, Some(named)) = &self.kind else { return String::new() };
        let unused = 64 - 8 * named.field.size.min(8);
        // Widens the sign of a number of fewer bytes.
        let value = if named.field.signed { value.cast_signed() << unused >> unused } else { value.cast_signed() };
        let name = named.names.iter().find(|(known, _)| *known == value);
        name.map_or_else(|| value.to_string(), |(_, name)| name.clone())
    }
}

/// Why an event was not found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NotFound {
    /// Tracefs, which lists the events, is not mounted, and this process may not mount it.
    NoTracefs,
    /// The kernel has no event of this name. All names that it has follow.
    Unknown(Vec<String>),
}

/// The event of this name.
pub fn find(name: &str) -> Result<Source, NotFound> {
    if let Some((_, counter)) = SOFTWARE.iter().find(|(known, _)| *known == name) {
        return Ok(Source { name: name.to_owned(), kind: Kind::Software(*counter) });
    }
    let tracefs = Tracefs::open().ok_or(NotFound::NoTracefs)?;
    find_below(&tracefs.path(), name).ok_or_else(|| NotFound::Unknown(all_names(&tracefs.path())))
}

/// The tracepoint `category:name` below the root of a tracefs.
fn find_below(tracefs: &Path, name: &str) -> Option<Source> {
    let (category, event) = name.split_once(':').filter(|(category, event)| is_word(category) && is_word(event))?;
    let text = fs::read_to_string(tracefs.join("events").join(category).join(event).join("format")).ok()?;
    let format = Format::parse(&text)?;
    Some(Source { name: name.to_owned(), kind: Kind::Tracepoint(format.id, format.telling()) })
}

/// Whether it is the name of a directory of tracefs, and leads nowhere else.
fn is_word(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-'))
}

fn all_names(tracefs: &Path) -> Vec<String> {
    let mut names: Vec<String> = SOFTWARE.iter().map(|(name, _)| (*name).to_owned()).collect();
    for category in below(&tracefs.join("events")) {
        let events = below(&tracefs.join("events").join(&category));
        names.extend(events.into_iter().map(|event| format!("{category}:{event}")));
    }
    names
}

/// The names of the directories in a directory.
fn below(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let directories = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    directories.filter_map(|entry| entry.file_name().into_string().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diagnose::classic::format::Field;

    fn tracepoint(size: u32, signed: bool) -> Source {
        let names = vec![(2, "NO_SOCKET".to_owned()), (-1, "NONE".to_owned())];
        let named = Named { field: Field { offset: 8, size, signed }, names };
        Source { name: "skb:kfree_skb".to_owned(), kind: Kind::Tracepoint(1, Some(named)) }
    }

    #[test]
    fn values_have_the_kernels_names_with_their_sign() {
        assert_eq!(tracepoint(4, false).value_name(2), "NO_SOCKET");
        assert_eq!(tracepoint(4, true).value_name(0xffff_ffff), "NONE");
        assert_eq!(tracepoint(1, true).value_name(0xff), "NONE");
        assert_eq!(tracepoint(4, false).value_name(0xffff_ffff), "4294967295");
        assert_eq!(tracepoint(8, true).value_name(u64::MAX), "NONE");
        assert_eq!(find("page-faults").map(|source| source.value_name(0)), Ok(String::new()));
    }

    #[test]
    fn a_name_leads_to_no_other_file() {
        for name in ["../..:etc", "a/b:c", "skb:", ":kfree_skb", "skb", "skb:..", "skb:kfree_skb/", "a:b:c", ""] {
            assert_eq!(find_below(Path::new("/sys/kernel/tracing"), name), None, "{name}");
        }
    }

    #[test]
    fn the_kernels_events_are_found_and_listed() {
        if !parshall_testkit::root("events of the kernel by name") {
            return;
        }
        let found = find("sched:sched_switch").expect("every kernel has it");
        assert!(matches!(found.kind, Kind::Tracepoint(id, _) if id > 0));
        let Err(NotFound::Unknown(names)) = find("sched:no_such_event") else { panic!("it was found") };
        assert!(names.iter().any(|name| name == "sched:sched_switch") && names.iter().any(|name| name == "faults"));
    }
}

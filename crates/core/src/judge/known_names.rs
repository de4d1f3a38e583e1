//! Names of processes, threads and objects by which causes decide. They belong to programs that many hosts run, and say nothing of whose
//! host it is: `--mask` keeps them, so that a masked capture gets the same verdict. A rule that decides by another name adds it here.

/// Threads of runtimes that collect garbage while all others stand still.
pub const COLLECTORS: [&str; 10] = [
    "VM Thread",
    "GC Thread",
    "GC task thread",
    "G1 ",
    "ZGC",
    "ZWorker",
    "ZDriver",
    "Shenandoah",
    ".NET Server GC",
    ".NET BGC",
];
/// Functions of garbage collectors in the threads that compute: of GHC, V8, CPython, Ruby, OCaml, Erlang, PHP, .NET and SBCL. The samples of a
/// stack may have no more than one frame of a runtime, so each of the functions that work is here.
pub const COLLECTING: [&str; 23] = [
    "GarbageCollect",
    "scavenge_",
    "evacuate",
    "v8::internal::ConcurrentMarking::",
    "v8::internal::MarkCompactCollector::",
    "v8::internal::IncrementalMarking::",
    "v8::internal::Scavenger",
    "v8::internal::Sweeper::",
    "v8::internal::Heap::CollectGarbage",
    "gc_collect_main",
    "gc_marks",
    "gc_sweep",
    "mark_slice",
    "caml_major_collection",
    "caml_empty_minor_heap",
    "erts_garbage_collect",
    "zend_gc_collect_cycles",
    "WKS::gc_heap::",
    "SVR::gc_heap::",
    "heap_scavenge",
    "descriptors_scavenge",
    "copy_potential_large_object",
    "sweep_immobile_space",
];
/// Programs that run a language of their own, by their whole name.
pub const RUNTIMES: [&str; 4] = ["java", "node", "nodejs", "dotnet"];
/// Threads of the kernel that move packets.
pub const PACKETS: [&str; 2] = ["ksoftirqd", "napi/"];
/// Programs of interpreters that let one thread run at a time.
pub const INTERPRETERS: [&str; 5] = ["python", "gunicorn", "uwsgi", "ruby", "puma"];
/// Databases with commands of their own that show who holds a lock.
pub const DATABASES: [&str; 3] = ["postgres", "mariadb", "mysqld"];

/// The begin of a name that decides something: all of `java` and `GC Thread#1`, `postgres` of `postgres-shop`. None for names that
/// decide nothing.
pub fn telling(name: &str) -> Option<&str> {
    // The rest of the name of a thread of a runtime or of the kernel is its number and kind.
    if RUNTIMES.contains(&name) || COLLECTORS.iter().chain(&PACKETS).any(|known| name.starts_with(known)) {
        return Some(name);
    }
    let known = INTERPRETERS.iter().chain(&DATABASES).find(|known| name.starts_with(**known))?;
    // A version belongs to it: `python3.11`.
    let rest = name[known.len()..].trim_start_matches(|c: char| c.is_ascii_digit() || c == '.');
    Some(&name[..name.len() - rest.len()])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_decide_are_kept_and_what_follows_them_is_not() {
        for whole in ["java", "node", "python3.11", "gunicorn", "GC Thread#1", "ksoftirqd/0"] {
            assert_eq!(telling(whole), Some(whole));
        }
        assert_eq!(telling("postgres-shop"), Some("postgres"));
        assert_eq!(telling("python3.11-shop"), Some("python3.11"));
        assert_eq!((telling("node_exporter"), telling("billing"), telling("")), (None, None, None));
    }
}

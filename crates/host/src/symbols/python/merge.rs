//! Puts the functions that an interpreter runs in the place of its own frames. Pure.
use parshall_evidence::Frame;

/// A function that the interpreter runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Interpreted {
    #[allow(missing_docs)]
    pub frame: Frame,
    /// The evaluation loop was entered with it: the functions that it called are in the same native frame.
    pub entry: bool,
}

/// The evaluation loop, in all versions.
const LOOP: &str = "_PyEval_EvalFrameDefault";
/// Waits for the lock of the interpreter, which tell what a thread sleeps for.
const LOCK: [&str; 3] = ["take_gil", "PyEval_AcquireThread", "PyEval_AcquireLock"];
/// Names that CPython writes into its perf map (`PYTHONPERFSUPPORT`): the same functions again.
const TRAMPOLINE: &str = "py::";

/// The user frames of a stack, innermost first. `is_interpreter` tells the frames of the interpreter's own code.
///
/// Each run of the evaluation loop becomes the functions that it runs; the rest of the interpreter is left out. A native stack may end
/// early, or in addresses that are none: the functions for which no run was seen follow the last one that was, and behind them nothing stays
/// that has no name.
pub fn merge(native: Vec<Frame>, interpreted: &[Interpreted], is_interpreter: impl Fn(&Frame) -> bool) -> Vec<Frame> {
    let mut merged: Vec<Frame> = Vec::new();
    let mut left = interpreted.iter();
    // Where the functions go that no run of the loop was seen for.
    let mut rest_at = None;
    let mut seen_loop = false;
    for frame in native {
        if frame.name.contains(LOOP) {
            for function in left.by_ref() {
                merged.push(function.frame.clone());
                if function.entry {
                    break;
                }
            }
            seen_loop = true;
            rest_at = Some(merged.len());
        } else if frame.name.starts_with(TRAMPOLINE) || is_interpreter(&frame) {
            if !seen_loop && LOCK.iter().any(|name| frame.name.contains(name)) {
                merged.push(frame);
                rest_at = None;
            }
            rest_at = rest_at.or(Some(merged.len()));
        } else if rest_at.is_none() || frame.is_named() {
            merged.push(frame);
        }
    }
    // Addresses in no file are what was taken for a frame.
    let nowhere = |frame: &Frame| !frame.is_named() && frame.module.is_empty();
    let rest_at =
        rest_at.unwrap_or_else(|| merged.iter().rposition(|frame| !nowhere(frame)).map_or(0, |last| last + 1));
    let outer = merged.split_off(rest_at);
    merged.extend(left.map(|function| function.frame.clone()));
    merged.extend(outer.into_iter().filter(|frame| !nowhere(frame)));
    merged
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVAL: &str = "_PyEval_EvalFrameDefault python";

    fn frame(text: &str) -> Frame {
        let (name, module) = text.split_once(' ').unwrap_or((text, ""));
        Frame { name: name.to_owned(), module: module.to_owned(), kernel: false }
    }

    /// `f` is a function, `f!` one with which the loop was entered.
    fn merged(native: &[&str], interpreted: &[&str]) -> String {
        let native = native.iter().map(|text| frame(text)).collect();
        let interpreted = interpreted.iter().map(|name| Interpreted {
            frame: Frame { name: name.trim_end_matches('!').to_owned(), module: "python".into(), kernel: false },
            entry: name.ends_with('!'),
        });
        let interpreted: Vec<Interpreted> = interpreted.collect();
        let frames = merge(native, &interpreted, |frame| frame.module == "python");
        frames.iter().map(|frame| frame.name.as_str()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn each_run_of_the_loop_becomes_its_functions() {
        let native = [
            "clock_nanosleep libc.so.6",
            "time_sleep python",
            EVAL,
            "method_vectorcall python",
            EVAL,
            "PyObject_Call python",
            "apply extension.so",
            EVAL,
            "Py_BytesMain python",
            "__libc_start_main libc.so.6",
        ];
        // Up to 3.10 each function has a run.
        assert_eq!(
            merged(&native, &["view!", "handle!", "main!"]),
            "clock_nanosleep view handle apply main __libc_start_main"
        );
        // Later the loop calls functions by itself.
        assert_eq!(
            merged(&native, &["a", "b!", "c!", "d", "e", "main!"]),
            "clock_nanosleep a b c apply d e main __libc_start_main"
        );
    }

    #[test]
    fn of_a_native_stack_that_ends_early_the_rest_follows() {
        let (functions, all) = (["view!", "handle!", "main!"], "view handle main");
        assert_eq!(merged(&[EVAL], &functions), all);
        assert_eq!(merged(&["read libc.so.6"], &functions), format!("read {all}"));
        assert_eq!(merged(&["0x12 libc.so.6", "0x7f00", "0x99"], &functions), format!("0x12 {all}"));
        assert_eq!(merged(&["read libc.so.6", "0x1200 python", "0x7f00"], &functions), format!("read {all}"));
        assert_eq!(merged(&[EVAL, "0x7f00", "0x1 other.so", "main app"], &functions), format!("{all} main"));
        assert_eq!(merged(&[], &functions), all);
    }

    #[test]
    fn more_runs_than_functions_add_nothing() {
        assert_eq!(merged(&[EVAL, EVAL, "start libc.so.6"], &["view!"]), "view start");
        assert_eq!(merged(&[EVAL], &["view", "handle"]), "view handle", "an entry that was not copied");
    }

    #[test]
    fn the_wait_for_the_interpreters_lock_stays() {
        let native = ["futex_wait libc.so.6", "take_gil python", "PyEval_RestoreThread python", EVAL];
        assert_eq!(merged(&native, &["view!"]), "futex_wait take_gil view");
    }

    #[test]
    fn functions_of_its_own_perf_map_are_not_there_twice() {
        let native = ["read libc.so.6", EVAL, "py::view:/app.py", "_PyEval_Vector python", EVAL, "py::main:/app.py"];
        assert_eq!(merged(&native, &["view!", "main!"]), "read view main");
    }
}

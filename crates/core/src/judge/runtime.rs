//! The language runtime of a process, by the objects in which it was sampled: a process is named after its script, not after it.
use crate::judge::facts::Facts;

/// Runtimes that need something said about them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Runtime {
    /// OpenJDK and its relatives.
    Java,
    /// Node.js.
    Node,
    /// CPython.
    Python,
    /// CRuby.
    Ruby,
    /// .NET.
    DotNet,
}

/// The runtime that the samples of a process show; else what its name tells.
pub fn of(facts: &Facts<'_>, pid: u32, process: &str) -> Option<Runtime> {
    let samples = facts.capture.samples.iter().filter(|s| facts.thread(s.tid).is_some_and(|t| t.rec.pid == pid));
    let stacks = samples.filter_map(|s| facts.capture.stacks.get(s.stack? as usize));
    let mut modules = stacks.flat_map(|stack| &stack.frames).filter(|f| !f.kernel).map(|f| f.module.as_str());
    modules.find_map(by_name).or_else(|| by_name(process))
}

fn by_name(name: &str) -> Option<Runtime> {
    let starts = |names: &[&str]| names.iter().any(|known| name.starts_with(known));
    match name {
        "java" => Some(Runtime::Java),
        "node" | "nodejs" => Some(Runtime::Node),
        "dotnet" => Some(Runtime::DotNet),
        _ if starts(&["libjvm"]) => Some(Runtime::Java),
        _ if starts(&["libnode"]) => Some(Runtime::Node),
        _ if starts(&["python", "libpython", "gunicorn", "uwsgi"]) => Some(Runtime::Python),
        _ if starts(&["ruby", "libruby", "puma"]) => Some(Runtime::Ruby),
        _ if starts(&["libcoreclr", "libclrjit"]) => Some(Runtime::DotNet),
        _ => None,
    }
}

impl Runtime {
    /// One thread runs at a time, whatever the number of CPUs.
    pub fn runs_one_thread(self) -> bool {
        matches!(self, Runtime::Python | Runtime::Ruby)
    }

    /// How to have its functions named, for those that it compiles or interprets itself.
    pub fn how_to_name(self, pid: u32) -> String {
        match self {
            Runtime::Java => {
                format!("start it with `-XX:+PreserveFramePointer`, and run `jcmd {pid} Compiler.perfmap`")
            }
            Runtime::Node => "start it with `--perf-basic-prof --interpreted-frames-native-stack`".to_string(),
            Runtime::Python => "observe it with `--interpreters`".to_string(),
            Runtime::Ruby => "start it with `--yjit --yjit-perf`".to_string(),
            Runtime::DotNet => "start it with `DOTNET_PerfMapEnabled=1`".to_string(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::judge::known_names::{INTERPRETERS, RUNTIMES};

    #[test]
    fn objects_and_names_tell_the_runtime() {
        for (name, runtime) in [
            ("libjvm.so", Runtime::Java),
            ("java", Runtime::Java),
            ("python3.11", Runtime::Python),
            ("libpython3.12.so.1.0", Runtime::Python),
            ("node", Runtime::Node),
            ("libruby-3.1.so.3.1", Runtime::Ruby),
            ("libcoreclr.so", Runtime::DotNet),
        ] {
            assert_eq!(by_name(name), Some(runtime), "{name}");
        }
        assert!(RUNTIMES.iter().chain(&INTERPRETERS).all(|name| by_name(name).is_some()));
        assert_eq!(by_name("nginx"), None);
        assert_eq!(by_name("node_exporter"), None);
    }
}

//! CPU samples and stacks.
use serde::{Deserialize, Serialize};

/// One frame of a stack.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Frame {
    /// Demangled function name, or `0x..` and the module when no symbol was found.
    pub name: String,
    /// The object it lies in; `[kernel]` for the kernel.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub module: String,
    /// In the kernel.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub kernel: bool,
}

impl Frame {
    /// Whether a symbol was found for it.
    pub fn is_named(&self) -> bool {
        !is_address(&self.name)
    }
}

/// Where a function comes from that an interpreter runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Interpreted {
    /// The application.
    Application,
    /// A package that was installed for it.
    Package,
    /// The library of the language itself.
    Library,
}

impl Interpreted {
    /// Each with the end that the module of its functions has, behind the file of the interpreter.
    const ENDS: [(Interpreted, &str); 3] =
        [(Interpreted::Package, "/package"), (Interpreted::Library, "/library"), (Interpreted::Application, "")];
}

impl Frame {
    /// A function that an interpreter runs. `name` is `function (file:line)`, and `module` the file of the interpreter.
    pub fn of_interpreter(name: String, module: &str, from: Interpreted) -> Frame {
        let end = Interpreted::ENDS.iter().find(|(one, _)| *one == from).map_or("", |(_, end)| end);
        Frame { name, module: format!("{module}{end}"), kernel: false }
    }

    /// The object that the frame lies in: of a function that an interpreter runs, the file of the interpreter.
    pub fn object(&self) -> &str {
        let end = |from| Interpreted::ENDS.iter().find(|(one, _)| *one == from).map_or("", |(_, end)| *end);
        self.interpreted().and_then(|from| self.module.strip_suffix(end(from))).unwrap_or(&self.module)
    }

    /// Where the function comes from; None for one of native code.
    pub fn interpreted(&self) -> Option<Interpreted> {
        function_and_line(&self.name).filter(|_| !self.kernel)?;
        Interpreted::ENDS.iter().find(|(_, end)| self.module.ends_with(end)).map(|(from, _)| *from)
    }
}

/// `view_orders (app.py` and 42 of `view_orders (app.py:42)`; None for the name of a function of native code.
pub fn function_and_line(name: &str) -> Option<(&str, u32)> {
    let (function, line) = name.strip_suffix(')')?.rsplit_once(':')?;
    let line = line.bytes().all(|byte| byte.is_ascii_digit()).then(|| line.parse().ok())??;
    function.contains(" (").then_some((function, line))
}

/// Whether the name of a frame is its address, because no symbol was found.
pub fn is_address(name: &str) -> bool {
    name.starts_with("0x")
}

/// A stack, innermost frame first: kernel frames, then user frames.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Stack {
    /// The frames.
    pub frames: Vec<Frame>,
}

/// CPU samples with the same thread and stack.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CpuSample {
    /// The thread.
    pub tid: u32,
    /// It was in user mode.
    pub user: bool,
    /// The system call it was in, or [`crate::NO_SYSCALL`].
    pub syscall: i32,
    /// The name of that call, empty outside of one.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub syscall_name: String,
    /// Index into [`crate::Capture::stacks`].
    pub stack: Option<u32>,
    /// How many samples.
    pub count: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_of_interpreters_are_known_by_their_names() {
        for from in [Interpreted::Application, Interpreted::Package, Interpreted::Library] {
            let frame = Frame::of_interpreter("view_orders (app.py:42)".to_owned(), "libpython3.12.so.1.0", from);
            assert_eq!((frame.interpreted(), frame.object()), (Some(from), "libpython3.12.so.1.0"));
            assert!(frame.module.starts_with("libpython3.12.so.1.0") && frame.is_named());
            assert_eq!(Frame { kernel: true, ..frame }.interpreted(), None);
        }
        for name in [
            "std::vector::push_back(int)",
            "_PyEval_EvalFrameDefault",
            "f(a::b)",
            "main:42)",
            "f (a.py:4x)",
            "f (a.py:)",
        ] {
            let frame = Frame { name: name.to_owned(), module: "python3.11".to_owned(), kernel: false };
            assert_eq!(frame.interpreted(), None, "{name}");
        }
        assert_eq!(function_and_line("<lambda> (a (1).py:7)"), Some(("<lambda> (a (1).py", 7)));
    }
}

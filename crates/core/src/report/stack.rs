//! Stacks as people read them: the frames that every system call has are left out, and so are the arguments of templates and generics.
//! JSON has both.
use super::page::{Detail, Stack};

/// Frames of a full page and of a short one: enough to tell the path, few enough to read.
const FULL_FRAMES: usize = 8;
const SHORT_FRAMES: usize = 5;

/// The innermost frames; None where no stack was seen.
pub(super) fn shown(stack: &[String], detail: Detail) -> Option<Stack> {
    if stack.is_empty() {
        return None;
    }
    let mut frames = frames(stack);
    let most = if detail == Detail::Full { FULL_FRAMES } else { SHORT_FRAMES };
    let left = frames.len().saturating_sub(most);
    frames.truncate(most);
    Some(Stack { frames, more: (left > 0).then(|| format!("{left} more")) })
}

/// All frames of a stack, innermost first.
pub fn frames(stack: &[String]) -> Vec<String> {
    let own: Vec<&String> = stack.iter().filter(|frame| !is_entry(frame)).collect();
    // A thread that was seen at the very entry has no other.
    let own = if own.is_empty() { stack.iter().collect() } else { own };
    own.into_iter().map(|frame| simplified(frame)).collect()
}

/// Whether a frame is on the way into the kernel, which the calls on both sides of it tell: those of x86 and arm64.
fn is_entry(frame: &str) -> bool {
    const NAMES: [&str; 21] = [
        "do_syscall_64",
        "x64_sys_call",
        "ia32_sys_call",
        "do_fast_syscall_32",
        "do_SYSENTER_32",
        "do_int80_syscall_32",
        "do_int80_emulation",
        "syscall_enter_from_user_mode",
        "syscall_exit_to_user_mode",
        "ret_from_fork",
        "ret_from_fork_asm",
        "el0_svc",
        "el0_svc_common",
        "el0_svc_handler",
        "do_el0_svc",
        "el0t_64_sync",
        "el0t_64_sync_handler",
        "el0_sync",
        "el0_sync_handler",
        "invoke_syscall",
        "__invoke_syscall",
    ];
    const PREFIXES: [&str; 9] = [
        "entry_SYSCALL_",
        "entry_SYSENTER_",
        "entry_INT80_",
        "__x64_sys_",
        "__ia32_sys_",
        "__arm64_sys_",
        "__arm64_compat_sys_",
        "__se_sys_",
        "__do_sys_",
    ];
    let name = frame.strip_suffix(" [k]").unwrap_or(frame);
    // The compiler's own versions of a function: `el0_svc_common.constprop.0`.
    let name = name.split_once('.').map_or(name, |(name, _)| name);
    NAMES.contains(&name) || PREFIXES.iter().any(|prefix| name.starts_with(prefix))
}

/// A symbol without the arguments of templates and generics: `std::vector<int>::push_back` is `std::vector::push_back`. Types in which
/// something is looked up stay (`<Vec as Extend>::extend`), and so do names in angle brackets (`<module>`, `<lambda()>`). A symbol
/// whose brackets do not match was cut, and stays as it is; so does one that is nothing else.
pub fn simplified(symbol: &str) -> String {
    if !symbol.contains('<') {
        return symbol.to_owned();
    }
    let mut reader = Reader { rest: symbol, out: String::with_capacity(symbol.len()) };
    let whole = reader.read(false).is_some() && reader.rest.is_empty();
    let short = reader.out.trim_end();
    if whole && !short.is_empty() { short.to_owned() } else { symbol.to_owned() }
}

/// Symbols that may follow `operator`, the longest first.
const OPERATORS: [&str; 16] =
    ["<=>", "<<=", ">>=", "->*", "<<", ">>", "<=", ">=", "->", "()", "[]", "==", "!=", "<", ">", "="];

/// Reads a symbol from its begin to its end.
struct Reader<'s> {
    rest: &'s str,
    out: String,
}

impl Reader<'_> {
    /// Copies up to the end, or to the bracket that closes what was opened before. None where a bracket is missing.
    fn read(&mut self, within: bool) -> Option<()> {
        while let Some(c) = self.rest.chars().next() {
            match c {
                '>' if within => return Some(()),
                '>' if !self.out.ends_with('-') && !self.out.ends_with('=') => return None,
                '<' if self.is_name() => self.copy_name()?,
                '<' => self.skip_arguments()?,
                'o' if self.is_operator() => self.copy_operator()?,
                '-' if self.rest.starts_with("->") => self.copy(2),
                _ => self.copy(c.len_utf8()),
            }
        }
        (!within).then_some(())
    }

    fn copy(&mut self, bytes: usize) {
        let (now, rest) = self.rest.split_at(bytes);
        self.out.push_str(now);
        self.rest = rest;
    }

    /// An opening bracket that begins a name and not the arguments of one: nothing stands before it that could have any.
    fn is_name(&self) -> bool {
        const NAMES: [&str; 5] = ["impl ", "lambda", "init>", "clinit>", "unnamed"];
        let inside = &self.rest[1..];
        match self.out.chars().next_back() {
            None => true,
            Some(':') => NAMES.iter().any(|name| inside.starts_with(name)),
            Some(c) => !(c.is_alphanumeric() || "_)]}>".contains(c)),
        }
    }

    /// Copies `<Vec<u8> as Extend>` without the arguments in it.
    fn copy_name(&mut self) -> Option<()> {
        self.copy(1);
        self.read(true)?;
        self.copy(1);
        Some(())
    }

    /// Skips to the bracket that closes the arguments, and Rust's `::` before them.
    fn skip_arguments(&mut self) -> Option<()> {
        let mut inside = Reader { rest: &self.rest[1..], out: String::new() };
        inside.read_arguments()?;
        self.rest = &self.rest[self.rest.len() - inside.rest.len()..];
        if self.out.ends_with("::") {
            self.out.truncate(self.out.len() - 2);
        }
        Some(())
    }

    /// Reads to the end of arguments. In parentheses `<` and `>` may be comparisons: `(N > 2)`.
    fn read_arguments(&mut self) -> Option<()> {
        loop {
            match self.rest.chars().next()? {
                '>' => {
                    self.copy(1);
                    return Some(());
                }
                '<' => {
                    self.copy(1);
                    self.read_arguments()?;
                }
                '(' => self.read_parentheses()?,
                'o' if self.is_operator() => {
                    self.rest = &self.rest["operator".len()..];
                    let symbol = OPERATORS.iter().find(|symbol| self.rest.starts_with(**symbol));
                    self.rest = &self.rest[symbol.map_or(0, |symbol| symbol.len())..];
                    self.out.clear();
                }
                '-' | '=' if self.rest[1..].starts_with('>') => self.copy(2),
                c => self.copy(c.len_utf8()),
            }
        }
    }

    fn read_parentheses(&mut self) -> Option<()> {
        let mut depth = 0;
        loop {
            match self.rest.chars().next()? {
                '(' => depth += 1,
                ')' => depth -= 1,
                _ => {}
            }
            self.copy(self.rest.chars().next()?.len_utf8());
            if depth == 0 {
                return Some(());
            }
        }
    }

    /// The word `operator`, and a symbol after it.
    fn is_operator(&self) -> bool {
        let begins = self.out.chars().next_back().is_none_or(|c| !c.is_alphanumeric() && c != '_');
        let symbol = self.rest.strip_prefix("operator");
        begins && symbol.is_some_and(|rest| OPERATORS.iter().any(|symbol| rest.starts_with(symbol)))
    }

    /// Copies the word and its symbol; arguments may follow after a blank: `operator< <int>`.
    fn copy_operator(&mut self) -> Option<()> {
        self.copy("operator".len());
        let symbol = OPERATORS.iter().find(|symbol| self.rest.starts_with(**symbol))?;
        self.copy(symbol.len());
        if let Some(rest) = self.rest.strip_prefix(' ').filter(|rest| rest.starts_with('<')) {
            self.rest = rest;
        }
        if self.rest.starts_with('<') { self.skip_arguments() } else { Some(()) }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn arguments_of_templates_and_generics_are_left_out() {
        for (symbol, short) in [
            ("recv", "recv"),
            ("std::vector<int, std::allocator<int> >::push_back", "std::vector::push_back"),
            ("std::vector<int>::push_back(std::pair<int, int> const&)", "std::vector::push_back(std::pair const&)"),
            ("bool operator< <int>(A<int> const&, A<int> const&)", "bool operator<(A const&, A const&)"),
            ("std::operator<< <std::char_traits<char> >", "std::operator<<"),
            ("ns::T<int>::operator<", "ns::T::operator<"),
            ("ns::T<int>::operator<=>(int)", "ns::T::operator<=>(int)"),
            ("std::unique_ptr<Foo<int> >::operator->", "std::unique_ptr::operator->"),
            ("std::unique_ptr<Foo>::operator->() const", "std::unique_ptr::operator->() const"),
            ("Fn<int (int)>::operator()<long>(long)", "Fn::operator()(long)"),
            ("my_operator<int>::go", "my_operator::go"),
            ("apply<&ns::operator< >::go", "apply::go"),
            ("(anonymous namespace)::f<int>", "(anonymous namespace)::f"),
            ("A<(anonymous namespace)::B>::f", "A::f"),
            ("enable<(2 > 1), int>::f", "enable::f"),
            ("main::{lambda(int)#1}::operator()(int) const", "main::{lambda(int)#1}::operator()(int) const"),
            ("f(int)::<lambda(A<int>)>::_FUN", "f(int)::<lambda(A)>::_FUN"),
            ("auto f<int>(int) -> B<int>", "auto f(int) -> B"),
            (
                "<alloc::vec::Vec<T> as core::iter::Extend<U>>::extend",
                "<alloc::vec::Vec as core::iter::Extend>::extend",
            ),
            ("<T as Trait<U>>::f", "<T as Trait>::f"),
            ("core::iter::adapters::map::Map<I,F>::next", "core::iter::adapters::map::Map::next"),
            ("core::ptr::drop_in_place::<alloc::string::String>", "core::ptr::drop_in_place"),
            ("app::run::<fn(u8) -> u8>::{closure#0}", "app::run::{closure#0}"),
            (
                "core::fmt::num::<impl core::fmt::Display for Wrapping<u32>>::fmt",
                "core::fmt::num::<impl core::fmt::Display for Wrapping>::fmt",
            ),
            ("<module>", "<module>"),
            ("java.lang.String.<init>", "java.lang.String.<init>"),
            ("Foo::<init>", "Foo::<init>"),
            ("Box<Option<Vec<u8>>>::f", "Box::f"),
            // Cut, or no arguments at all.
            ("std::vector<int, std::alloc", "std::vector<int, std::alloc"),
            ("a > b", "a > b"),
            ("a<b", "a<b"),
        ] {
            assert_eq!(simplified(symbol), short, "{symbol}");
        }
    }

    #[test]
    fn frames_of_the_entry_into_the_kernel_are_left_out() {
        let stack = |frames: &[&str]| frames.iter().map(|frame| (*frame).to_string()).collect::<Vec<_>>();
        let x86 = stack(&[
            "schedule [k]",
            "unix_stream_read_generic [k]",
            "__x64_sys_recvfrom [k]",
            "x64_sys_call [k]",
            "do_syscall_64 [k]",
            "entry_SYSCALL_64_after_hwframe [k]",
            "recv",
            "main",
        ]);
        assert_eq!(frames(&x86), ["schedule [k]", "unix_stream_read_generic [k]", "recv", "main"]);
        let arm64 = stack(&[
            "futex_wait",
            "__arm64_sys_futex",
            "invoke_syscall.constprop.0",
            "el0_svc_common.constprop.0",
            "do_el0_svc",
            "el0_svc",
            "el0t_64_sync_handler",
            "el0t_64_sync",
            "pthread_cond_wait",
        ]);
        assert_eq!(frames(&arm64), ["futex_wait", "pthread_cond_wait"]);
        let alone = stack(&["entry_SYSCALL_64_after_hwframe [k]"]);
        assert_eq!(frames(&alone), alone);
    }

    #[test]
    fn long_stacks_are_cut() {
        let stack: Vec<String> = (0..12).map(|n| format!("f{n}")).collect();
        let short = shown(&stack, Detail::Short).expect("a stack");
        assert_eq!((short.frames.len(), short.more.as_deref()), (5, Some("7 more")));
        assert_eq!(shown(&[], Detail::Full), None);
    }

    proptest! {
        #[test]
        fn any_symbol_has_a_short_form(symbol in "([a-c:<>() -]|operator|impl |é|::){0,24}") {
            let short = simplified(&symbol);
            prop_assert!(short.len() <= symbol.len());
            prop_assert!(symbol.is_empty() || !short.is_empty() || symbol.trim().is_empty());
        }
    }
}

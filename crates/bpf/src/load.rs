//! Loading programs: what libbpf does differently from what is wanted here.
use std::cell::RefCell;
use std::io;

/// Runs `load` with this thread's signals blocked: they reach another thread, or this one afterwards.
///
/// The verifier gives up with EAGAIN as soon as a signal is pending (kernel/bpf/verifier.c, `do_check`), and libbpf tries
/// five times only. A process that starts others, resizes a terminal or takes a CPU profile has more of them.
pub(crate) fn unsignalled<T>(load: impl FnOnce() -> T) -> T {
    let _blocked = Blocked::all();
    load()
}

/// All signals of this thread are blocked until it is dropped; what was blocked before stays so.
struct Blocked(libc::sigset_t);

impl Blocked {
    fn all() -> Self {
        // SAFETY: both sets are ours, and plain data for which zeroes are valid; the call only fails for a wrong `how`.
        unsafe {
            let mut all: libc::sigset_t = std::mem::zeroed();
            let mut before: libc::sigset_t = std::mem::zeroed();
            libc::sigfillset(&raw mut all);
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
            Self(before)
        }
    }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        // SAFETY: the set is the one that this thread had.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.0, std::ptr::null_mut()) };
    }
}

/// The error of a call as an I/O error, which tells a missing right from a missing feature.
pub(crate) fn refused(error: libbpf_rs::Error) -> io::Error {
    match error.kind() {
        libbpf_rs::ErrorKind::PermissionDenied => io::ErrorKind::PermissionDenied.into(),
        _ => io::Error::other(error),
    }
}

/// Loads and attaches an object. The error is that of [`refused`], with the reason that the kernel gave.
pub(crate) fn or_refused<T>(load: impl FnOnce() -> Result<T, libbpf_rs::Error>) -> io::Result<T> {
    let (loaded, messages) = with_messages(load);
    loaded.map_err(|error| {
        let why = reason_in_words(&messages, &error);
        io::Error::new(refused(error).kind(), why)
    })
}

/// The reason for which an object was refused, with its program where it was one.
pub(crate) fn reason_in_words(messages: &[String], error: &libbpf_rs::Error) -> String {
    match reason(messages) {
        Some((Some(program), said)) => format!("{program}: {said}"),
        Some((None, said)) => said,
        None => error.to_string(),
    }
}

thread_local! {
    /// Messages of libbpf while this thread collects them.
    static MESSAGES: RefCell<Option<Vec<String>>> = const { RefCell::new(None) };
    /// The same during [`transcript`].
    static TRANSCRIPT: RefCell<Option<Vec<String>>> = const { RefCell::new(None) };
}

/// Messages that [`transcript`] keeps, and the bytes of each. The verifier's log of one program may have megabytes; its end says why.
const TRANSCRIPT_MESSAGES_MAX: usize = 10_000;
const TRANSCRIPT_BYTES_MAX: usize = 64 * 1024;

/// Does work, and returns what libbpf said on this thread meanwhile, with the ends of long logs of the verifier.
pub fn transcript<T>(work: impl FnOnce() -> T) -> (T, Vec<String>) {
    log_libbpf();
    TRANSCRIPT.set(Some(Vec::new()));
    let done = work();
    (done, TRANSCRIPT.take().unwrap_or_default())
}

fn add_to_transcript(text: &str) {
    TRANSCRIPT.with_borrow_mut(|transcript| {
        if let Some(transcript) = transcript.as_mut().filter(|transcript| transcript.len() < TRANSCRIPT_MESSAGES_MAX) {
            let end = (text.len().saturating_sub(TRANSCRIPT_BYTES_MAX)..).find_map(|at| text.get(at..));
            transcript.extend(end.map(str::to_owned));
        }
    });
}

/// Sends the messages of libbpf in this process to the log, at the level of `-v`: what a refused load means to a user, its
/// callers say, with the kernel's reason.
pub fn log_libbpf() {
    libbpf_rs::set_print(Some((libbpf_rs::PrintLevel::Info, on_message)));
}

fn on_message(_level: libbpf_rs::PrintLevel, text: String) {
    tracing::debug!(target: "parshall_bpf::libbpf", "{}", text.trim_end());
    add_to_transcript(&text);
    MESSAGES.with_borrow_mut(|messages| {
        if let Some(messages) = messages {
            messages.push(text);
        }
    });
}

/// Runs `load`, and returns what libbpf said meanwhile. Its messages go to nobody else before [`log_libbpf`] is called.
pub(crate) fn with_messages<T>(load: impl FnOnce() -> T) -> (T, Vec<String>) {
    log_libbpf();
    MESSAGES.set(Some(Vec::new()));
    let done = load();
    (done, MESSAGES.take().unwrap_or_default())
}

/// The program that could not be loaded, if it was one, and the reason in one line, from what libbpf said.
pub(crate) fn reason(messages: &[String]) -> Option<(Option<String>, String)> {
    let of_program =
        |line: &str| Some(line.trim_start_matches("libbpf: ").strip_prefix("prog '")?.split_once('\'')?.0.to_owned());
    let program = messages.iter().rev().find_map(|message| of_program(message));
    let verifier = messages.iter().rev().find(|message| message.contains("-- BEGIN PROG LOAD LOG --"));
    // A program that the kernel's policy refuses has a log too, in which the verifier says nothing.
    let of_verifier = verifier.and_then(|log| log.lines().rev().find(|line| !is_of_course(line)));
    let of_libbpf =
        || messages.iter().map(|message| message.trim()).find(|message| !message.contains("Retrying without"));
    let said = of_verifier.or_else(of_libbpf);
    let said = said?.trim().trim_start_matches("libbpf: ");
    let said = said.strip_prefix("prog '").and_then(|rest| rest.split_once("': ")).map_or(said, |(_, said)| said);
    Some((program, of_trivial_program(said).unwrap_or_else(|| said.to_owned())))
}

/// What it means that not even the smallest program is loaded, which libbpf tries first. Its own words are those for a developer.
fn of_trivial_program(said: &str) -> Option<String> {
    let (before, _) = said.split_once("Couldn't load trivial BPF program")?;
    let (_, number) = before.rsplit_once(": ")?;
    let number = number.trim_end_matches([' ', '.']).trim_start_matches('-');
    let needs = match number {
        "EPERM" => ": that needs root, and before Linux 5.11 enough locked memory (`ulimit -l`)",
        _ => "",
    };
    Some(format!("the kernel loads no BPF program, not even the smallest ({number}){needs}"))
}

/// Lines of the verifier's log that tell no reason.
fn is_of_course(line: &str) -> bool {
    let line = line.trim();
    let frame = line.is_empty() || line.contains("PROG LOAD LOG --");
    frame || ["processed ", "verification time", "stack depth"].iter().any(|start| line.starts_with(start))
}

#[cfg(test)]
mod tests {
    use super::reason;

    fn said(messages: &[&str]) -> (Option<String>, String) {
        reason(&messages.iter().map(|message| (*message).to_owned()).collect::<Vec<_>>()).unwrap()
    }

    #[test]
    fn a_process_that_may_load_no_program_is_told_what_that_needs() {
        let trivial = |error: &str| {
            let messages = [
                format!(
                    "libbpf: Error in bpf_object__probe_loading(): {error}. Couldn't load trivial BPF program. Make sure your kernel \
                     supports BPF (CONFIG_BPF_SYSCALL=y) and/or that RLIMIT_MEMLOCK is set to big enough value.\n"
                ),
                "libbpf: failed to load object 'walk_bpf'\n".to_owned(),
            ];
            reason(&messages).unwrap().1
        };
        let refused = "the kernel loads no BPF program, not even the smallest";
        let needs = "that needs root, and before Linux 5.11 enough locked memory (`ulimit -l`)";
        assert_eq!(trivial("-EPERM"), format!("{refused} (EPERM): {needs}"));
        assert_eq!(trivial("-ENOSYS"), format!("{refused} (ENOSYS)"));
    }

    #[test]
    fn the_last_line_of_the_verifier_is_the_reason() {
        let messages = [
            "libbpf: prog 'on_timer': BPF program load failed: -EINVAL\n",
            "libbpf: prog 'on_timer': -- BEGIN PROG LOAD LOG --\n0: R1=ctx()\n; if (!active) @ probe.bpf.h:30\n\
             failed to resolve CO-RE relocation <byte_off> [41] struct task_struct.on_cpu\n\
             processed 12 insns (limit 1000000) max_states_per_insn 0 total_states 1 peak_states 1 mark_read 0\n\
             -- END PROG LOAD LOG --\n",
            "libbpf: prog 'on_timer': failed to load: -EINVAL\n",
            "libbpf: failed to load object 'probes_bpf'\n",
        ];
        let (program, why) = said(&messages);
        assert_eq!(program.as_deref(), Some("on_timer"));
        assert_eq!(why, "failed to resolve CO-RE relocation <byte_off> [41] struct task_struct.on_cpu");
    }

    #[test]
    fn a_program_that_is_refused_before_it_is_verified_is_named() {
        let messages = [
            "libbpf: prog 'dump_flows': BPF program load failed: -EPERM\n",
            "libbpf: prog 'dump_flows': -- BEGIN PROG LOAD LOG --\n\
             processed 0 insns (limit 1000000) max_states_per_insn 0 total_states 0 peak_states 0 mark_read 0\n\
             -- END PROG LOAD LOG --\n",
            "libbpf: prog 'dump_flows': failed to load: -EPERM\n",
        ];
        assert_eq!(said(&messages), (Some("dump_flows".to_owned()), "BPF program load failed: -EPERM".to_owned()));
    }

    #[test]
    fn a_hook_that_is_missing_and_a_map_that_is_refused_are_reasons() {
        let messages = [
            "libbpf: prog 'on_recv': failed to find kernel BTF type ID of 'sock_recv_length': -ESRCH\n",
            "libbpf: prog 'on_recv': failed to prepare load attributes: -ESRCH\n",
        ];
        let why = "failed to find kernel BTF type ID of 'sock_recv_length': -ESRCH".to_owned();
        assert_eq!(said(&messages), (Some("on_recv".to_owned()), why));
        let messages = [
            "libbpf: Error in bpf_create_map_xattr(threads): -EINVAL. Retrying without BTF.\n",
            "libbpf: map 'threads': failed to create: -EINVAL\n",
            "libbpf: failed to load object 'probes_bpf'\n",
        ];
        assert_eq!(said(&messages), (None, "map 'threads': failed to create: -EINVAL".to_owned()));
        assert_eq!(reason(&[]), None);
    }
}

//! Requirements of each program of the btf object: what it needs of the kernel, which other program replaces it where the kernel lacks that,
//! and which observation is lost where none does. This is the only list of these; which programs to load follows from it.
//!
//! Features that the programs find by themselves when they are loaded (fields and types that come and go) are beside their use in C:
//! `kernel.h` names the versions.

/// The hook that a program is attached to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hook {
    /// A typed tracepoint.
    Tracepoint(&'static str),
    /// The begin of a kernel function (fentry).
    Entry(&'static str),
    /// The end of a kernel function (fexit).
    Exit(&'static str),
    /// An iterator over the kernel's objects.
    Iterator(&'static str),
    /// A perf event.
    Clock,
}

impl Hook {
    /// It is a function of the kernel.
    pub fn is_function(self) -> bool {
        matches!(self, Hook::Entry(_) | Hook::Exit(_))
    }

    /// The section of the object that the program is in.
    pub fn section(self) -> String {
        match self {
            Hook::Tracepoint(name) => format!("tp_btf/{name}"),
            Hook::Entry(name) => format!("fentry/{name}"),
            Hook::Exit(name) => format!("fexit/{name}"),
            Hook::Iterator(name) => format!("iter/{name}"),
            Hook::Clock => "perf_event".to_owned(),
        }
    }
}

/// A program and what it is attached to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Program {
    /// Its name in the object.
    pub name: &'static str,
    #[allow(missing_docs)]
    pub hook: Hook,
    /// The first version of Linux that has the hook.
    pub since: &'static str,
}

/// Something to observe, by the first of its programs that the kernel takes.
#[derive(Debug)]
pub struct Observation {
    /// The programs, the best first.
    pub programs: &'static [Program],
    /// The observation that is lost without it, a sentence.
    pub lost: &'static str,
    /// Without it time would be put to the wrong account, so there is no rung `btf`.
    pub essential: bool,
    /// Causes that cannot be ruled out without it.
    pub causes: &'static [&'static str],
}

const fn tracepoint(name: &'static str, tracepoint: &'static str, since: &'static str) -> Program {
    Program { name, hook: Hook::Tracepoint(tracepoint), since }
}

const fn iterator(name: &'static str, over: &'static str, since: &'static str) -> Program {
    Program { name, hook: Hook::Iterator(over), since }
}

const fn essential(programs: &'static [Program], lost: &'static str) -> Observation {
    Observation { programs, lost, essential: true, causes: &[] }
}

const fn detail(programs: &'static [Program], lost: &'static str, causes: &'static [&'static str]) -> Observation {
    Observation { programs, lost, essential: false, causes }
}

/// The ends of system calls, for kernels that have not these tracepoints and take no programs at functions.
const CALL_SENDS: Program = tracepoint("on_call_sends", "sys_exit", "5.5");
const CALL_RECEIVES: Program = tracepoint("on_call_receives", "sys_exit", "5.5");
/// Programs that only the object for kernels before 5.12 has.
pub const OLDER_ONLY: [Program; 2] = [CALL_SENDS, CALL_RECEIVES];
const SEND_LENGTH: Program = tracepoint("on_send_end", "sock_send_length", "6.3");
const RECEIVE_LENGTH: Program = tracepoint("on_recv", "sock_recv_length", "6.3");

/// The program that writes the ledgers of all tracked connections.
pub const DUMP_FLOWS: Program = iterator("dump_flows", "bpf_sk_storage_map", "5.9");

/// The program for dropped packets. Its tracepoint is older than the reason in it.
pub const ON_DROP: &str = "on_drop";
/// The type of the reason.
pub const DROP_REASON: &str = "skb_drop_reason";

const fn exit(name: &'static str, function: &'static str) -> Program {
    Program { name, hook: Hook::Exit(function), since: "5.5" }
}

/// All that the btf object observes.
pub const OBSERVATIONS: &[Observation] = &[
    essential(&[tracepoint("on_switch", "sched_switch", "5.5")], "when threads leave the CPU is not seen"),
    essential(&[tracepoint("on_waking", "sched_waking", "5.5")], "what wakes threads is not seen"),
    essential(&[tracepoint("on_segment", "tcp_probe", "5.5")], "the arrival of data and ACKs is not seen"),
    essential(&[SEND_LENGTH, exit("on_inet_sendmsg", "inet_sendmsg"), CALL_SENDS], "sends are not seen"),
    essential(&[RECEIVE_LENGTH, exit("on_inet_recvmsg", "inet_recvmsg"), CALL_RECEIVES], "receives are not seen"),
    essential(
        &[tracepoint("on_state", "inet_sock_set_state", "5.5")],
        "the begin and the end of connections are not seen",
    ),
    essential(
        &[DUMP_FLOWS, iterator("dump_open_flows", "task_file", "5.8")],
        "the ledgers of connections cannot be read",
    ),
    detail(&[DUMP_FLOWS], "connections that no process has open are not in the account of the time", &[]),
    essential(&[iterator("dump_owners", "task_file", "5.8")], "the open connections of processes are not found"),
    essential(&[iterator("dump_threads", "task", "5.8")], "the ledgers of threads cannot be read"),
    detail(
        &[SEND_LENGTH, exit("on_inet6_sendmsg", "inet6_sendmsg"), CALL_SENDS],
        "sends by IPv6 are not seen",
        OF_CALLS,
    ),
    detail(
        &[RECEIVE_LENGTH, exit("on_inet6_recvmsg", "inet6_recvmsg"), CALL_RECEIVES],
        "receives by IPv6 are not seen",
        OF_CALLS,
    ),
    detail(
        &[SEND_LENGTH, exit("on_inet_sendpage", "inet_sendpage")],
        "what sendfile() and splice() send is not seen",
        &[],
    ),
    detail(
        &[
            tracepoint("on_send_begin", "tcp_sendmsg_locked", "6.16"),
            Program { name: "on_sendmsg_locked", hook: Hook::Entry("tcp_sendmsg_locked"), since: "5.5" },
        ],
        "when a send begins is not seen: time before a long send may be counted as in flight",
        &[],
    ),
    detail(
        &[
            tracepoint("on_data_ready", "sk_data_ready", "6.3"),
            Program { name: "on_def_readable", hook: Hook::Entry("sock_def_readable"), since: "5.5" },
        ],
        "when datagrams arrive is not seen",
        &[],
    ),
    detail(
        &[tracepoint("on_splice", "tcp_rcv_space_adjust", "5.5")],
        "what splice() takes from TCP sockets is not seen",
        &[],
    ),
    detail(
        &[tracepoint("on_timer", "timer_expire_entry", "5.5")],
        "TCP's timers are not seen",
        &["nagle-delayed-ack", "retransmission-timeout"],
    ),
    detail(
        &[tracepoint("on_retransmit", "tcp_retransmit_skb", "5.5")],
        "retransmissions are not seen one by one",
        &["packet-loss", "retransmission-timeout", "pmtu-black-hole"],
    ),
    detail(&[tracepoint("on_reset_sent", "tcp_send_reset", "5.5")], "resets sent are not counted", &["resets"]),
    detail(
        &[tracepoint("on_reset_received", "tcp_receive_reset", "5.5")],
        "resets received are not counted",
        &["resets"],
    ),
    detail(
        &[tracepoint(ON_DROP, "kfree_skb", "5.17")],
        "SYNs that a packet filter of this host drops are not counted",
        &[],
    ),
    detail(&[tracepoint("on_sys_enter", "sys_enter", "5.5")], "system calls are not counted", OF_SYSTEM_CALLS),
    detail(&[tracepoint("on_sys_exit", "sys_exit", "5.5")], "system calls and accepts are not seen", OF_SYSTEM_CALLS),
    detail(
        &[Program { name: "on_sample", hook: Hook::Clock, since: "5.5" }],
        "no stacks of running threads",
        &["user-cpu-bound", "kernel-cpu-bound", "handshake-per-request"],
    ),
    detail(&[tracepoint("on_new_task", "task_newtask", "5.5")], "new threads and child processes are seen late", &[]),
    detail(&[tracepoint("on_exit", "sched_process_exit", "5.5")], "the ledgers of threads that end are not read", &[]),
    detail(&[tracepoint("on_free", "sched_process_free", "5.5")], "processes that ended take up room", &[]),
    detail(
        &[tracepoint("on_stop_signal", "signal_generate", "5.5")],
        "who stops a process is not seen",
        &["process-stopped"],
    ),
];

/// Causes that are found in single calls.
const OF_CALLS: &[&str] =
    &["nagle-delayed-ack", "nagle-hold", "cork-held", "serial-protocol", "slow-reader", "blocking-downstream-call"];

/// Causes that are found in the counts of system calls.
const OF_SYSTEM_CALLS: &[&str] = &["small-copy-buffer", "blocking-log-write", "workers-exhausted"];

/// A program that the kernel, or libbpf on its behalf, did not take.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    /// Its name in the object; `probes` for all at once.
    pub program: String,
    /// The reason, one line.
    pub reason: String,
}

/// Something that is not observed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Missing {
    /// Programs that were refused, the best one first.
    pub refused: Vec<Refused>,
    /// The observation that is lost, a sentence.
    pub lost: &'static str,
    /// There is no rung `btf` without it.
    pub essential: bool,
    /// Causes that cannot be ruled out.
    pub causes: &'static [&'static str],
}

impl std::fmt::Display for Missing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let reasons: Vec<String> = self.refused.iter().map(|one| format!("{}: {}", one.program, one.reason)).collect();
        write!(f, "{} ({})", self.lost, reasons.join("; "))
    }
}

/// The programs to load where those of `refused` cannot be: of each observation the first that is left.
pub fn chosen(refused: &[Refused]) -> Vec<Program> {
    let mut chosen: Vec<Program> = Vec::new();
    for program in OBSERVATIONS.iter().filter_map(|observation| first_left(observation, refused)) {
        if !chosen.contains(&program) {
            chosen.push(program);
        }
    }
    chosen
}

/// All programs that are attached to functions, refused for one reason.
pub fn functions(reason: &str) -> Vec<Refused> {
    let programs = OBSERVATIONS.iter().flat_map(|observation| observation.programs);
    let of_functions = programs.filter(|program| program.hook.is_function());
    of_functions.map(|program| Refused { program: program.name.to_owned(), reason: reason.to_owned() }).collect()
}

/// Observations that are lost with the programs `loaded` but for those of `refused`.
pub fn missing(loaded: &[Program], refused: &[Refused]) -> Vec<Missing> {
    let is_refused = |program: &Program| refused.iter().any(|one| one.program == program.name);
    let is_had =
        |observation: &&Observation| observation.programs.iter().any(|one| loaded.contains(one) && !is_refused(one));
    let lost = OBSERVATIONS.iter().filter(|observation| !is_had(observation));
    let reasons = |observation: &Observation| {
        let of = |program: &Program| refused.iter().find(|one| one.program == program.name).cloned();
        observation.programs.iter().filter_map(of).collect()
    };
    let missing = lost.map(|observation| Missing {
        refused: reasons(observation),
        lost: observation.lost,
        essential: observation.essential,
        causes: observation.causes,
    });
    missing.collect()
}

/// The programs of `loaded` that are in the place of better ones, each with the reason.
pub fn replaced(loaded: &[Program], refused: &[Refused]) -> Vec<String> {
    let mut replaced = Vec::new();
    for observation in OBSERVATIONS {
        let Some(used) = observation.programs.iter().find(|program| loaded.contains(program)) else { continue };
        let better = observation.programs.iter().take_while(|program| *program != used);
        for one in better.filter_map(|program| refused.iter().find(|one| one.program == program.name)) {
            replaced.push(format!("{} in place of {} ({})", used.name, one.program, one.reason));
        }
    }
    replaced
}

/// The names of the programs that an observation loads where the kernel refuses none.
pub fn best_programs() -> Vec<&'static str> {
    chosen(&[]).iter().map(|program| program.name).collect()
}

/// Programs that are loaded where the kernel refuses a better one, each with the best one in whose place it is.
pub fn stand_ins() -> impl Iterator<Item = (&'static str, &'static str)> {
    let of = |observation: &'static Observation| {
        observation.programs.iter().skip(1).map(|program| (program.name, observation.programs[0].name))
    };
    OBSERVATIONS.iter().flat_map(of)
}

/// All tracepoints that the list names.
pub fn tracepoints() -> impl Iterator<Item = (&'static str, &'static str)> {
    OBSERVATIONS.iter().flat_map(|observation| observation.programs).filter_map(|program| match program.hook {
        Hook::Tracepoint(name) => Some((program.name, name)),
        _ => None,
    })
}

fn first_left(observation: &Observation, refused: &[Refused]) -> Option<Program> {
    let left = |program: &&Program| !refused.iter().any(|one| one.program == program.name);
    observation.programs.iter().find(left).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn without(names: &[&str]) -> Vec<Refused> {
        names.iter().map(|name| Refused { program: (*name).to_owned(), reason: "no such hook".to_owned() }).collect()
    }

    fn lost(names: &[&str]) -> Vec<Missing> {
        let refused = without(names);
        missing(&chosen(&refused), &refused)
    }

    fn names(refused: &[Refused]) -> Vec<&'static str> {
        chosen(refused).iter().map(|program| program.name).collect()
    }

    #[test]
    fn the_best_program_of_each_sight_is_loaded_once() {
        let best = names(&[]);
        assert_eq!(best.iter().filter(|name| **name == "on_send_end").count(), 1);
        assert!(!best.contains(&"on_inet_sendmsg") && !best.contains(&"on_sendmsg_locked"), "{best:?}");
        assert_eq!(lost(&[]), []);
    }

    #[test]
    fn a_program_that_is_refused_is_replaced() {
        let refused = without(&["on_send_end", "on_recv", "on_send_begin", "on_data_ready"]);
        let left = names(&refused);
        for name in ["on_inet_sendmsg", "on_inet6_sendmsg", "on_inet_sendpage", "on_inet_recvmsg", "on_inet6_recvmsg"] {
            assert!(left.contains(&name), "{name} of {left:?}");
        }
        assert!(left.contains(&"on_sendmsg_locked") && left.contains(&"on_def_readable"));
        assert_eq!(lost(&["on_send_end", "on_recv", "on_send_begin", "on_data_ready"]), []);
        let replaced = replaced(&chosen(&refused), &refused);
        assert_eq!(replaced.len(), 7, "{replaced:?}");
        assert_eq!(replaced[0], "on_inet_sendmsg in place of on_send_end (no such hook)");
    }

    #[test]
    fn without_programs_at_functions_the_ends_of_calls_are_seen() {
        let mut refused = functions("error 524");
        assert!(OLDER_ONLY.iter().all(|one| !chosen(&refused).contains(one)), "the tracepoints are better");
        assert!(missing(&chosen(&refused), &refused).iter().all(|lost| !lost.essential));
        refused.extend(without(&["on_send_end", "on_recv", "on_send_begin", "on_data_ready"]));
        let loaded = chosen(&refused);
        assert!(OLDER_ONLY.iter().all(|one| loaded.contains(one)));
        assert!(loaded.iter().all(|program| !program.hook.is_function()));
        let lost: Vec<&str> = missing(&loaded, &refused).iter().map(|lost| lost.lost).collect();
        assert_eq!(lost.len(), 3, "{lost:?}");
        assert!(lost[0].starts_with("what sendfile()") && lost[1].starts_with("when a send begins"), "{lost:?}");
    }

    #[test]
    fn what_nothing_replaces_is_lost_with_the_kernels_reason() {
        let timers = lost(&["on_timer"]);
        assert_eq!(timers.len(), 1);
        assert!(!timers[0].essential && timers[0].causes.contains(&"nagle-delayed-ack"));
        assert_eq!(timers[0].to_string(), "TCP's timers are not seen (on_timer: no such hook)");
        assert!(lost(&["on_recv", "on_inet_recvmsg", "on_call_receives"]).iter().any(|lost| lost.essential));
    }

    #[test]
    fn a_program_that_was_not_loaded_replaces_none_that_could_not_be_attached() {
        let lost = missing(&chosen(&[]), &without(&["on_recv"]));
        assert!(lost.iter().any(|lost| lost.essential), "{lost:?}");
    }
}

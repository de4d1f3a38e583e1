//! Events of the kernel that the user asked for (`--event`): finds them by name, and counts them around a window.
use std::collections::HashMap;

use parshall_bpf::diagnose::event::{self, Counted, Events, NotFound, Source};
use parshall_core::sorting::StableSort as _;
use parshall_core::text::{nearest, quote};
use parshall_core::units::plural;
use parshall_evidence::{EventCell, EventCounts, Stack};
use parshall_host::error::UserError;
use parshall_host::symbols::{Stacks, in_interrupt};
use parshall_host::{cpus, proc_fs};

/// Names in a hint.
const HINTS_MAX: usize = 3;

/// The events of these names, each once.
pub fn find(names: &[String]) -> Result<Vec<Source>, UserError> {
    let mut found: Vec<Source> = Vec::new();
    for name in names {
        let source = event::find(name).map_err(|error| not_found(name, error))?;
        if !found.contains(&source) {
            found.push(source);
        }
    }
    if found.len() > event::EVENTS_MAX {
        let given = plural(found.len() as u64, "event is", "events are");
        let what = format!("{given} given, and at most {} are counted at a time", event::EVENTS_MAX);
        return Err(UserError::new(what, "observe several times, with some of the events each"));
    }
    Ok(found)
}

fn not_found(name: &str, error: NotFound) -> UserError {
    let NotFound::Unknown(names) = error else {
        return UserError::new(
            format!("the event {} cannot be looked up: tracefs is not mounted or cannot be read", quote(name)),
            "run as root; in a container: `--privileged`, or `--cap-add SYS_ADMIN` with /sys/kernel/tracing mounted",
        );
    };
    let what = format!("this kernel has no event {}", quote(name));
    let near = nearest(name, names.iter().map(String::as_str), HINTS_MAX);
    let hint = match near.is_empty() {
        true => "`perf list` and /sys/kernel/tracing/events name those that it has, as in `--event skb:kfree_skb`"
            .to_owned(),
        false => format!("the nearest that it has: {}", near.join(", ")),
    };
    UserError::new(what, hint)
}

/// Programs that count events. They are attached within windows only.
pub struct EventWatch(Events);

impl EventWatch {
    /// Loads the programs.
    pub fn load(sources: &[Source]) -> Result<Self, event::Error> {
        Events::load(sources.to_vec()).map(Self)
    }

    /// A window begins.
    pub fn begin(&mut self) -> Result<(), event::Error> {
        self.0.begin(&cpus::online())
    }

    /// The window is over.
    pub fn stop(&mut self) {
        self.0.stop();
    }

    /// The counts, whose stacks are added to `stacks`; and the nanoseconds that counting took.
    pub fn counts(&mut self, stacks: &mut Stacks) -> (Vec<EventCounts>, u64) {
        let (counted, took_ns) = self.0.end();
        let mut names = HashMap::new();
        let sources = self.0.sources().iter();
        (
            sources.zip(counted).map(|(source, counted)| counts(&source.name, counted, stacks, &mut names)).collect(),
            took_ns,
        )
    }
}

fn counts(event: &str, counted: Counted, stacks: &mut Stacks, names: &mut HashMap<u32, Option<String>>) -> EventCounts {
    let mut cells: Vec<EventCell> = counted
        .cells
        .into_iter()
        .map(|cell| {
            let process = names.entry(cell.tgid).or_insert_with(|| proc_fs::comm(cell.tgid).ok()).clone();
            EventCell {
                pid: cell.tgid,
                tid: cell.tid,
                // One that has ended is known by the name of its first thread at least.
                process: process.or_else(|| (cell.tid == cell.tgid).then(|| cell.comm.clone())).unwrap_or_default(),
                thread: if cell.tid == 0 { String::new() } else { cell.comm },
                in_irq: false,
                value: cell.value,
                stack: stacks.intern(cell.tgid, &cell.kernel, &cell.user),
                count: cell.count,
            }
        })
        .collect();
    cells.stable_sort_by(|a, b| {
        b.count.cmp(&a.count).then_with(|| (a.tid, &a.value, a.stack).cmp(&(b.tid, &b.value, b.stack)))
    });
    EventCounts { event: event.to_owned(), cells, lost: counted.lost, without_stack: counted.without_stack }
}

/// Finds the events of interrupts, which needs the names of their stacks, and leaves out what we did ourselves.
pub fn tell_interrupts(events: &mut [EventCounts], stacks: &[Stack]) {
    for event in events {
        for cell in &mut event.cells {
            cell.in_irq = cell.stack.and_then(|id| stacks.get(id as usize)).is_some_and(in_interrupt);
        }
        event.cells.retain(|cell| cell.in_irq || cell.pid != proc_fs::own_pid());
    }
}

#[cfg(test)]
mod tests {
    use parshall_evidence::Frame;

    use super::*;

    #[test]
    fn an_unknown_event_has_near_ones_as_a_hint() {
        let all = ["skb:kfree_skb", "skb:consume_skb", "tlb:tlb_flush", "page-faults"].map(str::to_owned).to_vec();
        let hint = |name: &str| not_found(name, NotFound::Unknown(all.clone())).hint;
        assert_eq!(hint("skb:kfree_skbs"), "the nearest that it has: skb:kfree_skb");
        assert_eq!(hint("tlb_flush"), "the nearest that it has: tlb:tlb_flush");
        assert!(hint("xyzzy").contains("/sys/kernel/tracing/events"));
        assert!(not_found("a\x1b[2Jb", NotFound::Unknown(all.clone())).what.contains("`a [2Jb`"));
        assert!(not_found("skb:kfree_skb", NotFound::NoTracefs).hint.contains("root"));
    }

    #[test]
    fn what_an_interrupt_did_to_us_counts_and_what_we_did_does_not() {
        let frame = |name: &str| Frame { name: name.to_owned(), module: String::new(), kernel: true };
        let stacks =
            [vec![frame("kfree_skb"), frame("sysvec_apic_timer_interrupt")], vec![frame("do_exit"), frame("vfs_read")]];
        let stacks = stacks.map(|frames| Stack { frames });
        let cell = |pid, stack| EventCell { pid, stack: Some(stack), count: 1, ..EventCell::default() };
        let own = proc_fs::own_pid();
        let cells = vec![cell(own, 0), cell(own, 1), cell(own + 1, 1), cell(own + 1, 7)];
        let mut events = [EventCounts { cells, ..EventCounts::default() }];
        tell_interrupts(&mut events, &stacks);
        let left: Vec<_> = events[0].cells.iter().map(|cell| (cell.pid == own, cell.in_irq)).collect();
        assert_eq!(left, [(true, true), (false, false), (false, false)]);
    }
}

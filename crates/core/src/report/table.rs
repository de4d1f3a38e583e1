//! Tables of a page: the events and log lines that were asked for, what the subject asked of the kernel, and what the CPUs did.
use parshall_evidence::{CallReport, CpuReport, EventCaller, EventReport, FdKind, Report};

use super::page::{Detail, Stack, Table, Title};
use super::{head, log, stack, uring};
use crate::stats::ratio;
use crate::units::{bytes, count, decimal, or, percent_fixed, quantity};

/// Rows of an event on a short page and on a full one.
const SHORT_CALLERS: usize = 3;
const FULL_CALLERS: usize = 12;

/// The tables; a short page has only that of what was asked for.
pub(super) fn tables(report: &Report, detail: Detail) -> Vec<Table> {
    let asked =
        events(&report.events, detail).into_iter().chain(report.log.as_ref().map(|lines| log::table(lines, detail)));
    if detail == Detail::Short {
        return asked.collect();
    }
    let uring = report.uring.iter().flat_map(uring::tables);
    asked.chain(calls(report)).chain(uring).chain(cpus(&report.cpus)).collect()
}

fn events(events: &[EventReport], detail: Detail) -> Option<Table> {
    let most = if detail == Detail::Full { FULL_CALLERS } else { SHORT_CALLERS };
    let mut of = "Events of the kernel on the whole host, and what calls them".to_owned();
    let losses =
        events.iter().flat_map(|event| [(event.lost, event, "callers"), (event.without_stack, event, "stacks")]);
    for (n, event, what) in losses.filter(|(n, ..)| *n > 0) {
        of.push_str(&format!("; {} {} had too many different {what}", count(n), event.event));
    }
    let rows: Vec<(Vec<String>, Option<Stack>)> =
        events.iter().flat_map(|event| event_rows(event, most, detail)).collect();
    let (rows, stacks) = rows.into_iter().unzip();
    (!events.is_empty()).then(|| Table {
        title: Title("EVENTS"),
        of,
        head: vec!["event", "by", "what", "events/s", "share"],
        names: 3,
        rows,
        stacks,
    })
}

/// The sum of an event, `most` of its callers, and the others in one row.
fn event_rows(event: &EventReport, most: usize, detail: Detail) -> Vec<(Vec<String>, Option<Stack>)> {
    let row = |by: String, what: &str, per_s: f64, share: f64| {
        vec![event.event.clone(), by, what.to_owned(), decimal(per_s), percent_fixed(share)]
    };
    let service = (event.of_subject > 0.0).then(|| format!(", {} the service", percent_fixed(event.of_subject)));
    let all = if event.count > 0 { 1.0 } else { 0.0 };
    let mut rows = vec![(row(format!("all{}", service.unwrap_or_default()), "", event.per_s, all), None)];
    let shown = event.callers.iter().take(most);
    rows.extend(shown.clone().map(|caller| {
        (row(by(caller), &caller.value, caller.per_s, caller.share), stack::shown(&caller.stack, detail))
    }));
    let left = event.count.saturating_sub(shown.map(|caller| caller.count).sum());
    if left > 0 {
        let share = ratio(left as f64, event.count as f64);
        rows.push((row("others".to_owned(), "", event.per_s * share, share), None));
    }
    rows
}

/// The caller of an event, in words.
fn by(caller: &EventCaller) -> String {
    match caller.pid {
        _ if caller.in_irq => "interrupts".to_owned(),
        None => "idle CPUs".to_owned(),
        Some(pid) => {
            let thread = match caller.thread.as_str() {
                "" => String::new(),
                thread if thread == caller.process => String::new(),
                thread => format!(" ({thread})"),
            };
            format!("{} {pid}{thread}", or(&caller.process, "process"))
        }
    }
}

fn calls(report: &Report) -> Option<Table> {
    calls_table(&report.calls, if head::is_sliced(report) { "; ≈, from slices" } else { "" })
}

fn calls_table(calls: &[CallReport], slices: &str) -> Option<Table> {
    // A socket that does not block answers connect() with EINPROGRESS, which is counted with the errors.
    let connects = calls.iter().any(|call| call.syscall == "connect" && call.error_share > 0.0);
    let connects = if connects { "; connect fails with EINPROGRESS, too" } else { "" };
    let mut table = Table {
        title: Title("CALLS"),
        of: format!("System calls of the service, by their time on a CPU{slices}{connects}"),
        head: vec!["call", "calls/s", "of its CPU time", "on CPU, each", "off CPU, each", "bytes, each", "failed"],
        names: 1,
        rows: calls.iter().map(call).collect(),
        stacks: Vec::new(),
    };
    without_empty_columns(&mut table);
    Some(table).filter(|table| !table.rows.is_empty())
}

/// Removes the columns in which no row has anything.
fn without_empty_columns(table: &mut Table) {
    for at in (0..table.head.len()).rev() {
        if table.rows.iter().all(|row| row.get(at).is_none_or(String::is_empty)) {
            table.head.remove(at);
            table.rows.iter_mut().filter(|row| at < row.len()).for_each(|row| drop(row.remove(at)));
        }
    }
}

fn call(call: &CallReport) -> Vec<String> {
    let fd = match call.fd {
        FdKind::None => String::new(),
        FdKind::File => " file".to_owned(),
        FdKind::Pipe => " pipe".to_owned(),
        FdKind::Tcp => " TCP".to_owned(),
        FdKind::Udp => " UDP".to_owned(),
        FdKind::Unix => " UNIX".to_owned(),
        FdKind::Socket => " socket".to_owned(),
        FdKind::Anon => " events".to_owned(),
        FdKind::Char => " device".to_owned(),
        FdKind::Block => " disk".to_owned(),
    };
    let share = |share: f64, what: &str| (share > 0.0).then(|| format!("{}{what}", percent_fixed(share)));
    let failed: Vec<String> =
        share(call.error_share, "").into_iter().chain(share(call.again_share, " EAGAIN")).collect();
    vec![
        format!("{}{fd}", call.syscall),
        decimal(call.per_s),
        percent_fixed(call.cpu_share),
        time_of_call(call.on_cpu_us),
        time_of_call(call.off_cpu_us),
        call.bytes.map(bytes).unwrap_or_default(),
        failed.join(", "),
    ]
}

/// Empty for none. A mean over calls of which hardly one had to wait is no time of a call.
fn time_of_call(us: f64) -> String {
    const LEAST_US: f64 = 0.1;
    match us {
        us if us <= 0.0 => String::new(),
        us if us < LEAST_US => format!("< {}", quantity(LEAST_US, "us")),
        us => quantity(us, "us"),
    }
}

fn cpus(cpus: &[CpuReport]) -> Option<Table> {
    let limits = |cpu: &CpuReport| cpu.dropped > 0 || cpu.squeezed > 0;
    let mut head = vec!["CPU", "user", "system", "interrupts", "disk", "idle", "stolen", "packets/s"];
    let limited = cpus.iter().any(limits);
    if limited {
        head.extend(["dropped", "cut short"]);
    }
    let row = |cpu: &CpuReport| {
        let shares = [cpu.user, cpu.system, cpu.irq + cpu.softirq, cpu.iowait, cpu.idle, cpu.stolen];
        let mut row = vec![cpu.cpu.to_string()];
        row.extend(shares.map(percent_fixed));
        row.push(decimal(cpu.packets_per_s));
        if limited {
            row.extend([count(cpu.dropped), count(cpu.squeezed)]);
        }
        row
    };
    (!cpus.is_empty()).then(|| Table {
        title: Title("CPUS"),
        of: "The host's CPUs over the window".to_owned(),
        head,
        names: 1,
        rows: cpus.iter().map(row).collect(),
        stacks: Vec::new(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn calls_of(rows: Vec<CallReport>) -> Table {
        calls_table(&rows, "").expect("it has rows")
    }

    fn one(syscall: &str, error_share: f64, again_share: f64) -> CallReport {
        CallReport {
            syscall: syscall.into(),
            fd: FdKind::Tcp,
            on_cpu_us: 2.5,
            error_share,
            again_share,
            per_s: 10.0,
            cpu_share: 0.1,
            off_cpu_us: 0.0,
            bytes: None,
        }
    }

    #[test]
    fn a_column_in_which_nothing_stands_is_left_out() {
        let table =
            calls_of(vec![one("sendto", 0.0, 0.0), CallReport { off_cpu_us: 0.0004, ..one("close", 0.0, 0.0) }]);
        assert_eq!(table.head, ["call", "calls/s", "of its CPU time", "on CPU, each", "off CPU, each"]);
        assert!(table.rows.iter().all(|row| row.len() == table.head.len()));
        assert_eq!((table.rows[0][4].as_str(), table.rows[1][4].as_str()), ("", "< 100 ns"));
    }

    #[test]
    fn a_connection_under_way_is_said_to_count_as_a_failure() {
        let failed = |call| calls_table(&[call], "").expect("it has rows").rows[0].last().cloned().unwrap_or_default();
        assert_eq!(failed(one("futex", 0.102, 0.008)), "10.2 %, 0.8 % EAGAIN");
        assert_eq!(failed(one("read", 0.0, 0.5)), "50.0 % EAGAIN");
        let of = |call| calls_table(&[call], "; ≈, from slices").expect("it has rows").of;
        assert!(of(one("connect", 1.0, 0.0)).ends_with("; ≈, from slices; connect fails with EINPROGRESS, too"));
        assert!(of(one("connect", 0.0, 0.0)).ends_with("; ≈, from slices"));
    }
}

//! Tables of a full page: what the subject asked of the kernel, and what the CPUs did.
use parshall_evidence::{CallReport, CpuReport, FdKind, Report};

use super::head;
use super::page::{Detail, Table, Title};
use crate::units::{bytes, count, decimal, percent_fixed, quantity};

/// The tables; a short page has none.
pub(super) fn tables(report: &Report, detail: Detail) -> Vec<Table> {
    if detail == Detail::Short {
        return Vec::new();
    }
    calls(report).into_iter().chain(cpus(&report.cpus)).collect()
}

fn calls(report: &Report) -> Option<Table> {
    let slices = if head::is_sliced(report) { "; ≈, from slices" } else { "" };
    Some(Table {
        title: Title("CALLS"),
        of: format!("System calls of the service, by their time on a CPU{slices}"),
        head: vec!["call", "calls/s", "of its CPU time", "on CPU, each", "off CPU, each", "bytes, each", "failed"],
        rows: report.calls.iter().map(call).collect(),
    })
    .filter(|table| !table.rows.is_empty())
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
    let time = |us: f64| if us > 0.0 { quantity(us, "us") } else { String::new() };
    let share = |share: f64, what: &str| (share > 0.0).then(|| format!("{} {what}", percent_fixed(share)));
    let failed: Vec<String> =
        share(call.error_share, "failed").into_iter().chain(share(call.again_share, "EAGAIN")).collect();
    vec![
        format!("{}{fd}", call.syscall),
        decimal(call.per_s),
        percent_fixed(call.cpu_share),
        time(call.on_cpu_us),
        time(call.off_cpu_us),
        call.bytes.map(bytes).unwrap_or_default(),
        failed.join(", "),
    ]
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
        rows: cpus.iter().map(row).collect(),
    })
}

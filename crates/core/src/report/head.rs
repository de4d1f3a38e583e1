//! The subject of a report, and how it was made.
use parshall_evidence::{CommandEnd, Origin, Report, Rung, ServiceReport};

use super::page::Detail;
use crate::units::{count, decimal, percent_fixed, plural, requests_per_s, time_ms};

/// The items of the head. A short page has no word of what went as it should.
pub(super) fn parts(report: &Report, detail: Detail) -> Vec<String> {
    let full = detail == Detail::Full;
    let mut parts = vec!["parshall".to_owned()];
    parts.extend(subject(report));
    parts.extend(report.command.as_ref().map(|command| command_end(&command.end)));
    parts.push(window(report.window_s));
    if let Some(service) = &report.service {
        parts.extend(requests(service));
    } else if report.time.flows.n > 0 || report.time.threads.n == 0 {
        parts.push(plural(report.time.flows.n, "flow", "flows"));
    } else {
        parts.push(plural(report.time.threads.n, "thread", "threads"));
    }
    parts.push(format!("rung {}", report.rung.as_str()));
    if full && report.window_s > 0.0 {
        let core = report.probe.cpu_ms / (report.window_s * 1000.0);
        parts.push(format!("probes {} of a core", percent_fixed(core)));
    }
    if full || report.probe.lost_events > 0 {
        parts.push(format!("{} lost", plural(report.probe.lost_events, "event", "events")));
    }
    if full && is_sliced(report) {
        parts.push(format!("slices {} of the time", percent_fixed(report.probe.observed_share)));
    }
    parts
}

/// When, where and by what the observation was made; a short page leaves out the command line.
pub(super) fn origin(origin: &Origin, detail: Detail) -> Vec<String> {
    let mut parts = vec![
        date(&origin.time),
        origin.host.clone(),
        format!("Linux {}", origin.kernel),
        format!("version {}", origin.version),
    ];
    if detail == Detail::Full {
        parts.push(command_line(&origin.command_line));
    }
    parts
}

/// Whether the probes saw only a part of the time. Sampling on the rung procfs is not slicing.
pub(super) fn is_sliced(report: &Report) -> bool {
    report.rung != Rung::Procfs && report.probe.observed_share < 0.995
}

/// The state of the command of `run` at the end.
fn command_end(end: &CommandEnd) -> String {
    match end {
        CommandEnd::Running => "still running".to_owned(),
        CommandEnd::Exited { exit_status } => format!("exit status {exit_status}"),
        CommandEnd::Killed { signal, signal_name } if signal_name.is_empty() => format!("killed by signal {signal}"),
        CommandEnd::Killed { signal_name, .. } => format!("killed by {signal_name}"),
    }
}

/// `2026-11-22 18:51:05 UTC`; text that is not an RFC 3339 time stays as it is.
fn date(time: &str) -> String {
    match (time.split_once('T'), time.split_once('.')) {
        (Some((day, _)), Some((to_the_second, _))) if day.len() < to_the_second.len() => {
            format!("{day} {} UTC", &to_the_second[day.len() + 1..])
        }
        _ => time.to_owned(),
    }
}

/// The command line for a shell. The command after `--` is not known.
fn command_line(words: &[String]) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,@%+".contains(c);
    let quoted = words.iter().map(|word| match word.chars().all(plain) && !word.is_empty() {
        true => word.clone(),
        false => format!("'{}'", word.replace('\'', "'\\''")),
    });
    let more = (words.last().map(String::as_str) == Some("--")).then(|| "…".to_owned());
    quoted.chain(more).collect::<Vec<_>>().join(" ")
}

/// The requests of a service in figures.
fn requests(service: &ServiceReport) -> Vec<String> {
    let to = if service.outbound { format!(" to {}", service.address) } else { String::new() };
    let about = if service.scaled { "≈" } else { "" };
    let mut parts = vec![requests_per_s(&format!("{about}{}", decimal(service.requests_per_s))) + &to];
    parts.extend(service.p50_ms.map(|ms| format!("p50 {about}{}", time_ms(ms))));
    parts.extend(service.p99_ms.map(|ms| format!("p99 {about}{}", time_ms(ms))));
    if service.p50_ms.is_none() {
        // Requests that are longer than the slices have a mean all the same.
        parts.extend(service.mean_ms.map(|ms| format!("{about}{} each", time_ms(ms))));
    }
    if service.unanswered > 0 {
        let longest = time_ms(service.unanswered_longest_ms);
        parts.push(format!("{} unanswered, up to {longest}", count(service.unanswered)));
    }
    if service.abandoned > 0 {
        parts.push(format!("{} given up by their clients", count(service.abandoned)));
    }
    parts
}

/// A service among several.
pub(super) fn service(service: &ServiceReport) -> Vec<String> {
    let mut parts = Vec::new();
    if !service.outbound {
        parts.push(format!("port {}", service.port));
        parts.push(processes(&service.process, &service.pids));
    }
    parts.extend(requests(service));
    parts
}

/// `nginx 812` or `gunicorn 901, 902 and 4 more`.
pub(super) fn processes(name: &str, pids: &[u32]) -> String {
    let list: Vec<String> = pids.iter().map(u32::to_string).collect();
    let name = if name.is_empty() { "pid" } else { name };
    if list.is_empty() { name.to_owned() } else { format!("{name} {}", some_of(&list, 3)) }
}

fn subject(report: &Report) -> Vec<String> {
    if let Some(service) = report.service.as_ref().filter(|s| !s.outbound) {
        return vec![format!("port {}", service.port), processes(&service.process, &service.pids)];
    }
    let mut parts = Vec::new();
    let ports: Vec<String> = report.subject.ports.iter().map(u16::to_string).collect();
    if !ports.is_empty() {
        parts.push(format!("{} {}", if ports.len() == 1 { "port" } else { "ports" }, some_of(&ports, 4)));
    }
    let named = |(i, pid): (usize, &u32)| match report.subject.comms.get(i).filter(|c| !c.is_empty()) {
        Some(comm) => format!("{pid} {comm}"),
        None => pid.to_string(),
    };
    let pids: Vec<String> = report.subject.pids.iter().enumerate().map(named).collect();
    if !pids.is_empty() {
        parts.push(format!("{} {}", if pids.len() == 1 { "pid" } else { "pids" }, some_of(&pids, 3)));
    }
    if parts.is_empty() {
        parts.push("whole host".to_owned());
    }
    parts
}

/// `a, b, c and 4 more`.
fn some_of(list: &[String], most: usize) -> String {
    let head = list.iter().take(most).cloned().collect::<Vec<_>>().join(", ");
    if list.len() > most { format!("{head} and {} more", list.len() - most) } else { head }
}

fn window(seconds: f64) -> String {
    if seconds < 1.0 { time_ms(seconds * 1000.0) } else { format!("{seconds:.1} s") }
}
